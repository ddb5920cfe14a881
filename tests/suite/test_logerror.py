"""The softmax rule: every constant is needed, and hopeless or irrelevant errors do no harm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import softmax_bound
from qkvac.spec.bounds.rounding import bounds
from qkvac.spec.grammar.equations import Program, parse
from qkvac.tests.suite import evaluators
from qkvac.tests.suite.evaluators import Array
from qkvac.tests.suite.ratios import (
    SINGLE,
    UNIT,
    ratio,
    sizes,
)

SOFTMAX = parse("S[n, k]\nA[n, k] = softmax(S, axis=1)")


def through_softmax(
    scores: Array, computed: Array, a: Arithmetic, program: Program = SOFTMAX
) -> float:
    wide = scores.astype(np.longdouble)
    true = np.exp(wide - wide.max(-1, keepdims=True))
    true /= true.sum(-1, keepdims=True)
    n, k = scores.shape
    limits = bounds(program, {"S": scores}, {"n": n, "k": k}, a)["A"]
    return ratio(np.abs(computed.astype(np.longdouble) - true).astype(np.float64), limits)


def worst_softmax(scores: Array, slip: float) -> Array:
    """float32 softmax that errs upwards in its last key and downwards in all others."""
    sign = np.where(np.arange(scores.shape[-1]) == scores.shape[-1] - 1, 1.0, -1.0)
    depth = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    # Three roundings of the argument, the exponential itself, then those of the quotient.
    terms = np.exp(depth * (1 - slip * 3 * UNIT * sign)) * (1 + slip * 6 * UNIT * sign)
    weights = terms / terms.sum(-1, keepdims=True)
    return np.asarray(weights * (1 + slip * 2 * UNIT * sign))


@pytest.mark.parametrize(("constant", "depth"), [("ARGUMENT", -64.0), ("EXPONENTIAL", 0.0)])
def test_no_constant_of_the_softmax_can_be_dropped(
    constant: str, depth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Exact scores, so that nothing but the softmax itself rounds.
    scores = np.array([[0.0, 0.0, 0.0, depth]], np.float32)
    computed = worst_softmax(scores, slip=0.95)
    assert 0.5 < through_softmax(scores, computed, SINGLE) <= 1
    monkeypatch.setattr(softmax_bound, constant, 0)
    assert through_softmax(scores, computed, SINGLE) > 1


def online(scores: Array, slip: float) -> Array:
    """Weights of an online softmax with blocks of 1 whose rescaling errs in one direction."""
    total, top = np.zeros(len(scores)), np.full(len(scores), -np.inf)
    for column in scores.T.astype(np.float64):
        new = np.maximum(top, column)
        total = total * np.exp(top - new) * (1 - slip * 8 * UNIT) + np.exp(column - new)
        top = new
    return np.asarray(np.exp(scores - top[:, None]) / total[:, None])


def test_rescaling_of_blocks_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.tile(np.ldexp(np.arange(128.0, dtype=np.float32), -10), (2, 1))
    computed, blocked = online(scores, 0.9), replace(SINGLE, blocks=1)
    assert 0.1 < through_softmax(scores, computed, blocked) <= 1
    assert through_softmax(scores, computed, SINGLE) > 1


def test_a_hopeless_key_leaves_its_row_alone() -> None:
    """One finfo.min in an additive mask has an error beyond all bounds, and no weight at all."""
    program = parse("S[n, k]\nM[n, k]\nA[n, k] = softmax(S + M, axis=1, where=finite(M))")
    scores, mask = np.zeros((3, 5), np.float32), np.zeros((3, 5), np.float32)
    mask[0, 2] = mask[2, :] = np.finfo(np.float32).min
    mask[1, 3] = -np.inf
    limits = bounds(program, {"S": scores, "M": mask}, {"n": 3, "k": 5}, SINGLE)["A"]
    assert limits[0].max() < 1e-5
    assert limits[1].max() < 1e-5
    assert limits[1, 3] == 0
    assert limits[2].max() <= 1


def test_equal_values_make_the_weights_irrelevant() -> None:
    """Where every V is the same, C does not depend on A: errors of A must not count."""
    given = evaluators.inputs("hot 30", "float32", (33, 20, 7), seed=1)
    given["V"] = np.full((33, 7), 3, np.float32)
    program = parse(
        "X[n, d]\nWq[d, c]\nWk[d, c]\nV[n, c]\nQ[n, c] = X @ Wq\nK[n, c] = X @ Wk\n"
        "A[n, n] = softmax(Q @ K.T / sqrt(c), axis=1)\nC[n, c] = A @ V"
    )
    limits = bounds(program, given, sizes(given), SINGLE)
    assert limits["A"].max() > 1e-3
    assert limits["C"].max() < 3 * 100 * UNIT
