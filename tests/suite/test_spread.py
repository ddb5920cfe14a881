"""The advisory deviation: calibrated on correct code, and telling coarse formats apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.rounding import bounds
from qkvac.spec.bounds.spread import Precision, effective_bits, spread
from qkvac.spec.formats import FORMATS, dtype
from qkvac.spec.grammar.equations import parse
from qkvac.tests.suite import evaluators
from qkvac.tests.suite.evaluators import VARIANTS, Array, Variant
from qkvac.tests.suite.ratios import PLAIN, model, sizes

GENERIC = ("normal", "hot 6", "shift 30")
TYPICAL = tuple(v for v in VARIANTS if not v.rough and v.order != "worst")
"""Orders and exponentials as libraries have them, not chosen against the model."""


def deviations(name: str, family: str, variant: Variant) -> dict[str, Array]:
    given = evaluators.inputs(family, name, (40, 24, 7), seed=3)
    sigma = spread(PLAIN, given, sizes(given), model(name, variant))
    outputs = evaluators.attention(given, name, variant)
    truth = evaluators.truth(given)
    return {quantity: true.error(outputs[quantity]) / sigma[quantity]
            for quantity, true in truth.items()}  # fmt: skip


@pytest.mark.parametrize("family", GENERIC)
@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_correct_code_is_rarely_suspicious(name: str, family: str) -> None:
    for variant in TYPICAL[::3]:
        for quantity, z in deviations(name, family, variant).items():
            assert z.max() < 8, (variant.name, quantity)
            assert np.sqrt(np.mean(z**2)) < 2, (variant.name, quantity)


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_deviation_is_of_the_size_of_the_errors(name: str) -> None:
    """Not merely above them: the root mean square of z is between ⅛ and 1 in plain code."""
    for quantity, z in deviations(name, "normal", VARIANTS[0]).items():
        assert 0.125 < np.sqrt(np.mean(z**2)) < 1, quantity


def test_deviation_resolves_finer_than_the_bound() -> None:
    given = evaluators.inputs("normal", "float32", (64, 64, 32), seed=1)
    a = Arithmetic.for_dtype("float32")
    sigma, limits = (f(PLAIN, given, sizes(given), a) for f in (spread, bounds))
    assert np.median(limits["C"] / sigma["C"]) > 30
    assert all((sigma[name] < limits[name]).all() for name in limits)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_projection_may_be_stored_before_its_bias_is_added(name: str) -> None:
    """Where the two cancel, its rounding is most of the error."""
    draw, stored, a = (
        np.random.default_rng(4).standard_normal,
        dtype(name),
        Arithmetic.for_dtype(name),
    )
    shapes = {"X": (40, 24), "W": (7, 24), "b": (7,)}
    given = {key: draw(shape).astype(stored) for key, shape in shapes.items()}
    program = parse("X[n, d]\nW[c, d]\nb[c]\nQ[n, c] = X @ W.T + b\n")
    sigma = spread(program, given, {"n": 40, "d": 24, "c": 7}, a)["Q"]
    X, W, b = (x.astype(np.float64) for x in given.values())
    projection = (X @ W.T).astype(stored).astype(np.float64)
    for Q in (X @ W.T + b, projection + b):
        z = (Q.astype(stored).astype(np.float64) - (X @ W.T + b)) / sigma
        assert np.abs(z).max() < 8
        assert 0.25 < np.sqrt(np.mean(z**2)) < 1


def test_one_wrong_weight_is_suspicious() -> None:
    given = evaluators.inputs("normal", "float32", (40, 24, 7), seed=3)
    a = Arithmetic.for_dtype("float32")
    sigma, truth = spread(PLAIN, given, sizes(given), a), evaluators.truth(given)
    weights = evaluators.attention(given, "float32", VARIANTS[0])["A"].copy()
    assert (truth["A"].error(weights) / sigma["A"]).max() < 8
    weights[3, 4] *= np.float32(1 + 2e-5)
    assert (truth["A"].error(weights) / sigma["A"]).max() > 8


@pytest.mark.parametrize("power", [-600, 0, 400])
def test_deviation_stays_in_range(power: int) -> None:
    given = evaluators.inputs("normal", "float64", (9, 5, 3), seed=1)
    given["Wv"] = np.ldexp(given["Wv"], power)
    sigma = spread(PLAIN, given, sizes(given), Arithmetic.for_dtype("float64"))
    assert all(np.isfinite(s).all() and (s > 0).all() for s in sigma.values())


# --- effective precision -------------------------------------------------------------------


def cut(array: Array, bits: int) -> Array:
    """Rounded to `bits` significand bits, in the array's own format."""
    fraction, exponent = np.frexp(array.astype(np.float64))
    rounded = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return np.asarray(rounded, dtype=array.dtype)


def coarse_factors(bits: int) -> Callable[[Array, Array], Array]:
    return lambda x, y: cut(x, bits) @ cut(y, bits)


def coarse_sums(bits: int) -> Callable[[Array, Array], Array]:
    def product(x: Array, y: Array) -> Array:
        total = np.zeros((len(x), y.shape[1]), x.dtype)
        for k in range(x.shape[1]):
            total = cut(total + cut(x[:, k : k + 1] * y[k : k + 1], bits), bits)
        return total

    return product


def estimate(
    name: str, product: Callable[[Array, Array], Array], shape: tuple[int, int, int]
) -> dict[str, Precision]:
    given = evaluators.inputs("normal", name, shape, seed=2)
    a = Arithmetic.for_dtype(name)
    sigma, truth = spread(PLAIN, given, sizes(given), a), evaluators.truth(given)
    q, k, v = (product(given["X"], given[w]) for w in ("Wq", "Wk", "Wv"))
    scores = product(q, k.T)
    terms = np.exp((scores - scores.max(-1, keepdims=True)) / np.sqrt(q.dtype.type(shape[2])))
    weights = terms / terms.sum(-1, keepdims=True)
    outputs = {"Q": q, "Ω": scores, "C": product(weights, v)}
    return {quantity: effective_bits(truth[quantity].error(output), sigma[quantity], a)
            for quantity, output in outputs.items()}  # fmt: skip


@pytest.mark.parametrize("shape", [(40, 24, 7), (48, 96, 32)])
@pytest.mark.parametrize(
    ("name", "product", "expected"),
    [
        ("float32", coarse_factors(11), "tfloat32"),
        ("float32", coarse_factors(8), "bfloat16"),
        ("float32", coarse_sums(8), "bfloat16"),
        ("float64", coarse_factors(24), "float32"),
        ("float64", coarse_sums(24), "float32"),
        ("float32", np.matmul, None),
        ("float64", np.matmul, None),
    ],
)
def test_coarse_arithmetic_is_recognised(
    name: str,
    product: Callable[[Array, Array], Array],
    expected: str | None,
    shape: tuple[int, int, int],
) -> None:
    for quantity, found in estimate(name, product, shape).items():
        assert found.resembles == expected, (quantity, found)
        if expected is None:
            assert abs(found.bits - FORMATS[name].precision) < 3
        else:
            assert abs(found.bits - FORMATS[expected].precision) < 4


def test_one_wrong_entry_is_no_coarse_format() -> None:
    given = evaluators.inputs("normal", "float32", (40, 24, 7), seed=3)
    a = Arithmetic.for_dtype("float32")
    sigma, truth = spread(PLAIN, given, sizes(given), a), evaluators.truth(given)
    output = evaluators.attention(given, "float32", VARIANTS[0])["C"].copy()
    output[0, 0] += 1
    found = effective_bits(truth["C"].error(output), sigma["C"], a)
    assert found.resembles is None
    assert found.bits > 20


def test_results_without_error_have_full_precision() -> None:
    a = Arithmetic.for_dtype("float32")
    assert effective_bits(np.zeros(4), np.ones(4), a) == Precision(53.0, None)
    assert effective_bits(np.zeros(4), np.zeros(4), a) == Precision(24.0, None)


def test_declared_factors_are_no_surprise() -> None:
    given = evaluators.inputs("normal", "float32", (40, 24, 7), seed=2)
    declared = replace(Arithmetic.for_dtype("float32"), operands="bfloat16")
    sigma, truth = spread(PLAIN, given, sizes(given), declared), evaluators.truth(given)
    output = coarse_factors(8)(given["X"], given["Wq"]).astype(dtype("float32"))
    found = effective_bits(truth["Q"].error(output), sigma["Q"], declared)
    assert found.resembles is None
    assert abs(found.bits - 8) < 1.5
