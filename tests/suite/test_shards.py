"""Shards: together they are the run, they come out even, and every machine splits alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qkvac.cells import Result, Status, Subject
from qkvac.engine.engine import Engine
from qkvac.engine.run import Execution, execute
from qkvac.execution import costs, shards
from qkvac.execution.plan import Job, Plan, plan
from qkvac.execution.shards import Shard, assign, due, group, split
from qkvac.publication.archive import Archive, read
from qkvac.publication.merging import merged
from qkvac.records.deviations import Deviation
from qkvac.records.report import Report
from qkvac.records.words import FAILED, INDECISIVE, PASSED
from qkvac.spec.cases.catalogue import cases
from qkvac.subjects.roster import Entry, Roster
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import write
from qkvac.toml import loads as read_toml
from qkvac.usage import UsageError

pytest_plugins = ["pytester"]

DTYPES = ["float64", "float32", "float16"]
SOME = {name: cases(name)[:6] for name in ("attention", "causal_attention", "embedding")}


def entry(backend: str, mode: str = "eager", skipped: str = "", **declared: Any) -> Entry:
    raw = {"dtypes": DTYPES, "profiles": list(SOME), **declared}
    subject = Subject(backend, mode, "cpu")
    return Entry(subject, raw, tuple(raw["profiles"]), {}, skipped)


def jobs(entries: Sequence[Entry]) -> tuple[Job, ...]:
    return plan(Roster(tuple(entries)), Selection(profiles=tuple(SOME))).jobs


ENTRIES = (
    entry("torch", "compile"),
    entry("torch"),
    entry("jax", "jit", dtypes=["float32"]),
    entry("numpy", profiles=["attention"]),
    entry("absent", skipped="not here"),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of a few subjects, each with some of its cases."""
    names = draw(st.lists(st.sampled_from(["torch", "jax", "a", "b"]), min_size=1, unique=True))
    found = list[Job]()
    for name in names:
        subject = entry(name, draw(st.sampled_from(["eager", "jit"])))
        for known in SOME.values():
            for dtype in DTYPES:
                for case in known[: draw(st.integers(0, len(known)))]:
                    status = draw(st.sampled_from(["", "", "", Status.UNSUPPORTED]))
                    found.append(Job(subject, dtype, case, case.quantities, (), status))
    return Plan(tuple(found), {})


def most(jobs: Sequence[Job]) -> int:
    """How many shards there can be: groups in which something is run."""
    return len({group(job) for job in jobs if not job.status})


def loads(plan: Plan, count: int) -> list[int]:
    """Milliseconds of every shard, starts of its subjects included."""
    parts = [split(plan, Shard(number, count)) for number in range(1, count + 1)]
    return [
        sum(map(costs.milliseconds, part.jobs))
        + costs.START * len({job.entry.subject.id for job in part.jobs if not job.status})
        for part in parts
    ]


@settings(max_examples=30)
@given(plans(), st.integers(1, 6))
def test_shards_are_disjoint_and_together_the_plan_in_its_order(whole: Plan, count: int) -> None:
    assume(count <= most(whole.jobs))
    parts = [split(whole, Shard(number, count)) for number in range(1, count + 1)]
    order = {cell.id: place for place, cell in enumerate(whole.cells)}
    places = [[order[cell.id] for cell in part.cells] for part in parts]
    assert all(own == sorted(own) for own in places)
    assert sorted(place for own in places for place in own) == list(range(len(order)))
    assert all(any(not job.status for job in part.jobs) for part in parts), "something for each"


@settings(max_examples=30)
@given(plans(), st.integers(1, 6))
def test_groups_stay_together(whole: Plan, count: int) -> None:
    assume(count <= most(whole.jobs))
    parts = [split(whole, Shard(number, count)) for number in range(1, count + 1)]
    met = Counter(key for part in parts for key in {group(job) for job in part.jobs})
    assert set(met.values()) <= {1}


@settings(max_examples=30)
@given(plans(), st.integers(2, 6))
def test_the_largest_load_exceeds_the_smallest_by_a_group_and_a_start_at_most(
    whole: Plan, count: int
) -> None:
    """What holds for any list that is given out to whoever has the least."""
    assume(count <= most(whole.jobs))
    work = Counter[shards.Group]()
    for job in whole.jobs:
        work[group(job)] += costs.milliseconds(job)
    found = loads(whole, count)
    assert max(found) - min(found) <= max(work.values()) + costs.START


@settings(max_examples=30)
@given(plans(), st.integers(1, 6), st.randoms())
def test_the_split_does_not_depend_on_the_order_of_anything(
    whole: Plan, count: int, random: Any
) -> None:
    assume(count <= most(whole.jobs))
    mixed = list(whole.jobs)
    random.shuffle(mixed)
    assert assign(mixed, count) == assign(whole.jobs, count)


def test_every_process_splits_alike_whatever_its_hash_seed() -> None:
    code = (
        "from qkvac.tests.suite.test_shards import ENTRIES, jobs;"
        "from qkvac.execution.shards import assign;"
        "print(sorted(assign(jobs(ENTRIES), 3).items()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert found == {f"{sorted(assign(jobs(ENTRIES), 3).items())}\n"}


def test_a_slow_subject_is_balanced_by_many_quick_ones() -> None:
    """Halves by number of cases would give all that is slow to one of them."""
    whole = Plan(jobs([entry("torch", "compile"), entry("numpy")]), {})
    half = len(whole.jobs) // 2
    by_number = [
        sum(map(costs.milliseconds, part)) for part in (whole.jobs[:half], whole.jobs[half:])
    ]
    assert max(by_number) > 3 * min(by_number)
    found = loads(whole, 2)
    assert max(found) < 1.2 * min(found)


@pytest.mark.parametrize("text", ["0/3", "4/3", "x", "1/0", "-1/2", "1", "1/2/3", "1.5/2", ""])
def test_what_is_no_shard_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError, match="write 2/4 for the second of four parts") as caught:
        Shard.parse(text)
    assert "\n" not in str(caught.value)


def test_a_shard_reads_as_it_is_written() -> None:
    assert (Shard.parse("2/4"), str(Shard(2, 4))) == (Shard(2, 4), "2/4")


def test_too_many_shards_are_refused_by_each_of_them() -> None:
    whole = Plan(jobs([entry("numpy", profiles=["attention"])]), {})
    for number in (1, 9):
        with pytest.raises(UsageError, match="can be split into 3 at most"):
            split(whole, Shard(number, 9))


# --- what a shard reports -----------------------------------------------------------------------


def test_a_shard_that_can_run_nothing_leaves_the_proof_to_the_others() -> None:
    subject = entry("torch").subject
    results = (Result(cell, Status.SKIPPED) for cell in jobs([entry("torch")])[0].cells)
    idle = tuple(results)
    assert subject == idle[0].cell.subject
    assert Report(idle).exit_status == INDECISIVE
    part = Report(idle, shard=Shard(2, 4), planned=len(idle), whole=99)
    assert part.exit_status == PASSED
    assert part.sentence == (
        "NOTHING PROVED: all that is here is skipped or unsupported. "
        f"Shard 2 of 4: {len(idle)} of 99 cells."
    )


def test_what_a_shard_offers_and_does_not_prove_is_said_by_it() -> None:
    (cell,) = (c for c in jobs([entry("torch")])[0].cells if c.quantity == "C")
    report = Report((Result(cell, Status.INDECISIVE, last=True),), shard=Shard(1, 2))
    assert report.exit_status == INDECISIVE


def test_a_known_deviation_of_what_was_not_selected_is_not_missed() -> None:
    every = Plan(jobs([entry("torch", "compile")]), {})
    job = next(job for job in every.jobs if not job.status)
    chosen = Plan(tuple(j for j in every.jobs if j.case.id != job.case.id), {})
    name = job.entry.subject.name
    about = Deviation(name, "bound", "r", "l", cases=(job.case.id,))
    of_dtype = Deviation(name, "bound", "r", "l", dtype="bfloat16", cases=(job.case.id,))
    assert due((about, of_dtype), every, every) == (about,)
    assert due((about, of_dtype), chosen, chosen) == ()


def test_a_known_deviation_of_another_shard_is_not_missed() -> None:
    whole = Plan(jobs([entry("torch", "compile"), entry("numpy"), entry("absent")]), {})
    here = split(whole, Shard(1, 2))
    own = {group(job) for job in here.jobs}
    far = next(job for job in whole.jobs if group(job) not in own and not job.status)
    elsewhere = Deviation(
        far.entry.subject.name, "bound", "r", "l", dtype=far.dtype, cases=(far.case.id,)
    )
    nowhere = Deviation(
        far.entry.subject.name, "bound", "r", "l", dtype=far.dtype, cases=("none/*",)
    )
    unknown = Deviation("other", "bound", "r", "l")
    assert due((elsewhere, nowhere, unknown), here, whole) == (nowhere, unknown)
    assert due((elsewhere, nowhere, unknown), whole, whole) == (elsewhere, nowhere, unknown)


# --- runs ---------------------------------------------------------------------------------------

WRONG = """
QKVAC = {"dtypes": ["float64", "float32", "float16"], "modes": ["one", "two"]}


def attention(X, Wq, Wk, Wv):
    Q, K, V, A, C = plain(X, Wq, Wk, Wv)
    if X.dtype == np.float32 and len(X) == 33:
        C = C[:1]
    return {"Q": Q, "K": K, "V": V, "A": A, "C": C}
"""


def recorded(folder: Path, port: str, shard: Shard | None) -> tuple[Execution, Archive]:
    path = folder / f"{str(shard).replace('/', '-')}.jsonl"
    selection = Selection(port=port, cases=("attention/normal/*", "attention/worked-example/*"))
    done = execute(Engine(selection, Options(workers=1), shard=shard), path)
    return done, read(path)


def essence(archive: Archive) -> list[Result]:
    """Results without times, by cell; and without what a record holds once for many."""
    timeless = (replace(line.result, seconds=None, detail=None) for line in archive.lines)
    return sorted(timeless, key=lambda result: result.cell.id)


def test_the_records_of_shards_become_the_record_of_one_run(tmp_path: Path) -> None:
    port = write(tmp_path, WRONG)
    done, archive = recorded(tmp_path, port, None)
    parts = [recorded(tmp_path, port, Shard(number, 3)) for number in (1, 2, 3)]
    again = merged([part for _, part in reversed(parts)])
    assert essence(again) == essence(archive)
    (one,), (other,) = archive.environments, again.environments
    assert one.id == other.id
    assert one.run == other.run
    (footer,), (whole,) = archive.footers.values(), again.footers.values()
    assert {**footer, "seconds": 0} == {**whole, "seconds": 0}
    with pytest.raises(UsageError, match="there is no shard 2"):
        merged([parts[0][1], parts[2][1]])

    assert done.exit_status == FAILED
    failing = {group_of(result) for result in done.report.failures}
    for ended, part in parts:
        mine = {group_of(line.result) for line in part.lines}
        assert ended.exit_status == (FAILED if mine & failing else PASSED)
    assert sum(ended.exit_status == FAILED for ended, _ in parts) in (1, 2)


def group_of(result: Result) -> shards.Group:
    return result.cell.subject.id, result.cell.profile, result.cell.dtype


def test_under_pytest_and_xdist_a_shard_runs_its_cells_and_says_so(
    pytester: pytest.Pytester,
) -> None:
    port = write(pytester.path, 'QKVAC = {"dtypes": ["float32", "float64"], "modes": ["a", "b"]}')
    chosen = ("--qkvac-port", port, "--qkvac-case", "attention/normal/6*")
    found = list[str]()
    for number, options in ((1, ()), (2, ("-n", "2"))):
        record = pytester.path / f"{number}.jsonl"
        result = pytester.runpytest_subprocess(
            *("--pyargs", "qkvac.tests.conformance", "--qkvac-shard", f"{number}/2", *chosen),
            *(f"--qkvac-record={record}", *options),
        )
        assert result.ret == 0, result.outlines
        archive = read(record)
        (run,) = (environment.run for environment in archive.environments)
        assert run["cells"] == len(archive.lines)
        ended = " ".join(line.strip() for line in result.outlines)
        total = run["shard"]["cells"]
        assert f"Shard {number} of 2: {len(archive.lines)} of {total} cells." in ended
        found += [line.result.cell.id for line in archive.lines]
    with Engine(Selection(port=port, cases=("attention/normal/6*",))) as engine:
        assert sorted(found) == sorted(cell.id for cell in engine.cells)


def test_pytest_refuses_what_is_no_shard_in_one_line(pytester: pytest.Pytester) -> None:
    port = write(pytester.path)
    result = pytester.runpytest_subprocess(
        "--pyargs", "qkvac.tests.conformance", "--qkvac-port", port, "--qkvac-shard", "3/2"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --shard 3/2: write 2/4 for the second of four parts"])


# --- costs --------------------------------------------------------------------------------------


def test_costs_are_measured_from_records_call_by_call() -> None:
    def line(mode: str, dtype: str, case: str, quantity: str, seconds: float) -> str:
        cell = {"subject": f"{mode}@cpu", "dtype": dtype, "case": case, "quantity": quantity}
        return json.dumps({"kind": "result", **cell, "seconds": seconds})

    lines = [
        json.dumps({"kind": "header"}),
        line("b/jit", "float32", "attention/a", "Q", 0.5),
        line("b/jit", "float32", "attention/a", "C", 0.5),
        line("b/jit", "float64", "attention/a", "C", 0.1),
        line("b/jit", "float32", "embedding/a", "X", 0.03),
        line("b", "float32", "embedding/a", "X", 0.007),
    ]
    found = costs.measure(lines)
    assert found == {
        "b": {"*": 7, "embedding": 7},
        "b/jit": {"*": 210, "attention": 300, "embedding": 30},
    }
    assert read_toml(costs.to_toml(found)) == found


def test_measured_subjects_are_adapters_that_there_are() -> None:
    from qkvac.subjects.registry import backend
    from qkvac.targets.packages import OWN

    subjects = {Subject(name, mode, "cpu").name for name in OWN for mode in backend(name).modes}
    assert set(costs.table()) <= subjects


def test_what_was_not_measured_costs_as_much_as_others_of_its_kind() -> None:
    few = entry("unheard-of", "jit", modes=["jit"], shapes={"jit": "few"})
    compiled, eager = (jobs([made])[0] for made in (few, entry("unheard-of")))
    judged = costs.CELL * len(eager.cells)
    assert costs.milliseconds(eager) == costs.CALL + judged
    assert costs.milliseconds(compiled) == costs.COMPILED + judged
    assert costs.milliseconds(jobs([entry("x", skipped="so")])[0]) == 0
