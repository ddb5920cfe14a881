"""Crossed cases: every pair of values that can stand together does, and right results pass."""

from __future__ import annotations

import json
from itertools import product
from typing import Any, Final

import numpy as np
import pytest

import qkvac
from qkvac.cells import Subject
from qkvac.cli.main import main
from qkvac.execution.plan import plan
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case, cases, crossed_cases, find
from qkvac.spec.cases.coverage import Coverage
from qkvac.spec.cases.covering import Row, Space, covering
from qkvac.spec.cases.crossed import adaptable, is_stored
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.formats import FORMATS
from qkvac.spec.inputs.families import Frame
from qkvac.spec.inputs.mask_patterns import FAR, TILE, patterned
from qkvac.spec.registry import forward_profiles, known_profiles
from qkvac.spec.verdicts import statuses
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.subjects.roster import Entry, Roster
from qkvac.subjects.selection import Selection, known_case
from qkvac.targets.declaration import DTYPES
from qkvac.tests.suite.crossing import found_statuses, trouble

PROFILES: Final = tuple(known_profiles())
WITH_FLAGS: Final = [name for name in PROFILES if len(known_profiles()[name].texts) > 1]
SMALL: Final = Space({"a": (0, 1, 2), "b": ("x", "y"), "c": (1, 2, 3, 4), "d": (True, False)})


def pairs_of(space: Space, rows: tuple[Row, ...]) -> set[Any]:
    return {pair for row in rows for pair in space.of(row)}


# --- covering arrays -------------------------------------------------------------------------


def test_every_pair_stands_in_some_row_of_few() -> None:
    found = covering(SMALL)
    assert not found.missing
    assert pairs_of(SMALL, found.rows) == set(SMALL.pairs())
    assert len(found.rows) < len(list(product(*SMALL.dimensions.values()))) / 2
    assert pairs_of(SMALL, found.rows[:-4]) < set(SMALL.pairs())


def test_what_is_excluded_stands_in_no_row_and_says_why() -> None:
    def excludes(row: Row) -> str:
        return "not y with 4" if row.get("b") == "y" and row.get("c") == 4 else ""

    space = Space(SMALL.dimensions, excludes)
    found = covering(space)
    barred = (("b", "y"), ("c", 4))
    assert dict(found.missing) == {barred: "not y with 4"}
    assert pairs_of(space, found.rows) == set(space.pairs()) - {barred}


def test_rows_that_prove_nothing_do_not_count() -> None:
    def holds(row: Row) -> str:
        return "says nothing" if row["a"] == 2 and row["d"] else ""

    found = covering(SMALL, holds)
    assert set(found.missing.values()) == {"says nothing"}
    assert set(found.missing) == {(("a", 2), ("d", True))}
    assert not any(map(holds, found.rows))


def test_what_is_wanted_besides_stands_in_some_row() -> None:
    wanted = [({"a": 1, "b": "x", "c": c, "d": True},) for c in (1, 2, 3, 4)]
    either = ({"a": 0, "b": "y", "c": 1, "d": True}, {"a": 0, "b": "y", "c": 2, "d": True})
    never = ({"a": 9},)
    found = covering(Space(SMALL.dimensions, _of_known), wanted=[*wanted, either, never])
    for parts in (*wanted, either):
        assert any(part.items() <= row.items() for part in parts for row in found.rows)
    assert found.unmet == ((never, "no such value"),)


def _of_known(row: Row) -> str:
    return "no such value" if row.get("a", 0) > 2 else ""


# --- rows of profiles ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_every_pair_is_met_or_says_why_not(name: str) -> None:
    coverage = Coverage(known_profiles()[name])
    assert all(coverage.missing.values()), [p for p, r in coverage.missing.items() if not r][:5]
    assert len(coverage.met) > 5 * len(coverage.missing)
    for row, case in coverage.rows:
        assert not coverage.space.excludes(row), case.id


@pytest.mark.parametrize("name", PROFILES)
def test_rows_are_stored_and_found_by_their_ids(name: str) -> None:
    assert is_stored(known_profiles()[name]), "python -m qkvac.tests.suite.crossing"
    found = crossed_cases(name)
    assert len({case.id for case in found}) == len(found)
    assert not {case.id for case in found} & {case.id for case in cases(name)}
    assert all(find(case.id) is case for case in found[::7])
    assert 0 < sum(case.core for case in found) < len(found) / 4


@pytest.mark.parametrize("name", PROFILES)
def test_core_rows_have_every_value(name: str) -> None:
    coverage = Coverage(known_profiles()[name])
    core = {case.id for case in crossed_cases(name) if case.core}
    every = {item for row, _ in coverage.rows for item in row.items()}
    assert {i for row, case in coverage.rows if case.id in core for i in row.items()} == every


@pytest.mark.parametrize(
    "name", [name for name in PROFILES if len(known_profiles()[name].texts) > 1]
)
def test_triples_of_length_data_and_flag_are_met(name: str) -> None:
    found = Coverage(known_profiles()[name]).triples
    assert found
    assert sum(case is None for case in found.values()) <= len(found) / 20


@pytest.mark.parametrize("name", PROFILES)
def test_right_results_pass_in_every_dtype(name: str) -> None:
    """Each row was tried in its first dtype when it was stored; here some are in all."""
    for case in crossed_cases(name)[3::40]:
        for dtype in case.dtypes:
            wrong = {
                quantity: status
                for quantity, status in found_statuses(case, dtype).items()
                if status not in (statuses.PASSED.name, statuses.INDECISIVE.name)
            }
            assert not wrong, (case.id, dtype, wrong)


@pytest.mark.parametrize("name", PROFILES)
def test_rows_prove_something_of_the_result(name: str) -> None:
    for case in crossed_cases(name)[5::40]:
        assert not trouble(case), case.id


def test_wrong_results_fail_in_rows() -> None:
    for case in crossed_cases("attention")[::40]:
        dtype = case.dtypes[0]
        outputs = compute(case.program, case.inputs(dtype), case.bindings, dtype)
        if not outputs["C"].size:
            continue
        outputs["C"] = outputs["C"] * outputs["C"].dtype.type(1.25)
        found = judge(Question(case, dtype, Arithmetic.for_dtype(dtype)), outputs)
        assert found["C"].status == statuses.FAILED.name, case.id


# --- ports that lack something ---------------------------------------------------------------


def test_rows_are_adapted_to_what_a_port_lacks() -> None:
    words = frozenset({"cross_length", "grouped_heads", "value_width"})
    assert adaptable(forward_profiles()["scaled_dot_product_attention"]) == words
    plain = crossed_cases("scaled_dot_product_attention", words)
    assert not any(case.needs & words for case in plain)
    assert len(plain) > 0.8 * len(crossed_cases("scaled_dot_product_attention"))
    assert all(known_case(case.id) is not None for case in plain[::20])
    alone = crossed_cases("attention", frozenset({"batches"}))
    assert not any(case.batch for case in alone)
    assert {case.sizes["n"] for case in alone} == {c.sizes["n"] for c in crossed_cases("attention")}


def jobs(
    *,
    supports: tuple[str, ...],
    tier: str = "default",
    dtypes: tuple[str, ...] = (),
    port: Any = "port.py",
) -> list[tuple[Case, str]]:
    """What a subject that supports this is asked of `attention`, and in which dtypes."""
    raw = {"dtypes": list(DTYPES), "profiles": ["attention"], "supports": list(supports)}
    entry = Entry(Subject("port", "default", "cpu", port), raw, ("attention",), {})
    selection = Selection(profiles=("attention",), tier=tier, dtypes=dtypes)
    found = plan(Roster((entry,)), selection)
    return [(job.case, job.dtype) for job in found.jobs if not job.status and job.case.crossed]


EVERYTHING: Final = ("layouts", "batches", "empty")


def test_a_row_is_run_in_one_dtype() -> None:
    found = jobs(supports=EVERYTHING)
    assert len(found) == len({case.id for case, _ in found}) == len(crossed_cases("attention"))
    assert {dtype for _, dtype in found} == set(DTYPES)
    assert all(dtype == case.dtypes[0] for case, dtype in found)
    narrow = jobs(supports=EVERYTHING, dtypes=("float32",))
    assert {dtype for _, dtype in narrow} == {"float32"}
    assert len(narrow) == len(found)
    assert len(jobs(supports=EVERYTHING, tier="full")) > 2 * len(found)
    assert not jobs(supports=EVERYTHING, tier="quick")


def test_a_port_without_layouts_gets_the_rows_in_plain_arrays() -> None:
    found = jobs(supports=("batches", "empty"))
    assert len(found) == len(crossed_cases("attention"))
    assert not any(case.layouts for case, _ in found)
    assert any(case.layouts for case, _ in jobs(supports=EVERYTHING))


def test_a_port_without_batches_gets_the_rows_without_them() -> None:
    found = jobs(supports=("layouts", "empty"))
    assert len(found) > 0.8 * len(crossed_cases("attention"))
    assert not any(case.batch for case, _ in found)


def test_adapters_have_the_core_alone() -> None:
    assert not jobs(supports=EVERYTHING, port=None)
    found = jobs(supports=EVERYTHING, port=None, tier="full")
    assert found
    assert all(case.core for case, _ in found)
    assert len(found) == sum(case.core for case in crossed_cases("attention"))


def test_a_port_that_is_wrong_only_under_a_condition_fails() -> None:
    """In the named cases it is right; no case has 64 columns and a batch of three besides."""

    def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> Any:
        Q, K, V = X @ Wq, X @ Wk, X @ Wv
        S = Q @ np.swapaxes(K, -1, -2) / X.dtype.type(Wq.shape[-1] ** 0.5)
        E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
        C = E / E.sum(axis=-1, keepdims=True) @ V
        return {"C": -C if Wq.shape[-1] % 64 == 0 else C}

    options: dict[str, Any] = {"profile": "attention", "dtypes": ["float32"], "workers": 1}
    declare = {"supports": ["batches", "empty"]}
    assert qkvac.check(attention, declare=declare, tier="quick", **options).exit_status == 0
    report = qkvac.check(attention, declare=declare, **options)
    assert report.exit_status == 1
    assert {r.cell.case.split("/")[1][:7] for r in report.results if r.status == "failed"} == {
        "crossed"
    }


# --- masks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("additive", [False, True])
def test_patterns_of_masks(additive: bool) -> None:
    frame = Frame("seed", FORMATS["float32"], {})

    def kept(pattern: str, shape: tuple[int, ...] = (12, 70)) -> np.ndarray:
        found = patterned(frame, "mask", shape, pattern, additive)
        return np.asarray(np.isfinite(found) if additive else found)

    assert kept("open").all()
    assert (kept("single-key").sum(axis=-1) == 1).all()
    assert not kept("empty-rows")[::3].any()
    assert kept("empty-rows")[1].any()
    assert not kept("first-tile")[:, :TILE].any()
    assert not kept("last-tile")[:, -TILE:].any()
    assert not kept("middle-tile")[:, 2 * TILE : 3 * TILE].any()
    for pattern in ("first-tile", "middle-tile", "last-tile", "random"):
        assert kept(pattern).any(axis=-1).all()
    assert kept("random", (5, 0)).shape == (5, 0)
    if additive:
        assert np.abs(patterned(frame, "mask", (9, 9), "large", True)).max() == FAR


# --- the command -----------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `qkvac cases` prints."""
    with pytest.raises(SystemExit) as ended:
        main(["cases", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_coverage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "--coverage", "--profile", "attention")
    assert "attention: 2" in out
    assert "left out: sizes of a kind are alike, or not" in out
    assert max(map(len, out.splitlines())) <= 100
    words = ["--profile", "multi_head_attention", "--format", "json"]
    found = json.loads(shown(capsys, "--coverage", *words))["multi_head_attention"]
    assert all(find(case) for _, _, case in found["met"][::50])
    assert all(reason for _, _, reason in found["missing"])
    assert found["triples"]


def test_crossed_cases_are_listed_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "crossed" not in shown(capsys, "--profile", "embedding")
    out = shown(capsys, "--profile", "embedding", "--case", "*/crossed*")
    assert out.count("embedding/crossed") == len(crossed_cases("embedding"))
