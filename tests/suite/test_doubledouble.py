"""Double-double arithmetic: its exact steps exactly, its radii against Arb."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flint import arb, arb_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvac.spec.enclosures import double_double
from qkvac.spec.enclosures.arb_balls import BallAlgebra, working_precision
from qkvac.spec.enclosures.double_double import DoubleDoubleAlgebra, product
from qkvac.spec.enclosures.double_double_exp import EXP_ERROR, LOWEST, exponential, scaled
from qkvac.spec.enclosures.enclosure import certify
from qkvac.spec.enclosures.error_free import fast_two_sum, two_product, two_sum
from qkvac.spec.grammar import equations
from qkvac.spec.grammar.rearrangements import Array
from qkvac.spec.registry import forward_profiles

ATTENTION = forward_profiles()["attention"].program()
doubles = st.floats(-1e150, 1e150).filter(lambda x: x == 0 or abs(x) > 1e-140)


@settings(max_examples=300, deadline=None)
@given(x=doubles, y=doubles)
def test_transformations_are_free_of_error(x: float, y: float) -> None:
    left, right = np.array([x]), np.array([y])
    s, e = two_sum(left, right)
    assert Fraction(s[0]) + Fraction(e[0]) == Fraction(x) + Fraction(y)
    if abs(x) >= abs(y):
        assert fast_two_sum(left, right) == (s, e)
    p, e = two_product(left, right)
    assert Fraction(p[0]) + Fraction(e[0]) == Fraction(x) * Fraction(y)


def relative_errors(hi: Any, lo: Any) -> Iterator[float]:
    head, tail, power = exponential(hi, lo)
    with working_precision(200):
        for x, rest, h, t, k in zip(
            *map(np.ndarray.tolist, (hi, lo, head, tail, power)), strict=True
        ):
            found = (arb(h) + t) * arb(2) ** k
            yield float(abs(found / (arb(x) + rest).exp() - 1).abs_upper())


@pytest.mark.parametrize("reach", [1e-12, 1e-3, 1.0, 30.0, 799.0])
def test_the_exponential_keeps_its_promise(reach: float) -> None:
    rng = np.random.default_rng(int(reach))
    hi = -reach * rng.random(3000)
    lo = hi * rng.uniform(-1, 1, hi.size) * 2.0**-53
    assert max(relative_errors(hi, lo)) < EXP_ERROR / 4


def test_the_exponential_keeps_its_promise_where_it_is_hardest() -> None:
    """Halfway between table entries, at them, at powers of two, and at both ends."""
    steps = -np.arange(0.0, 4000.0, 7.0) * (np.log(2.0) / 1024)
    hi = np.concatenate(
        [steps, steps + np.log(2.0) / 2048, -(2.0 ** -np.arange(1070.0)), [LOWEST, 0.0]]
    )
    hi = np.minimum(hi, 0.0)
    for sign in (-1.0, 0.0, 1.0):
        assert max(relative_errors(hi, sign * np.abs(hi) * 2.0**-53)) < EXP_ERROR / 4


@settings(max_examples=200, deadline=None)
@given(
    head=st.floats(1.0, 2.0), tail=st.floats(-(2.0**-53), 2.0**-53), power=st.integers(-1200, 10)
)
def test_scaling_a_pair_loses_at_most_half_the_smallest_double(
    head: float, tail: float, power: int
) -> None:
    hi, lo = scaled(np.array([head]), np.array([tail]), np.array([power], np.int32))
    true = (Fraction(head) + Fraction(tail)) * Fraction(2) ** power
    assert abs(Fraction(hi[0]) + Fraction(lo[0]) - true) <= Fraction(2) ** -1075


def operands(
    rng: np.random.Generator, rows: int, inner: int, columns: int, family: str
) -> tuple[Array, Array]:
    x, y = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    if family == "columns":  # graded along the inner axis, against each other
        grade = 2.0 ** rng.integers(-40, 41, inner)
        x, y = x * grade, y / grade[:, None]
    elif family == "entries":
        x, y = (a * 2.0 ** rng.integers(-30, 31, a.shape) for a in (x, y))
    elif family == "cancelling":
        half = inner // 2
        x[:, half : 2 * half], y[half : 2 * half] = x[:, :half], -y[:half] * (1 + 2.0**-45)
    elif family == "largest":  # every slice as full as it can be
        x, y = np.full(x.shape, np.nextafter(1.0, 0.0)), np.full(y.shape, -np.nextafter(1.0, 0.0))
    elif family == "zeros":
        x[::2], y[:, ::2], x[:, inner // 2] = 0.0, 0.0, 0.0
    elif family == "tiny":
        x, y = x * 2.0**-500, y * 2.0**-560
    elif family == "huge":
        x, y = x * 2.0**480, y * 2.0**500
    return x, y


def in_arb(x: Any, y: Any) -> list[arb]:
    left, right = (arb_mat(a.shape[0], a.shape[1], a.ravel().tolist()) for a in (x, y))
    entries: list[arb] = (left * right).entries()
    return entries


def outside(hi: Any, lo: Any, radius: Any, true: Any) -> int:
    """How many entries of hi + lo ± radius do not contain the true value."""
    flat = zip(
        *(np.broadcast_to(a, hi.shape).ravel().tolist() for a in (hi, lo, radius)),
        true,
        strict=True,
    )
    return sum(not bool(abs(t - h - low) <= r) for h, low, r, t in flat)


FAMILIES = ("normal", "columns", "entries", "cancelling", "largest", "zeros", "tiny", "huge")


@pytest.mark.parametrize("slices", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("inner", [1, 2, 7, 64, 777])
def test_products_lie_inside(slices: int, family: str, inner: int) -> None:
    x, y = operands(np.random.default_rng(inner), 4, inner, 3, family)
    with working_precision(3000), np.errstate(all="ignore"):
        hi, lo, radius = product(x, None, y, None, slices)
        assert outside(hi, lo, radius, in_arb(x, y)) == 0
        assert np.isfinite(radius).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("inner", [64, 777])
def test_products_are_sharp_beside_what_float64_is_allowed(family: str, inner: int) -> None:
    x, y = operands(np.random.default_rng(inner), 4, inner, 3, family)
    allowed = inner * 2.0**-53 * (np.abs(x) @ np.abs(y)) + (inner + 1) * 2.0**-1074
    _, _, radius = product(x, None, y, None, 4 if family == "entries" else 2)
    assert (radius <= np.maximum(allowed * 2.0**-10, 4 * 2.0**-1074)).all()


def test_slices_that_are_one_bit_too_wide_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slices' width is what makes their products exact; the tests above depend on it."""
    x, y = operands(np.random.default_rng(0), 4, 777, 3, "normal")
    monkeypatch.setattr(math, "ceil", lambda _: -8)
    with working_precision(3000):
        hi, lo, radius = product(x, None, y, None, 2)
        assert outside(hi, lo, radius, in_arb(x, y)) > 0


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32), keys=st.integers(1, 40), spread=st.sampled_from([1, 30, 900, 1e15])
)
def test_softmax_lies_inside(seed: int, keys: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    hi = rng.standard_normal((3, keys)) * spread
    lo = hi * rng.uniform(-1, 1, hi.shape) * 2.0**-53
    radius = np.abs(hi) * 2.0**-90
    # Any point of the operands will do, so take the ends of their radii.
    ends = rng.choice([-1, 0, 1], hi.shape) * 0.99
    weights = DoubleDoubleAlgebra().softmax(double_double.DoubleDouble(hi, lo, radius), -1, None)
    with working_precision(400):
        for i in range(3):
            row = [
                (arb(h) + low + arb(e) * r).exp()
                for h, low, e, r in zip(
                    *map(np.ndarray.tolist, (hi[i], lo[i], ends[i], radius[i])), strict=True
                )
            ]
            true = [value / sum(row, arb(0)) for value in row]
            found, tail, around = (part[i] for part in weights.parts)
            assert outside(found, tail, around, true) == 0


def attention(
    n: int, d: int, c: int, seed: int = 0, family: str = "normal"
) -> tuple[dict[str, Array], dict[str, int]]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    weights = [rng.standard_normal((d, c)) / np.sqrt(d) for _ in range(3)]
    if family == "hot":
        weights[0] *= 60.0
    elif family == "columns":
        grade = 2.0 ** rng.integers(-40, 41, d)
        X, weights = X * grade, [w / grade[:, None] for w in weights]
    elif family == "dominated":
        X[n // 3] *= 40.0
    elif family == "tiny":
        weights = [w * 2.0**-300 for w in weights]
    inputs = dict(zip(("X", "Wq", "Wk", "Wv"), (X, *weights), strict=True))
    return inputs, {"n": n, "d": d, "c": c}


@pytest.mark.parametrize("family", ["normal", "hot", "columns", "dominated", "tiny"])
@pytest.mark.parametrize(("n", "d", "c"), [(512, 96, 24), (1024, 40, 17)])
def test_rows_of_long_attention_agree_with_arb(n: int, d: int, c: int, family: str) -> None:
    """Every quantity at a few rows, in both arithmetics; the rows of A need all of K."""
    inputs, sizes = attention(n, d, c, family=family)
    found = certify(ATTENTION, inputs, sizes, "float64")
    rows = np.random.default_rng(5).choice(n, 6, replace=False)
    program = equations.parse(
        forward_profiles()["attention"]
        .texts["plain"]
        .replace("X[n, d]\n", "X[n, d]\nR[m, d]\n")
        .replace("Q[n, c] = X @ Wq", "Q[m, c] = R @ Wq")
        .replace("Ω[n, n]", "Ω[m, n]")
        .replace("A[n, n]", "A[m, n]")
        .replace("C[n, c]", "C[m, c]")
    )
    algebra = BallAlgebra()
    with working_precision(256):
        values = {k: algebra.constant(v) for k, v in {**inputs, "R": inputs["X"][rows]}.items()}
        true = equations.evaluate(program, algebra, values, {**sizes, "m": 6})
        for name, enclosure in found.items():
            hi, lo, radius = (part[rows] for part in enclosure.arrays().values())
            ball = true[name] if name not in "KV" else true[name].rearranged(lambda a: a[rows])
            assert outside(hi, lo, radius, ball.flat) == 0, name


@pytest.mark.parametrize("family", ["normal", "hot", "columns", "dominated"])
def test_long_attention_stays_in_double_double(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the plainest bounds: k·u·Σ|term| of each product, and 6u of each weight."""
    inputs, sizes = attention(512, 96, 24, family=family)
    u, absolute = 2.0**-53, {name: np.abs(x) for name, x in inputs.items()}
    bound = {
        q: 96 * u * absolute["X"] @ absolute[w] for q, w in (("Q", "Wq"), ("K", "Wk"), ("V", "Wv"))
    }
    monkeypatch.setattr("qkvac.spec.enclosures.enclosure.BallAlgebra", None)
    found = certify(ATTENTION, inputs, sizes, "float64", wanted=["Q", "K", "V"], bound=bound)
    assert all(found[name].sharp(limit).all() for name, limit in bound.items())
    program = ATTENTION.restricted(frozenset({"Ω"}), "A")
    scores = inputs["X"] @ inputs["Wq"] @ (inputs["X"] @ inputs["Wk"]).T
    limit = np.full((512, 512), 6 * u)
    weights = certify(program, {"Ω": scores}, sizes, "float64", bound={"A": limit})["A"]
    assert (weights.radius <= 2.0**-10 * 6 * u * np.maximum(weights.hi, 2.0**-1000)).all()


def test_operands_that_overflow_inside_are_left_to_arb() -> None:
    inputs, sizes = attention(512, 3, 2)
    inputs["Wq"] = np.full((3, 2), 2.0**1020)
    found = certify(ATTENTION, inputs, sizes, "float64", wanted=["Q"])["Q"]
    assert found.known.all() or np.isinf(found.hi[~found.known]).all()
