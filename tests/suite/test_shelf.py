"""Faulty ports are caught, by what they were aimed at; correct ones are not accused."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from qkvac.cells import CHECKS, Result
from qkvac.engine.engine import Engine
from qkvac.records.report import Report
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.registry import forward_profiles
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.declaration import DTYPES
from qkvac.tests.suite.shelf import (
    CORRECT,
    FAULTY,
    PORTS,
    Correct,
    Faulty,
)

QUANTITIES = forward_profiles()["attention"].quantities

SHOWN = {
    "exact": "tensor_float_scores",
    "local": "scores_not_scaled",
    "bound": "softmax_down_columns",
    "metamorphic": "order_random",
    "missing": "context_missing",
    "error": "raises_on_one_token",
    "crash": "crashes_on_one_token",
    "timeout": "hangs_on_one_token",
}
"""One port for each clause, and for each way to fail without a value."""

CONTRACTS = {
    "presence": ("context_missing", "C", "C is what the profile is for"),
    "shape": ("context_transposed", "C", "C: axis 0 (n) is 2, expected 6"),
    "rank": ("batch_axis_added", "Q", "Q has 3 axes"),
    "dtype": ("float64_returned", "C", "C has dtype float64, expected float32"),
    "finiteness": ("no_maximum", "A", "nan"),
    "order": ("context_before_weights", "A", "A: axis 1 (n) is 2, expected 6"),
}
"""One port for each part of the contract, the quantity, and a word of the reason."""

PATIENCE = 2.0
"""Seconds that a port which hangs is given."""


USUAL = {
    *SHOWN.values(),
    *(name for name, _, _ in CONTRACTS.values()),
    *{port.demands: port.name for port in reversed(FAULTY)}.values(),
}
"""One port for each set of what has to be found; `-m long` runs the others as well."""


def findings(results: Iterable[Result]) -> set[tuple[str, str]]:
    """Pairs of a quantity or check and the clause or the status that it failed with."""
    return {(r.cell.quantity, r.clause or r.status) for r in results if not r.ok}


@pytest.mark.parametrize(
    "port",
    [
        pytest.param(port, id=port.name, marks=() if port.name in USUAL else pytest.mark.long)
        for port in FAULTY
    ],
)
def test_a_faulty_port_is_caught_by_what_it_was_aimed_at(port: Faulty) -> None:
    """Cases are run in their own order until everything demanded has been found."""
    hangs = "timeout" in " ".join(port.caught.values())
    options = Options(timeout=PATIENCE if hangs else 60.0)
    results: list[Result] = []
    found: set[tuple[str, str]] = set()
    with Engine(Selection(port=str(port.path), dtypes=(port.dtype,)), options) as engine:
        cells = iter(engine.cells)
        while not port.demands <= found:
            cell = next(cells, None)
            assert cell is not None, f"not found: {port.demands - found}; found: {found}"
            results.append(engine.result(cell))
            found |= findings(results[-1:])
    first = next((QUANTITIES.index(q) for q in port.caught if q in QUANTITIES), None)
    assert not {quantity for quantity, _ in found} & set(QUANTITIES[:first])
    for part, (name, quantity, word) in CONTRACTS.items():
        if name == port.name:
            reasons = [r.reason or "" for r in results if r.cell.quantity == quantity]
            assert any(word in reason for reason in reasons), f"{part} is not blamed: {reasons}"


@pytest.mark.parametrize(
    ("port", "dtype"),
    [
        pytest.param(port, dtype, id=f"{port.name}-{dtype}", marks=marks)
        for port in CORRECT
        for dtype in port.dtypes
        # One dtype is enough here: the matrix judges the adapters in all of them.
        for usual in ["float32" if "float32" in port.dtypes else port.dtypes[0]]
        for marks in [() if dtype == usual else pytest.mark.long]
    ],
)
def test_a_correct_port_is_not_accused(port: Correct, dtype: str) -> None:
    selection = Selection(port=str(port.path), dtypes=(dtype,))
    with Engine(selection) as engine:
        results = tuple(map(engine.result, engine.cells))
    assert findings(results) == set()
    assert not [result.line for result in results if result.grade == "suspicious"]
    assert Report(results, engine.roster, selection).exit_status == 0


def test_every_port_is_on_the_shelf_and_says_what_is_special_about_it() -> None:
    shelved = [*FAULTY, *CORRECT]
    names = sorted(port.name for port in shelved)
    assert names == sorted(p.stem for p in PORTS.glob("*.py") if not p.stem.startswith("_"))
    for port in shelved:
        assert port.about.endswith("."), port.name
    assert len({port.about for port in shelved}) == len(shelved)


def test_the_faults_are_of_all_kinds() -> None:
    """Every way in which a port can fail has one, and there are correct ones in every dtype.

    How many there are is in the README, and one by one in the folder of ports.
    """
    ways = {what for port in FAULTY for _, what in port.demands}
    assert ways == {"contract", *SHOWN}
    assert {dtype for port in CORRECT for dtype in port.dtypes} == {*DTYPES}


def test_every_clause_and_every_quantity_fails_somewhere() -> None:
    demanded = {port.name: {what for _, what in port.demands} for port in FAULTY}
    for what, name in SHOWN.items():
        assert what in demanded[name]
    for name, quantity, _ in CONTRACTS.values():
        assert quantity in next(port for port in FAULTY if port.name == name).caught
    places = {where for port in FAULTY for where, _ in port.demands}
    # The first three are asked of adapters only, the others have ports of their own.
    elsewhere = {"budget", "mode", "subsets", *CHECKS[5:13]}
    assert places >= {*QUANTITIES, *CHECKS} - elsewhere


@pytest.mark.parametrize("shift", [30, -30, 1000, -1000, 30000, -30000])
def test_a_case_has_scores_far_from_zero(shift: int) -> None:
    """Where A from one path and C from another part company, if one of them is wrong."""
    for case in cases("attention"):
        if case.family == f"shift{shift:+d}":
            X, Wq, Wk, _ = case.inputs("float64").values()
            scores = (X @ Wq) @ (X @ Wk).T / np.sqrt(Wq.shape[1])
            assert abs(scores.mean() - shift) < 10
            return
    pytest.fail(f"no case has scores moved by {shift}")
