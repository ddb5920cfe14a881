"""The ledger: a port that chooses otherwise passes if it says so, and fails if it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from qkvac.cells import Result, Status
from qkvac.engine.engine import Engine
from qkvac.spec.attention import CONVENTIONS
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.registry import forward_profiles
from qkvac.subjects.selection import Options, Selection, find_case
from qkvac.targets.declaration import DEFAULT_CONVENTIONS
from qkvac.tests.suite.profile_ports import write

SDPA: Final = "scaled_dot_product_attention"

EMPTY = """
    inner = weights
    def weights(S, keep=True, empty=0.0):
        return inner(S, keep, {})
    """

PORTS: Final = {
    ("empty_row", "mean"): (SDPA, EMPTY.format("1 / S.shape[-1] if S.shape[-1] else 0")),
    ("empty_row", "NaN"): (SDPA, EMPTY.format("np.nan")),
    ("causal_alignment", "bottom-right"): (
        SDPA,
        """
    def triangle(L, S):
        return np.tri(L, S, S - L, dtype=bool)
    """,
    ),
    ("mask", "True drops"): (
        SDPA,
        """
    inner = scaled_dot_product_attention
    def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
        turned = ~mask if mask is not None and mask.dtype == bool else mask
        return inner(Q, K, V, causal=causal, mask=turned, scale=scale)
    """,
    ),
    ("weight_layout", "c×d"): (
        "multi_head_attention",
        """
    inner = multi_head_attention
    def multi_head_attention(X, *weights, **keywords):
        return inner(X, *(W.T for W in weights), **keywords)
    """,
    ),
}


def results(port: str, profile: str, declare: tuple[str, ...] = ()) -> list[Result]:
    declare = ('dtypes=["float32"]', *declare)
    selection = Selection(port=port, profiles=(profile,), declare=declare)
    with Engine(selection, Options(workers=1)) as engine:
        found = [engine.result(cell) for cell in engine.cells if cell.quantity in WATCHED]
    return found


WATCHED: Final = ("A", "C", "Y", "future", "first-row", "samples", "mask-forms", "sensitivity")


@pytest.mark.parametrize(("convention", "choice"), PORTS)
def test_a_port_passes_only_if_it_declares_what_it_chose(
    tmp_path: Path, convention: str, choice: str
) -> None:
    profile, text = PORTS[convention, choice]
    port = write(tmp_path, text)
    declared = results(port, profile, (f'conventions.{convention}="{choice}"',))
    passed = {Status.PASSED, Status.INDECISIVE, Status.SKIPPED}
    assert {r.status for r in declared} <= passed, [r.line for r in declared if not r.ok]
    assert any(result.decisive and result.last for result in declared)
    failed = {r.cell.case for r in results(port, profile) if r.status in Status.BAD}
    assert failed
    if convention != "weight_layout":
        assert len(failed) < len({r.cell.case for r in declared})


@pytest.mark.parametrize(("convention", "choice"), PORTS)
def test_a_right_port_that_declares_another_choice_fails(
    tmp_path: Path, convention: str, choice: str
) -> None:
    found = results(
        write(tmp_path), PORTS[convention, choice][0], (f'conventions.{convention}="{choice}"',)
    )
    assert any(result.status in Status.BAD for result in found)


@pytest.mark.parametrize(("alignment", "further"), [("top-left", 0), ("bottom-right", 4)])
def test_what_inputs_have_to_change_is_computed_as_declared(alignment: str, further: int) -> None:
    """The relations' own values: of 5 queries and 9 keys the first sees one key, or five."""
    case = find_case(f"{SDPA}/normal/causal/2x6x3x5x9x7x4")
    chosen = {"causal_alignment": alignment}
    A = compute(case.program, case.inputs("float64"), case.bindings, "float64", chosen)["A"]
    assert np.array_equal(A > 0, np.broadcast_to(np.tri(5, 9, further, dtype=bool), A.shape))


def test_every_choice_has_a_port() -> None:
    others = {(c.name, option) for c in CONVENTIONS.values() for option in c.options[1:]}
    assert others == set(PORTS)
    assert {c.name: c.default for c in CONVENTIONS.values()} == DEFAULT_CONVENTIONS
    assert SDPA in forward_profiles()
