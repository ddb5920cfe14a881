"""Sums stay open, in the declared formats, at the ends of their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import rounding
from qkvac.spec.bounds.rounding import Rounding, bounds, magnitude
from qkvac.spec.formats import FORMATS, dtype
from qkvac.spec.grammar.equations import parse
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.registry import forward_profiles
from qkvac.tests.suite import evaluators
from qkvac.tests.suite.evaluators import VARIANTS, Array
from qkvac.tests.suite.ratios import (
    CAUSAL,
    PLAIN,
    SINGLE,
    UNIT,
    accumulated,
    model,
    ratio,
    ratios,
    sizes,
)

PRODUCT = parse("X[n, k]\nW[k, m]\nY[n, m] = X @ W")


# --- sums stay open ------------------------------------------------------------------------


def fits(text: str, operands: Mapping[str, Array], target: str, computed: Array, a: Arithmetic,
         axes: Mapping[str, int], exact: Array) -> float:  # fmt: skip
    limits = bounds(parse(text), operands, axes, a)[target]
    return ratio(np.abs(computed.astype(np.float64) - exact.astype(np.float64)), limits)


def lost(shape: tuple[int, ...], first: tuple[int, ...]) -> Array:
    """Terms just below u, but for 1 at index `first`, which is added first and swallows them."""
    terms = np.full(shape, 0.999 * UNIT, np.float32)
    terms[first] = 1
    return terms


def test_bias_first() -> None:
    """The bias starts the accumulation: the product's terms are lost in it one by one."""
    k = 200
    x, w = np.full((1, k), 0.999 * UNIT, np.float32), np.ones((k, 1), np.float32)
    b = np.ones(1, np.float32)
    computed = accumulated(np.concatenate([b, x[0]])).reshape(1, 1)
    exact = np.array([[1 + k * float(x[0, 0])]])
    axes = {"n": 1, "k": k, "m": 1}
    text = "X[n, k]\nW[k, m]\nb[m]\nY[n, m] = X @ W + b"
    share = fits(text, {"X": x, "W": w, "b": b}, "Y", computed, SINGLE, axes, exact)
    assert 0.98 < share <= 1
    closed = k * UNIT * np.abs(x) @ np.abs(w) + UNIT * exact
    assert np.abs(computed - exact) > 100 * closed


def test_weight_gradient_over_the_flattened_batch() -> None:
    batch, n = 8, 32
    x, g = lost((batch, n, 1), (0, 0, 0)), np.ones((batch, n, 1), np.float32)
    computed = accumulated(x.ravel()).reshape(1, 1)
    exact = x.astype(np.float64).sum().reshape(1, 1)
    text = "X[n, d]\nG[n, c]\nW[d, c]\ndW[d, c] = sum_to(X.T @ G, W)"
    axes = {"n": n, "d": 1, "c": 1}
    operands = {"X": x, "G": g, "W": np.zeros((1, 1), np.float32)}
    share = fits(text, operands, "dW", computed, SINGLE, axes, exact)
    assert 0.98 < share <= 1


def test_input_gradient_is_one_sum_of_three_products() -> None:
    c = 64
    text = (
        "dQ[n, c]\ndK[n, c]\ndV[n, c]\nWq[d, c]\nWk[d, c]\nWv[d, c]\n"
        "dX[n, d] = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T"
    )
    terms, ones = lost((3, 1, c), (0, 0, 0)), np.ones((1, c), np.float32)
    operands = dict(zip(("dQ", "dK", "dV"), terms, strict=True))
    operands |= dict.fromkeys(("Wq", "Wk", "Wv"), ones)
    computed = accumulated(terms.ravel()).reshape(1, 1)
    exact = terms.astype(np.float64).sum().reshape(1, 1)
    share = fits(text, operands, "dX", computed, SINGLE, {"n": 1, "c": c, "d": 1}, exact)
    assert 0.98 < share <= 1


def test_key_gradient_of_grouped_heads_is_one_sum_over_the_group() -> None:
    group, length = 4, 32
    text = "dΩ[h, L, S]\nQ[h, L, d]\nK[g, S, d]\ndK[g, S, d] = sum_to(dΩ.T @ Q, K)"
    scores = lost((2 * group, length, 1), (0, 0, 0))
    scores[group, 0, 0] = 1
    operands = {
        "dΩ": scores,
        "Q": np.ones((2 * group, length, 1), np.float32),
        "K": np.zeros((2, 1, 1), np.float32),
    }
    heads = scores.reshape(2, -1)
    computed = np.array([accumulated(head) for head in heads]).reshape(2, 1, 1)
    exact = heads.astype(np.float64).sum(1).reshape(2, 1, 1)
    axes = {"h": 2 * group, "L": length, "S": 1, "g": 2, "d": 1}
    share = fits(text, operands, "dK", computed, SINGLE, axes, exact)
    assert 0.98 < share <= 1


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("order", ["012", "201", "120"])
def test_parts_may_be_stored_in_any_order(name: str, order: str) -> None:
    """In low precision each product, and each partial sum, may be rounded to storage."""
    kind, rng, c = dtype(name), np.random.default_rng(5), 5
    text = (
        "dQ[n, c]\ndK[n, c]\ndV[n, c]\nWq[d, c]\nWk[d, c]\nWv[d, c]\n"
        "dX[n, d] = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T"
    )
    left = [rng.standard_normal((40, c)).astype(kind) for _ in range(3)]
    right = [rng.standard_normal((30, c)).astype(kind) for _ in range(3)]
    # The first two products nearly cancel: what was rounded on the way is all that is left.
    right[1], left[1] = right[0], (-left[0].astype(np.float64) * 1.01).astype(kind)
    pairs = list(zip(left, right, strict=True))
    exact = np.sum([x.astype(np.float64) @ y.astype(np.float64).T for x, y in pairs], axis=0)
    parts = [(x.astype(np.float32) @ y.astype(np.float32).T).astype(kind) for x, y in pairs]
    first, second, third = (parts[int(i)] for i in order)
    computed = (first + second) + third
    operands = dict(zip(("dQ", "dK", "dV", "Wq", "Wk", "Wv"), [*left, *right], strict=True))
    a = Arithmetic.for_dtype(name)
    share = fits(text, operands, "dX", computed, a, {"n": 40, "c": c, "d": 30}, exact)
    assert share <= 1
    once = a.u_s * np.abs(exact) + 3 * c * a.u_a * 100
    assert ratio(np.abs(computed.astype(np.float64) - exact), once) > 1


def test_embeddings_are_rounded_once() -> None:
    """Stored addends need no storing: the bound is that of one addition, not of three roundings."""
    text = forward_profiles()["embedding"].texts["plain"]
    rng = np.random.default_rng(1)
    table, positions = (rng.standard_normal((9, 40)).astype(dtype("bfloat16")) for _ in range(2))
    tokens = np.array([3, 1, 4, 1, 5])
    operands = {"E": table, "P": positions, "tokens": tokens}
    axes = {"t": 9, "p": 9, "n": 5, "d": 40}
    a = Arithmetic.for_dtype("bfloat16")
    limits = bounds(parse(text), operands, axes, a)["X"]
    exact = table[tokens].astype(np.float64) + positions[:5].astype(np.float64)
    assert (limits >= a.u_s * np.abs(exact)).all()
    size = np.abs(table[tokens].astype(np.float64)) + np.abs(positions[:5].astype(np.float64))
    assert (limits <= (a.u_s * np.abs(exact) + 2 * a.u_a * size) * 1.01).all()
    computed = (table[tokens] + positions[:5]).astype(np.float64)
    assert 0.95 < ratio(np.abs(computed - exact), limits) <= 1


def test_a_scale_is_four_roundings_of_every_term() -> None:
    """√s into both factors: four roundings that a cancelling sum does not forgive."""
    algebra = Rounding(SINGLE)
    x = algebra.operand(np.array([[2.0, -2.0]], np.float32))
    y = algebra.operand(np.array([[1.0], [1.0]], np.float32))
    algebra.report("Y", algebra.scale(algebra.matmul(x, y), Scalar.of(3).sqrt()))
    limit = algebra.bounds["Y"].item()
    assert limit == pytest.approx((4 + 2) * UNIT * 4 * sqrt(3), rel=1e-5)


# --- declared formats, underflow, values out of range --------------------------------------


def test_tensor_cores_must_be_declared() -> None:
    """Factors cut to 11 bits exceed the float32 bound and stay inside the declared one."""
    given = evaluators.inputs("normal", "float32", (33, 20, 7), seed=1)

    def cut(array: Array) -> Array:
        bits = array.view(np.uint32).astype(np.uint64) + (1 << 12)
        return (bits.astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    truth = evaluators.truth(given)["Q"]
    computed = cut(given["X"]).astype(np.float64) @ cut(given["Wq"]).astype(np.float64)
    error = truth.error(computed.astype(np.float32))
    plain = bounds(PLAIN, given, sizes(given), SINGLE)["Q"]
    declared = bounds(PLAIN, given, sizes(given), replace(SINGLE, operands="tfloat32"))["Q"]
    assert ratio(error, plain) > 10
    assert 0.2 < ratio(error, declared) <= 1


@pytest.mark.parametrize("flushes", [False, True])
def test_flushed_subnormals_must_be_declared(flushes: bool) -> None:
    tiny = np.float32(FORMATS["float32"].tiny)
    x = np.array([[1.5, 1.25, 0.75]], np.float32) * tiny
    w = np.array([[0.5], [0.75], [1.0]], np.float32)
    # Subnormal inputs and products all become 0.
    computed = np.zeros((1, 1), np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    limits = bounds(PRODUCT, {"X": x, "W": w}, {"n": 1, "k": 3, "m": 1},
                    replace(SINGLE, flushes=flushes))["Y"]  # fmt: skip
    assert (ratio(np.abs(computed - exact), limits) <= 1) == flushes


@pytest.mark.parametrize("truncates", [False, True])
def test_results_that_are_cut_off_must_be_declared(truncates: bool) -> None:
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(dtype("bfloat16")) for shape in ((40, 6), (6, 40)))
    wide = x.astype(np.float32) @ w.astype(np.float32)
    computed = (wide.view(np.uint32) & 0xFFFF0000).view(np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    declared = Arithmetic.for_dtype("bfloat16", {"truncates": truncates})
    limits = bounds(PRODUCT, {"X": x, "W": w}, {"n": 40, "k": 6, "m": 40}, declared)["Y"]
    found = ratio(np.abs(computed - exact), limits)
    assert (found <= 1) == truncates
    assert found > 0.9


def test_a_scaled_query_may_underflow() -> None:
    """In float16, small queries lose bits to the scale that the scores alone would keep."""
    kind, rng = dtype("float16"), np.random.default_rng(1)
    q = (rng.standard_normal((20, 7)) * 2.0**-17).astype(kind)
    k = (rng.standard_normal((20, 7)) * 2.0**9).astype(kind)
    scaled = (q.astype(np.float32) / np.float32(sqrt(7))).astype(kind).astype(np.float32)
    computed = (scaled @ k.astype(np.float32).T).astype(np.float64)
    exact = q.astype(np.float64) @ k.astype(np.float64).T / sqrt(7)
    text = "Q[n, c]\nK[n, c]\nS[n, n] = Q @ K.T / sqrt(c)"
    a = Arithmetic.for_dtype("float16")
    limits = bounds(parse(text), {"Q": q, "K": k}, {"n": 20, "c": 7}, a)["S"]
    assert 0.02 < ratio(np.abs(computed - exact), limits) <= 1
    error = 6 * a.u_s * np.abs(q).astype(np.float64) @ np.abs(k).astype(np.float64).T / sqrt(7)
    assert ratio(np.abs(computed - exact), error) > 1


@pytest.mark.parametrize("power", [-1060, -600, -530, 300, 480])
def test_nothing_underflows_or_overflows_in_the_bound_itself(power: int) -> None:
    given = evaluators.inputs("normal", "float64", (9, 5, 3), seed=1)
    given["X"] = np.ldexp(given["X"], power)
    truth = evaluators.truth(given)
    for variant in VARIANTS[:3]:
        outputs = evaluators.attention(given, "float64", variant)
        limits = bounds(PLAIN, given, sizes(given), model("float64", variant))
        assert all(np.all(limit > 0) for limit in limits.values())
        found = {
            name: value
            for name, value in ratios(truth, outputs, limits).items()
            if np.isfinite(outputs[name]).all()
        }
        assert found
        assert max(found.values()) <= 1, found


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_values_out_of_range_have_infinite_bounds(value: float) -> None:
    given = evaluators.inputs("normal", "float32", (9, 5, 3), seed=1)
    given["X"][2, 1] = value
    limits = bounds(PLAIN, given, sizes(given), SINGLE)
    assert np.isinf(limits["Q"][2]).all()
    assert np.isfinite(np.delete(limits["Q"], 2, 0)).all()
    assert not any(np.isnan(limit).any() for limit in limits.values())


def test_sums_of_zeros_are_exact() -> None:
    given = {name: np.zeros_like(array) for name, array in
             evaluators.inputs("normal", "float32", (6, 3, 2)).items()}  # fmt: skip
    limits = bounds(PLAIN, given, sizes(given), SINGLE)
    assert not any(limits[name].any() for name in ("Q", "K", "V", "Ω", "C"))
    assert not magnitude(PLAIN, given, sizes(given))["Ω"].any()


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (1, 1, 1)])
@pytest.mark.filterwarnings("error")
def test_empty_axes(shape: tuple[int, int, int]) -> None:
    n, d, c = shape
    given = {"X": np.zeros((n, d)), **dict.fromkeys(("Wq", "Wk", "Wv"), np.zeros((d, c)))}
    for program in (PLAIN, CAUSAL):
        limits = bounds(program, given, sizes(given), SINGLE)
        assert limits["A"].shape == (n, n)
        assert limits["C"].shape == (n, c)
        assert not limits["C"].any()


def test_magnitude_is_the_sum_of_absolute_terms() -> None:
    operands = {"X": np.array([[3.0, -3.0]]), "W": np.array([[2.0], [2.0]])}
    assert magnitude(PRODUCT, operands, {"n": 1, "k": 2, "m": 1})["Y"].item() == pytest.approx(12)


def test_bounds_hold_for_every_profile_under_a_batch() -> None:
    """The other profiles' texts: shapes, and a float32 evaluation by NumPy inside the bound."""
    program = forward_profiles()["attention_linear_layers"].program("bias")
    rng = np.random.default_rng(3)
    axes = {"n": 7, "d": 5, "c": 3}
    shapes = {"X": (2, 7, 5), **dict.fromkeys(("Wq", "Wk", "Wv"), (3, 5)),
              **dict.fromkeys(("bq", "bk", "bv"), (3,))}  # fmt: skip
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    def evaluate(kind: Any) -> dict[str, Array]:
        g = {name: array.astype(kind) for name, array in given.items()}
        q, k, v = (g["X"] @ g["W" + s].T + g["b" + s] for s in "qkv")
        scores = q @ np.swapaxes(k, -1, -2)
        terms = np.exp(scores / np.sqrt(kind(3)))
        weights = terms / terms.sum(-1, keepdims=True)
        return {"Q": q, "K": k, "V": v, "Ω": scores, "A": weights, "C": weights @ v}

    limits = bounds(program, given, axes, SINGLE)
    exact, computed = evaluate(np.longdouble), evaluate(np.float32)
    for name, limit in limits.items():
        error = np.abs(computed[name] - exact[name]).astype(np.float64)
        assert 0 < ratio(error, limit) <= 1


def test_inflation_covers_the_bounds_own_rounding() -> None:
    assert 1 + 2.0**30 * FORMATS["float64"].unit < rounding.INFLATION
