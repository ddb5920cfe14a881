"""Two records compared: every kind of change is found, and nothing is called one that is none."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkvac.cells import Result, Status, Subject
from qkvac.cli.main import main
from qkvac.engine.engine import Engine
from qkvac.engine.run import execute
from qkvac.publication.archive import Archive, read
from qkvac.publication.comparison import (
    ADDED,
    EXCUSED,
    FAILING,
    FIXED,
    HIDDEN,
    LOST,
    NEW_FAILURE,
    SAME,
    Comparison,
    compare,
    grew,
)
from qkvac.publication.drift import Drift, drift
from qkvac.publication.telling import to_json, to_text
from qkvac.records.record import roster_json
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite import engine_ports
from qkvac.tests.suite.records import (
    CASE,
    HOSTILE,
    JIT,
    TORCH,
    entry,
    environment,
    lines,
    result,
    write,
)
from qkvac.usage import UsageError

ABSENT = "absent"
NOT_RUN = (ABSENT, *Status.NOT_REQUIRED, Status.INDECISIVE)


def archive(folder: Path, name: str, *sections: Any) -> Archive:
    return read(write(folder / f"{name}.jsonl", *sections), allow_truncated=True)


def compared(
    folder: Path, old: list[Result], new: list[Result], *, strict: bool = False, **changed: Any
) -> Comparison:
    """The comparison of two records of one environment each, the new one changed."""
    return compare(
        archive(folder, "old", lines(old)),
        archive(folder, "new", lines(new, environment(**changed), strict=strict)),
    )


def told(found: Comparison) -> str:
    """The comparison in words, in which every line fits a screen unless it holds a long word."""
    text = to_text(found)
    data = json.loads(to_json(found))
    assert data["regressed"] == found.regressed
    return text


# --- what becomes of a cell -----------------------------------------------------------------------


def expected(was: str, now: str) -> str:
    """What a change of status means, said another way than the table that is tested."""
    if now in Status.BAD:
        return FAILING if was in Status.BAD else NEW_FAILURE
    if now in NOT_RUN:
        if was in Status.PASSES:
            return LOST
        return SAME if was in NOT_RUN else HIDDEN
    if was == now or {was, now} == Status.PASSES:
        return SAME
    if now == Status.KNOWN_DEVIATION:
        return EXCUSED
    return ADDED if was in NOT_RUN else FIXED


@pytest.mark.parametrize("was", [ABSENT, *Status.ALL])
@pytest.mark.parametrize("now", [ABSENT, *Status.ALL])
def test_every_change_of_status_is_told(tmp_path: Path, was: str, now: str) -> None:
    other = result("Q")
    old = [other, *([result(status=was)] if was != ABSENT else [])]
    new = [other, *([result(status=now)] if now != ABSENT else [])]
    found = compared(tmp_path, old, new)
    kind = expected(was, now)
    assert {k: n for k, n in found.counts.items() if n and k != SAME} == (
        {} if kind == SAME else {kind: 1}
    )
    assert found.regressed == (kind in (NEW_FAILURE, LOST))
    text = told(found)
    assert ("NO REGRESSION" in text) != found.regressed
    if kind == NEW_FAILURE:
        assert "again: qkvac run --backend torch/eager --case" in text


def test_a_suspicious_result_fails_only_in_a_strict_run(tmp_path: Path) -> None:
    new = [result(grade="suspicious", z=9.0, rms=2.0)]
    assert not compared(tmp_path, [result()], new).regressed
    assert compared(tmp_path, [result()], new, strict=True).regressed
    old = [result(grade="suspicious", z=9.0, rms=2.0)]
    assert not compared(tmp_path, old, new, strict=True).regressed


def test_a_subject_that_is_gone_is_lost(tmp_path: Path) -> None:
    found = compared(tmp_path, [result(), result(subject=JIT)], [result()])
    assert found.counts[LOST] == 1
    assert "jax/jit@cpu: only in the old record" in told(found)


# --- errors that grow -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0.1, 0.26, True),
        (0.1, 0.25, False),
        (0.2, 0.4, False),
        (0.2, 0.41, True),
        (0.0, 0.3, True),
        (0.001, 0.1, False),
        (0.6, 0.9, False),
        (None, 0.9, False),
        (0.9, 0.1, False),
    ],
)
def test_an_error_grew_when_it_lost_more_than_a_bit_and_nears_its_bound(
    tmp_path: Path, old: float | None, new: float, expected: bool
) -> None:
    assert grew(old, new) is expected
    found = compared(tmp_path, [result(ratio=old)], [result(ratio=new)])
    assert found.grown is expected
    assert not found.regressed
    assert (f"→ {new:.2g} of the bound" in " ".join(told(found).split())) is expected


# --- bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"python": "3.13.0", "versions": {"torch": "2.14.0"}}, ""),
        ({"threads": 2}, "other threads"),
        ({"cpu_features": ["AVX2", "FMA3", "X86_V3"]}, ""),
        ({"cpu_features": ["AVX2"]}, "other processor features"),
        ({"cpu": "B"}, "other processor"),
        ({"settings": {"OPENBLAS_CORETYPE": "Haswell"}}, "other settings"),
        ({"platform": "Darwin arm64", "cpu": "M"}, "other platform and processor"),
    ],
)
def test_bits_are_compared_on_equal_hardware_only(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    cells = [result("Q"), result("C"), result("repeat", digest=None)]
    new = [cells[0], replace(cells[1], digest="c" * 64), cells[2]]
    found = compared(tmp_path, cells, new, **changed)
    assert found.counts[SAME] == 3
    text = told(found)
    if reason:
        assert not found.bits
        assert found.incomparable == {reason: 2}
        assert f"bits of 2 results: not comparable ({reason})" in text
    else:
        assert [change.cell.quantity for change in found.bits] == ["C"]
        assert found.comparable == 2
        assert not found.incomparable
        assert "1 of 2 results have other bits" in text
    assert not found.regressed


def test_bits_of_an_accelerator_are_compared_on_the_same_one(tmp_path: Path) -> None:
    gpu = replace(TORCH, device="cuda:0")
    cells = [result(subject=gpu), result()]
    new = [replace(cell, digest="c" * 64) for cell in cells]
    found = compared(tmp_path, cells, new, accelerators=["Another"])
    assert [change.cell.subject for change in found.bits] == [TORCH]
    assert found.incomparable == {"other accelerator": 1}


# --- what moved -----------------------------------------------------------------------------------


def test_what_moved_is_told(tmp_path: Path) -> None:
    old = list(lines([result()]))
    old[0]["qkvac_version"], old[0]["spec_version"] = "0.0.9", "0.7"
    new = lines(
        [result()],
        environment(
            python="3.12.1",
            versions={"torch": "2.14.0", "triton": "4.0"},
            cpu_features=["AVX2", "AVX512F"],
        ),
        tier="full",
    )
    found = compare(archive(tmp_path, "old", old), archive(tmp_path, "new", new))
    moved = {str(move) for move in found.moves}
    assert moved >= {
        "torch 2.13.0 → 2.14.0",
        "triton absent → 4.0",
        "jax 0.10.2 → absent",
        "Python 3.11.7 → 3.12.1",
        "processor features FMA3 → AVX512F",
        "tier default → full",
    }
    assert {m.partition(" ")[0] for m in moved} >= {"qkvac", "spec"}
    text = " ".join(told(found).split())
    assert all(move in text for move in moved)


def ports(folder: Path, *, sources: tuple[str, str] = ("", "")) -> tuple[Archive, Archive]:
    """Records of a port that passes and of another that fails, each of its own name."""
    found = []
    for name, status, source in zip("ab", (Status.PASSED, Status.FAILED), sources, strict=True):
        port = Subject(name, "default", "cpu", port=f"{name}.py")
        (header, *rest) = lines([result(subject=port, status=status)], entries=[entry(port, "")])
        if source:
            header["run"]["subjects"][0]["source"] = source
        found.append(archive(folder, name, [header, *rest]))
    return found[0], found[1]


def test_two_ports_are_compared_where_they_are_called_by_one_name(tmp_path: Path) -> None:
    old, new = ports(tmp_path)
    apart = told(compare(old, new))
    assert "a@cpu: only in the old record" in apart
    assert "to compare one with the other: --as a=b" in apart
    assert "1 cell fails, and did not before, of which the old record has none:" in apart
    assert "moved" not in apart
    for called in ({"a": "b"}, {"a@cpu": "b@cpu"}):
        found = compare(old, new, called)
        assert [(p.old is None, p.new is None) for p in found.pairs] == [(False, False)]
        assert dict(found.counts) == {NEW_FAILURE: 1}
    with pytest.raises(UsageError, match="--as c=b: the old record has no c; it holds a"):
        compare(old, new, {"c": "b"})
    with pytest.raises(UsageError, match="--as a=a: the new record has no a; it holds b"):
        compare(old, new, {"a": "a"})


def test_another_source_has_moved(tmp_path: Path) -> None:
    def moved(*sources: str) -> list[str]:
        one, other = ports(tmp_path, sources=(sources[0], sources[1]))
        found = compare(one, other, {"a": "b"}).moves
        return [str(move) for move in found if "source" in move.name]

    assert moved("1" * 64, "2" * 64) == [f"source of b@cpu {'1' * 12} → {'2' * 12}"]
    assert moved("1" * 64, "1" * 64) == moved("", "2" * 64) == []


def test_a_record_knows_the_source_of_a_port(tmp_path: Path) -> None:
    file = tmp_path / "port.py"
    file.write_text("def attention(X, Wq, Wk, Wv): ...\n", encoding="utf-8")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for port, form in ((f"{file}", ""), (f"{file}:attention", ""), (f"python3 {file}", "command")):
        subject = Subject("port", "default", "cpu", port=port, form=form)
        assert roster_json([entry(subject)])[0]["source"] == digest
    for port, form in (("package.module", ""), ("f", "loaded")):
        subject = Subject("port", "default", "cpu", port=port, form=form)
        assert "source" not in roster_json([entry(subject)])[0]


def test_one_cell_is_not_several(tmp_path: Path) -> None:
    old, new = [result()], [result(status=Status.FAILED)]
    assert "1 cell fails, and did not before:" in told(compared(tmp_path, old, new))
    old, new = [result(), result("A")], [result(ratio=0.9), result("A", ratio=0.9)]
    assert "2 cells have errors that grew" in told(compared(tmp_path, old, new))
    assert "1 cell has an error that grew" in told(compared(tmp_path, old[:1], new[:1]))


def test_nothing_moved_in_the_same_record(tmp_path: Path) -> None:
    cells = [result(f"q{i}", status=status) for i, status in enumerate(Status.ALL)]
    found = compared(tmp_path, cells, cells)
    assert not found.moves
    assert not found.changes
    assert not found.regressed
    assert "moved: nothing" in told(found)


# --- several environments -------------------------------------------------------------------------


def section(version: str, **changed: Any) -> Any:
    """A record of one torch, whose digest tells its version."""
    digest = version.replace(".", "").ljust(64, "0")
    surroundings = environment(versions={"torch": version}, **changed)
    return lines([result(digest=digest)], surroundings, [entry(TORCH, version)])


def test_environments_are_matched_by_version_and_hardware(tmp_path: Path) -> None:
    old = archive(tmp_path, "old", section("2.4.1"), section("2.13.0"), section("2.13.0", cpu="B"))
    new = archive(
        tmp_path,
        "new",
        section("2.13.0", cpu="B", python="3.13.0"),
        section("2.4.1", python="3.13.0"),
        section("2.13.0", python="3.13.0"),
    )
    found = compare(old, new)
    assert found.counts == {SAME: 3}
    assert found.comparable == 3
    assert not found.bits
    for pair in found.pairs:
        assert pair.old is not None
        assert pair.new is not None
        assert pair.old.surroundings["cpu"] == pair.new.surroundings["cpu"]


def test_what_could_be_two_things_is_not_matched(tmp_path: Path) -> None:
    old = archive(
        tmp_path, "old", section("2.13.0", python="3.10.1"), section("2.13.0", python="3.11.1")
    )
    new = archive(
        tmp_path, "new", section("2.13.0", python="3.12.1"), section("2.13.0", python="3.13.1")
    )
    found = compare(old, new)
    assert found.counts == {LOST: 2, ADDED: 2}
    assert "cannot be told apart" in told(found)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_record_compared_with_itself_is_the_same(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever its statuses and however many environments it has."""
    statuses = st.lists(st.sampled_from(Status.ALL), min_size=1, max_size=6)
    pythons = data.draw(st.lists(st.sampled_from(["3.10", "3.11", "3.12"]), unique=True))
    sections = [
        lines(
            [result(f"q{i}", status=status) for i, status in enumerate(data.draw(statuses))],
            environment(python=python),
        )
        for python in ["3.9", *pythons]
    ]
    found = archive(tmp_path, "a", *sections)
    same = compare(found, found)
    assert set(same.counts) <= {SAME, FAILING}
    assert sum(same.counts.values()) == len(found.lines)
    assert not same.moves
    assert not same.bits


# --- a real regression ----------------------------------------------------------------------------


def test_a_port_that_becomes_wrong_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of a right port and of one with a seeded fault, as the engine writes them."""
    right = "def attention(*arrays): return plain(*arrays)"
    wrong = """
        def attention(X, Wq, Wk, Wv):
            Q, K, V, A, C = plain(X, Wq, Wk, Wv)
            return Q, K, V, A, A.T @ V
    """
    paths = {}
    for name, text in (("old", right), ("new", wrong)):
        selection = Selection(
            port=engine_ports.write(tmp_path, text),
            cases=(engine_ports.SMALL, engine_ports.MAIN),
            dtypes=("float32",),
            profiles=("attention",),
        )
        paths[name] = str(tmp_path / f"{name}.jsonl")
        execute(Engine(selection, Options()), Path(paths[name]))
    for words, status in (
        (("old", "new"), 1),
        (("new", "old"), 0),
        (("old", "old"), 0),
        (("new", "new"), 0),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["report", "diff", *(paths[word] for word in words)])
        assert ended.value.code == status
    outputs = capsys.readouterr().out.split("old  ")
    assert "REGRESSED" in outputs[1]
    assert " C: failed" in outputs[1]
    assert "A: failed" not in outputs[1]
    assert "again: qkvac check" in outputs[1]
    assert "cells pass, and did not before" in outputs[2]


def test_the_command_has_three_exit_statuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["report", "diff", *words])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def record(name: str, *results: Result, footer: bool = True) -> str:
        return str(write(tmp_path / name, lines(results, footer=footer)))

    good = record("good", result(ratio=0.1))
    grown = record("grown", result(ratio=0.9))
    bad = record("bad", result(status=Status.FAILED))
    early = record("early", result(), footer=False)
    assert run(good, good) == 0
    assert run(good, grown) == 0
    assert run(good, grown, "--strict") == 1
    assert run(good, bad) == 1
    assert run(good, early) == 2
    assert run(good, early, "--allow-truncated") == 0
    assert run(good, str(tmp_path / "absent")) == 2
    assert capsys.readouterr().err.count("\n") == 2
    out = tmp_path / "out.json"
    assert run(good, bad, "--format", "json", "-o", str(out)) == 1
    data = json.loads(out.read_text(encoding="utf-8"))
    (change,) = data["changes"]
    assert change["kind"] == NEW_FAILURE
    assert change["cell"] == result().cell.id
    assert change["old"]["status"] == "passed"
    assert change["new"]["status"] == "failed"
    assert change["again"].startswith("qkvac run --backend torch/eager")


@pytest.mark.parametrize("word", HOSTILE)
def test_no_text_of_a_record_reaches_the_terminal_as_it_is(tmp_path: Path, word: str) -> None:
    subject = replace(TORCH, backend=word, port=word)
    bad = result(status=Status.ERROR, subject=subject, reason=word, detail=word)
    cells = [result(case=f"{CASE}{word}"), result("Q", status=Status.SKIPPED, reason=word), bad]
    old = [replace(cell, status=Status.PASSED) for cell in cells]
    text = told(compared(tmp_path, old, cells, settings={word: word}))
    assert all(c.isprintable() or c in "\n\t" for c in text)


# --- drift between versions -----------------------------------------------------------------------


def drifting(folder: Path, *sections: Any) -> tuple[Drift, ...]:
    return drift(archive(folder, "drift", *sections))


def version(number: str, digests: str, ratio: float = 0.1, **changed: Any) -> Any:
    """A record of a torch whose results in three cases have these digests."""
    cells = [
        result(case=f"attention/{family}/33x20x7", digest=letter * 64, ratio=ratio)
        for family, letter in zip(("normal", "hot", "tiny"), digests, strict=True)
    ]
    surroundings = environment(versions={"torch": number}, **changed)
    return lines(cells, surroundings, [entry(TORCH, number)])


def test_versions_are_compared_in_their_order(tmp_path: Path) -> None:
    found = drifting(tmp_path, version("2.13.0", "abd"), version("2.4.1", "abc"))
    (one,) = found
    assert (one.old_version, one.new_version, one.reason) == ("2.4.1", "2.13.0", "")
    assert (one.compared, one.changed) == (3, 1)
    (change,) = one.changes
    assert (change.profile, change.dtype, change.quantity) == ("attention", "float32", "C")
    assert (change.compared, change.changed, change.grown) == (3, 1, 0)
    assert [move.name for move in one.moves] == ["torch"]


def test_errors_that_grew_between_versions_are_counted(tmp_path: Path) -> None:
    (one,) = drifting(tmp_path, version("1.0", "abc", 0.1), version("2.0", "abc", 0.5))
    (change,) = one.changes
    assert (change.changed, change.grown) == (0, 3)
    assert (change.old_ratio, change.new_ratio) == (0.1, 0.5)


def test_equal_versions_do_not_drift(tmp_path: Path) -> None:
    assert drifting(tmp_path, version("1.0", "abc"), version("1.0", "abd", python="3.12")) == ()
    (one,) = drifting(tmp_path, version("1.0", "abc"), version("1.1", "abc"))
    assert one.changes == ()
    assert one.compared == 3


def test_other_hardware_is_not_comparable(tmp_path: Path) -> None:
    (one,) = drifting(tmp_path, version("1.0", "abc"), version("1.1", "abd", cpu="B"))
    assert one.reason == "other processor"
    assert not one.changes


def test_of_several_environments_the_most_alike_are_compared(tmp_path: Path) -> None:
    found = drifting(
        tmp_path,
        version("1.0", "abc", cpu="B"),
        version("1.0", "aaa", python="3.10"),
        version("1.0", "abd"),
        version("1.1", "abd"),
        version("1.1", "ccc", threads=4),
    )
    (one,) = found
    assert one.reason == ""
    assert one.changed == 0
    assert [move.name for move in one.moves] == ["torch"]


def test_each_version_is_compared_with_the_next(tmp_path: Path) -> None:
    found = drifting(tmp_path, version("1.10", "abe"), version("1.9", "abd"), version("dev", "def"))
    steps = [(one.old_version, one.new_version, one.changed) for one in found]
    assert steps == [("dev", "1.9", 3), ("1.9", "1.10", 1)]
