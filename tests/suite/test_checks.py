"""The checks: each finds the fault that it is for, and nothing in a port without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac.cells import Cell, Result, Status
from qkvac.checks import protocol_checks, registry
from qkvac.checks.findings import Visit, failed
from qkvac.checks.normality import granule, stays_normal
from qkvac.engine.results import checked
from qkvac.execution.survey import survey
from qkvac.isolation.process import BackendError, Outcome, WorkerCrash, WorkerTimeout
from qkvac.records.report import Report
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.subjects import breadth
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options, Selection, find_case
from qkvac.targets.declaration import DTYPES
from qkvac.tests.suite.engine_ports import MAIN, run, write

WHERE = find_case(f"attention/{MAIN}")

FAULTS = {
    "unchanged": """
        def attention(X, *W):
            out = plain(X, *W)
            X += 1
            return out
        """,
    "repeat": """
        calls = 0
        def attention(X, *W):
            global calls
            calls += 1
            Q, K, V, A, C = plain(X, *W)
            return Q, K, V, A, np.nextafter(C, C.dtype.type(9)) if calls % 2 else C
        """,
    "state": """
        known = {}
        def attention(X, *W):
            return plain(*known.setdefault(X.shape, [a.copy() for a in (X, *W)]))
        """,
    "scaling": """
        def attention(X, Wq, Wk, Wv):
            return plain(X, Wq, Wk, Wv + X.dtype.type(2**-20))
        """,
    "signs": """
        def attention(X, Wq, Wk, Wv):
            return plain(X, np.nextafter(Wq, np.inf, dtype=Wq.dtype), Wk, Wv)
        """,
    "environment": """
        import ctypes
        def attention(*arrays):
            out = plain(*arrays)
            ctypes.CDLL(None).fesetround(0x800)  # upward on x86
            return out
        """,
}


ASKED = {*FAULTS, "sensitivity", "permutation"}
"""Checks that are made on the plainest case of the mission's profile."""


SCALED = {"scaling", "signs"}


def found(results: list[Result]) -> Mapping[str, Result]:
    return {r.cell.quantity: r for r in results if r.cell.is_check}


@pytest.mark.parametrize("name", FAULTS)
def test_each_check_finds_its_fault(tmp_path: Path, name: str) -> None:
    result = found(run(write(tmp_path, FAULTS[name]), MAIN, dtypes=("float64",)))[name]
    assert (result.status, result.clause) == (Status.FAILED, "metamorphic"), result.line
    assert result.reason


def test_a_plain_port_passes_them_all(tmp_path: Path) -> None:
    results = found(run(write(tmp_path), MAIN, dtypes=("float64",)))
    assert set(results) == ASKED
    assert {result.status for result in results.values()} == {Status.PASSED}


def test_a_result_in_an_inputs_memory_is_found() -> None:
    finding = protocol_checks.unchanged(visit(Outcome("ok", aliases=(("C", "V"), ("Q", "X")))))
    assert finding == failed("a result lies in the memory of an input: Q in X")
    assert (
        protocol_checks.unchanged(visit(Outcome("ok", aliases=(("C", "V"),)))).status
        == Status.PASSED
    )


def test_a_state_that_shows_only_later_is_found(tmp_path: Path) -> None:
    text = """
    seen = set()
    def attention(X, *W):
        seen.add(X.tobytes())
        Q, K, V, A, C = plain(X, *W)
        return Q, K, V, A, C * C.dtype.type(1 + 1e-6 * (len(seen) - 1))
    """
    assert found(run(write(tmp_path, text), MAIN))["state"].status == Status.FAILED


def test_an_overwritten_result_is_found() -> None:
    finding = protocol_checks.repeat(visit(Outcome("ok", overwritten=("C",))))
    assert (finding.status, finding.clause) == (Status.FAILED, "metamorphic")


def test_declared_indeterminism_is_reported_not_failed(tmp_path: Path) -> None:
    text = FAULTS["repeat"] + "\n        QKVAC = {'deterministic': False}"
    result = found(run(write(tmp_path, text), MAIN))["repeat"]
    assert result.status == Status.PASSED
    assert "as declared" in (result.reason or "")


# --- budget and mode, which only adapters have -----------------------------------------------


def visit(
    outcome: Outcome = Outcome("ok"),  # noqa: B008
    record: Callable[[], Mapping[str, Any] | None] = lambda: None,
    mode: str = "eager",
    case: Case = WHERE,
) -> Visit:
    entry = survey(Selection(backends=("numpy",)), Options()).entries[0]
    entry = Entry(replace(entry.subject, mode=mode), entry.raw, entry.functions, {})
    return Visit(entry, "float32", case, case.inputs("float32"), outcome, lambda _: outcome, record)


def product(*shapes: tuple[int, int]) -> dict[str, Any]:
    left, right, out = map(list, shapes)
    return {"operation": "matmul", "left": left, "right": right, "out": out}


N, D, C = (WHERE.sizes[axis] for axis in "ndc")
PROJECTION = product((N, D), (D, C), (N, C))
SCORES = product((N, C), (C, N), (N, N))
CONTEXT = product((N, N), (N, C), (N, C))
RIGHT = [PROJECTION, PROJECTION, PROJECTION, SCORES, CONTEXT]


def test_five_products_and_a_transposition_are_in_the_budget() -> None:
    for turned in (0, 1):
        record = {"contractions": RIGHT, "transpositions": turned}
        assert protocol_checks.budget(visit(record=partial(dict, record))).status == Status.PASSED


@pytest.mark.parametrize(
    ("contractions", "transpositions"),
    [
        ([*RIGHT, PROJECTION], 1),
        (RIGHT[1:], 1),
        ([*RIGHT[:-1], product((N, N), (N, N), (N, N))], 1),
        ([product((N, D), (D, 3 * C), (N, 3 * C)), SCORES, CONTEXT], 1),
        (RIGHT, 2),
    ],
)
def test_anything_else_is_not(contractions: list[dict[str, Any]], transpositions: int) -> None:
    record = {"contractions": contractions, "transpositions": transpositions}
    finding = protocol_checks.budget(visit(record=lambda: record))
    assert (finding.status, finding.clause) == (Status.FAILED, "metamorphic")
    informed = protocol_checks.budget(visit(record=lambda: record, mode="compile"))
    assert informed.status == Status.INFORMATIONAL
    assert finding.reason
    assert finding.reason in (informed.reason or "")


def test_a_budget_that_nobody_has_to_meet_is_no_pass_either() -> None:
    """Kept or not: it neither passes nor fails, and proves nothing."""
    kept = visit(record=lambda: {"contractions": RIGHT, "transpositions": 1}, mode="compile")
    finding = protocol_checks.budget(kept)
    assert (finding.status, finding.clause) == (Status.INFORMATIONAL, None)
    cell = Cell(kept.entry.subject, "float32", WHERE.id, "budget")
    told = checked(cell, finding, kept.outcome)
    assert told.ok
    assert not told.decisive
    assert Report((told,)).exit_status == 3, "nothing was proved"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BackendError("no"), Status.ERROR),
        (WorkerTimeout("slow"), Status.TIMEOUT),
        (WorkerCrash("gone"), Status.CRASH),
    ],
)
def test_a_failing_recording_has_a_status(error: Exception, status: str) -> None:
    def record() -> Mapping[str, Any]:
        raise error

    assert protocol_checks.budget(visit(record=record)).status == status
    assert protocol_checks.budget(visit()).status == Status.NOT_REPORTED


def test_every_adapter_that_is_here_passes_budget_and_mode() -> None:
    results = run(None, MAIN, backends=("numpy",))
    assert {found(results)[name].status for name in ("budget", "mode")} == {Status.PASSED}


# --- which cases can be scaled ---------------------------------------------------------------


def test_granules_are_powers_of_two_that_divide_every_entry() -> None:
    assert granule(np.array([3.0, 0.0, -5.0])) == 1.0
    assert granule(np.array([0.75, 12.0])) == 0.25
    assert granule(np.array([2.0**-1074])) == 2.0**-1074
    assert granule(np.zeros(3)) == 1.0


def test_generic_float16_and_tiny_data_are_not_scaled() -> None:
    assert not stays_normal(WHERE, "float16")
    assert not stays_normal(find_case("attention/near-subnormal/33x20x7"), "float32")
    assert stays_normal(WHERE, "float32")
    assert not stays_normal(find_case("attention/empty/0x20x7"), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_scales_wherever_it_has_to(dtype: str) -> None:
    entry = survey(Selection(backends=("numpy",)), Options()).entries[0]
    here = [case for case in cases() if dtype in case.dtypes]
    asked = [case.id for case in here if "scaling" in registry.names(entry, dtype, case)]
    assert asked or dtype == "float16"
    if asked:
        results = run(None, *asked, backends=("numpy",), dtypes=(dtype,))
        statuses = {r.status for r in results if r.cell.quantity in ("scaling", "signs")}
        assert statuses == {Status.PASSED}


def test_every_check_has_a_case_for_every_adapter() -> None:
    for entry in survey(Selection(), Options()).entries:
        for dtype in entry.dtypes if "attention" in entry.declaration.profiles else ():
            run = [
                case
                for case in cases()
                if dtype in case.dtypes and breadth.includes(entry.shapes, case, dtype)
            ]
            made = {name for case in run for name in registry.names(entry, dtype, case)}
            expected = {*ASKED, "budget"} - (SCALED if dtype == "float16" else set())
            expected |= {"mode"} if entry.subject.mode in entry.declaration.evidence else set()
            batched = any(case.batch for case in run)
            if "batches" in entry.declaration.supports and batched:
                expected |= {"batch", "samples"}
            assert expected <= made, (entry.subject.id, dtype)
