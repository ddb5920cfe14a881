"""Faults of gradients: the equations that they stand for, and how far these are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.case import Case
from qkvac.spec.faults import evaluator
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.operations import gradient_mistakes
from qkvac.spec.faults.rewriting import derived
from qkvac.spec.registry import forward_profiles, gradient_profiles, known_profiles
from qkvac.tests.suite.killing import BACKWARD, examined, home

Array = np.ndarray[Any, Any]

FORMULAS: Final = [fault for fault in FAULTS.values() if fault.of_gradients and fault.structural]

EQUATIONS: Final = {
    ("attention", "plain"): {
        "rank-one-term-missing": "dS[n, n] = A * dA",
        "mean-not-weighted": "dS[n, n] = A * (dA - sum(dA, axis=1) / n)",
        "rank-one-term-over-queries": "dS[n, n] = A * (dA - sum(A * dA, axis=0))",
        "jacobian-diagonal": "dS[n, n] = A * (dA - A * dA)",
        "backward-scale-missing": "dΩ[n, n] = dS",
        "key-gradient-not-transposed": "dK[n, c] = dΩ @ Q",
        "value-gradient-not-transposed": "dV[n, c] = A @ dC",
        "key-path-missing": "dX[n, d] = dV @ Wv.T + dK @ Wk.T * 0 + dQ @ Wq.T",
        "query-key-weights-gradients-swapped": "dWq[d, c] = sum_to(X.T @ dK, Wq)",
        "averaged-over-batch": "dWv[d, c] = mean_to(X.T @ dV, Wv)",
    },
    ("dot_product_attention", "plain"): {
        "keys-detached": "dX[n, d] = A.T @ dC + dΩ @ X + dΩ.T @ X * 0",
    },
    ("scaled_dot_product_attention", "additive-causal-scale"): {
        "mask-gradient-zero": "dmask[h, L, S] = sum_to(dS, mask) * 0",
        "mask-gradient-scaled": "dmask[h, L, S] = sum_to(dΩ, mask)",
        "group-gradients-tiled": "dK[g, S, d] = tiled_to(dΩ.T @ Q, K)",
        "backward-default-scale": "dΩ[h, L, S] = dS / sqrt(d)",
    },
    ("multi_head_attention", "plain"): {
        "cotangent-heads-by-reshape": "dV[n, c] = merge(A.T @ unswapped(split(dC, h)))",
        "output-path-not-transposed": "dC[n, c] = dY @ Wo",
    },
    ("attention_linear_layers", "bias"): {
        "query-key-bias-gradients-swapped": "dbq[c] = sum_to(dK, bq)",
        "query-path-missing": "dX[n, d] = dV @ Wv + dK @ Wk + dQ @ Wq * 0",
    },
    ("embedding", "plain"): {
        "duplicates-overwritten": "dE[t, d] = scatter_last(dX, tokens, E)",
        "position-gradients-shifted": "dP[p, d] = previous_row(pad(dX, P))",
    },
}


@pytest.mark.parametrize(("profile", "variant"), EQUATIONS)
def test_a_rule_yields_the_equation_that_it_stands_for(profile: str, variant: str) -> None:
    declared = gradient_profiles()[f"{profile}_gradients"].program(variant)
    for name, equation in EQUATIONS[profile, variant].items():
        program = FAULTS[name].program(declared)
        assert program is not None
        assert equation in [e.text for e in program.equations], name


def test_the_forward_equations_stay_as_they_are() -> None:
    for fault in FORMULAS:
        for profile in gradient_profiles().values():
            declared = profile.program()
            program = fault.program(declared)
            if program is None:
                continue
            given = forward_profiles()[profile.base].program().tensors
            for old, new in zip(declared.equations, program.equations, strict=True):
                assert old == new or old.target.name not in given, (fault.name, new.text)


def test_they_have_no_place_in_a_forward_computation() -> None:
    for fault in FAULTS.values():
        if fault.of_gradients:
            assert all(fault.program(p.program()) is None for p in forward_profiles().values())
            assert home(fault.name) in BACKWARD


@pytest.mark.parametrize("fault", FORMULAS, ids=lambda fault: fault.name)
def test_a_wrong_gradient_in_float32_stays_within_its_own_bounds(fault: Fault) -> None:
    """So a port that computes it is recognised, however it rounds."""
    profile = home(fault.name)
    suited = [c for c in examined(profile) if "float32" in c.dtypes and fault.concerns(c)]
    for case in [c for c in suited if 0 not in c.sizes.values() and 0 not in c.batch][:3]:
        program = fault.program(case.program)
        assert program is not None
        stored, given = case.inputs("float32"), derived(case.program, program, case.bindings)
        narrow = evaluator.compute(program, stored, given, "float32")
        wide = {n: a if a.dtype.kind in "bi" else a.astype(float) for n, a in stored.items()}
        exact = evaluator.compute(program, wide, given, "float64")
        limits = evaluator.bounds(program, stored, given, Arithmetic.for_dtype("float32"), {})
        for quantity, limit in limits.items():
            with np.errstate(invalid="ignore"):
                error = np.abs(narrow[quantity].astype(np.float64) - exact[quantity])
            assert np.all((error <= limit) | np.isnan(error)), (case.id, quantity)


# --- wrong formulas, differentiated ------------------------------------------------------------


def slope(case: Case, fault: Fault, inputs: Mapping[str, Array], name: str, step: Array) -> float:
    """Δ⟨dC, C⟩ of the faulty forward computation for a small step of one input."""
    base = known_profiles()[case.profile].base
    forward = forward_profiles()[base].program(case.variant or None)
    program = fault.program(forward)
    assert program is not None
    sizes = derived(forward, program, case.bindings)
    last, small = forward_profiles()[base].last, 1e-5
    values = [
        evaluator.compute(
            program, {**inputs, name: inputs[name] + way * small * step}, sizes, "float64"
        )
        for way in (1, -1)
    ]
    change = values[0][last] - values[1][last]
    return float(np.sum(change * inputs[f"d{last}"]) / (2 * small))


@pytest.mark.parametrize(
    "name", ["scale-1/d", "query-with-query", "context-plus-values", "scores-symmetric"]
)
def test_what_is_carried_is_the_derivative_of_the_wrong_formula(name: str) -> None:
    fault = FAULTS[name]
    case = next(c for c in examined("attention_gradients") if c.id.endswith("/normal/6x3x2"))
    inputs = case.inputs("float64")
    program = fault.program(case.program)
    assert program is not None
    found = evaluator.compute(
        program, inputs, derived(case.program, program, case.bindings), "float64"
    )
    draw = np.random.default_rng(0)
    for given in ("X", "Wq", "Wk", "Wv"):
        step = draw.standard_normal(inputs[given].shape)
        expected = slope(case, fault, inputs, given, step)
        assert np.isclose(np.sum(found[f"d{given}"] * step), expected, rtol=1e-6, atol=1e-8)


# --- sums ----------------------------------------------------------------------------------------


def test_sums_that_go_wrong() -> None:
    draw = np.random.default_rng(1)
    x, like = draw.standard_normal((2, 6, 5, 4)), np.zeros((2, 3, 5, 4))
    apart = x.reshape(2, 3, 2, 5, 4)
    assert np.array_equal(gradient_mistakes.first_to(x, like), apart[:, :, 0])
    assert np.array_equal(gradient_mistakes.last_to(x, like), apart[:, :, 1])
    assert np.allclose(gradient_mistakes.mean_to(x, like), apart.mean(2))
    tiled = np.stack([x[:, g] + x[:, g + 3] for g in range(3)], axis=1)
    assert np.allclose(gradient_mistakes.tiled_to(x, like), tiled)
    batch, weights = draw.standard_normal((7, 3, 2)), np.zeros((3, 2))
    assert np.array_equal(gradient_mistakes.first_to(batch, weights), batch[0])
    rough = gradient_mistakes.sum_to_in_bfloat16(batch, weights)
    assert np.allclose(rough, batch.sum(0), rtol=0.1, atol=0.1)
    assert not np.allclose(rough, batch.sum(0), rtol=1e-6)


def test_rows_of_tables_that_go_wrong() -> None:
    rows, tokens, table = np.eye(3, 2) + 1, np.array([1, 0, 1]), np.zeros((4, 2))
    assert gradient_mistakes.scatter_last(rows, tokens, table)[1].tolist() == [1, 1]
    assert gradient_mistakes.scatter_first(rows, tokens, table)[1].tolist() == [2, 1]
    assert gradient_mistakes.scatter_mean(rows, tokens, table)[1].tolist() == [1.5, 1]
    assert gradient_mistakes.scatter_unpadded(rows, tokens, table)[0].tolist() == [0, 0]
    padded = gradient_mistakes.pad_first(np.stack([rows, rows + 1]), np.zeros((5, 2)))
    assert np.array_equal(padded, np.concatenate([rows, np.zeros((2, 2))]))
