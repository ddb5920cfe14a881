"""Rounding bounds: never below the error of correct code, and no larger than they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.rounding import Rounding, bounds
from qkvac.spec.grammar.equations import parse
from qkvac.tests.suite import evaluators
from qkvac.tests.suite.evaluators import UNSHIFTED, VARIANTS, Array, Truth, Variant
from qkvac.tests.suite.ratios import (
    CAUSAL,
    PLAIN,
    SHIFTED,
    SINGLE,
    UNIT,
    accumulated,
    model,
    ratio,
    ratios,
    sizes,
)

DTYPES = ("float64", "float32", "bfloat16", "float16")
SHAPES = ((6, 3, 2), (33, 20, 7), (1, 5, 3), (12, 7, 1))


def settings(
    name: str, family: str, shapes: tuple[tuple[int, int, int], ...] = SHAPES
) -> Iterator[tuple[dict[str, Array], bool, dict[str, Truth]]]:
    """Inputs, mask and truth; the large shape takes turns between masks to save time."""
    turn = (DTYPES.index(name) + evaluators.FAMILIES.index(family)) % 2 == 1
    for shape in shapes:
        for causal in (False, True):
            if shape[0] > 16 and causal != turn:
                continue
            given = evaluators.inputs(family, name, shape, seed=1)
            truth = evaluators.truth(given, causal)
            if evaluators.representable(truth, name):
                yield given, causal, truth


def whole(name: str, family: str, variants: tuple[Variant, ...] = VARIANTS) -> dict[str, float]:
    """Largest error over bound of each quantity, over shapes, masks and variants."""
    largest = dict.fromkeys(("Q", "K", "V", "Ω", "A", "C"), 0.0)
    for given, causal, truth in settings(name, family):
        program = CAUSAL if causal else PLAIN
        for variant in variants:
            limits = bounds(program, given, sizes(given), model(name, variant))
            outputs = evaluators.attention(given, name, variant, causal)
            for quantity, value in ratios(truth, outputs, limits).items():
                largest[quantity] = max(largest[quantity], value)
    return largest


# --- never below the error of correct code -------------------------------------------------


@pytest.mark.parametrize("family", evaluators.FAMILIES)
@pytest.mark.parametrize("name", DTYPES)
def test_correct_variants_stay_inside(name: str, family: str) -> None:
    largest = whole(name, family)
    assert max(largest.values()) <= 1, largest


def test_unshifted_exponentials_stay_inside() -> None:
    largest = whole("float32", "normal", UNSHIFTED)
    assert max(largest.values()) <= 1, largest


def local(
    outputs: Mapping[str, Array], given: Mapping[str, Array], a: Arithmetic, causal: bool
) -> dict[str, float]:
    """Error over bound of each equation on reported operands, by the best reading of them."""
    program = CAUSAL if causal else PLAIN
    readings = {
        "Ω": ("QK",),
        "A": ("QΩ", "QK"),
        "C": ("AV", "QΩV", "QKV"),
    }
    inherited = 2 if a.u_s > a.u_a else 1
    best = {}
    for quantity, choices in readings.items():
        tried = []
        for names in choices:
            operands = {name: outputs[name] for name in names}
            truth = evaluators.truth(operands, causal)[quantity]
            part = program.restricted(frozenset(names), quantity)
            limits = bounds(
                part, operands, sizes(given), a, inherited=dict.fromkeys(names, inherited)
            )
            tried.append(ratio(truth.error(outputs[quantity]), limits[quantity]))
        best[quantity] = min(tried)
    return best


@pytest.mark.parametrize("family", ["normal", "hot 6", "shift 1000", "dominating", "wide"])
@pytest.mark.parametrize("name", DTYPES)
def test_every_equation_holds_on_reported_operands(name: str, family: str) -> None:
    shapes = SHAPES if family == "normal" else SHAPES[:1]
    for given, causal, _ in settings(name, family, shapes):
        for variant in VARIANTS:
            outputs = evaluators.attention(given, name, variant, causal)
            found = local(outputs, given, model(name, variant), causal)
            assert max(found.values()) <= 1, (variant.name, causal, found)


def test_a_reported_operand_may_be_rounded_once_more_than_the_one_used() -> None:
    given = evaluators.inputs("normal", "bfloat16", (33, 20, 7), seed=1)
    fused = next(variant for variant in VARIANTS if variant.name == "wide-fused")
    outputs = evaluators.attention(given, "bfloat16", fused)
    operands = {name: outputs[name] for name in "QK"}
    part, error = PLAIN.restricted(frozenset("QK"), "Ω"), evaluators.truth(operands)["Ω"]
    a = model("bfloat16", fused)
    assert ratio(error.error(outputs["Ω"]), bounds(part, operands, sizes(given), a)["Ω"]) > 1
    once = bounds(part, operands, sizes(given), a, inherited={"Q": 1, "K": 1})["Ω"]
    assert ratio(error.error(outputs["Ω"]), once) <= 1


def test_scores_of_any_size_in_float64() -> None:
    """Where scores are so large that the bound's own float64 centers are uncertain."""
    given = evaluators.inputs("normal", "float64", (12, 5, 3), seed=1)
    for power in (7, 14, 17, 20, 24, 300):
        hot = given | {"Wq": np.ldexp(given["Wq"], power), "Wk": np.ldexp(given["Wk"], power)}
        truth = evaluators.truth(hot)
        for variant in (VARIANTS[0], VARIANTS[4]):
            outputs = evaluators.attention(hot, "float64", variant)
            if all(np.isfinite(value).all() for value in outputs.values()):
                limits = bounds(PLAIN, hot, sizes(hot), model("float64", variant))
                assert max(ratios(truth, outputs, limits).values()) <= 1


# --- no larger than they must be -----------------------------------------------------------

PRODUCT = parse("X[n, k]\nW[k, m]\nY[n, m] = X @ W")


def attaining(k: int) -> tuple[dict[str, Array], float]:
    """1 and k − 1 terms just below u, each lost when added one after another: (operands, error)."""
    terms = np.full(k, 0.999 * UNIT, np.float32)
    terms[0] = 1
    operands = {"X": terms[None, :], "W": np.ones((k, 1), np.float32)}
    return operands, abs(float(accumulated(terms)) - float(terms.astype(np.float64).sum()))


@pytest.mark.parametrize(("k", "share"), [(16, 0.93), (64, 0.98), (256, 0.994), (1024, 0.997)])
def test_bound_of_a_product_is_attained(k: int, share: float) -> None:
    operands, error = attaining(k)
    limit = bounds(PRODUCT, operands, {"n": 1, "k": k, "m": 1}, SINGLE)["Y"].item()
    assert share <= error / limit <= 1
    # What a bound growing with √k would have said of this correct result.
    assert error / (sqrt(k) * UNIT) > 0.9 * sqrt(k)


def smaller_sums(self: Rounding, x: Any, unit: float) -> Array | None:
    grown = ORIGINAL_CHARGE(self, replace(x, terms=round(sqrt(x.terms))), unit)
    return grown


ORIGINAL_CHARGE = Rounding.charge


def test_a_smaller_sum_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounding, "charge", smaller_sums)
    operands, error = attaining(256)
    assert error > 10 * bounds(PRODUCT, operands, {"n": 1, "k": 256, "m": 1}, SINGLE)["Y"].item()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_forgotten_storage_rounding_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounding, "held", lambda self, x, unit: x.error)
    largest = whole(name, "normal", VARIANTS[:1])
    assert (largest["Q"] > 1) == (name == "bfloat16")


def test_bounds_scale_with_the_unit_roundoff() -> None:
    """No rounding of the model is lost in the bound's own float64 arithmetic."""
    given = evaluators.inputs("normal", "float32", (33, 20, 7), seed=1)
    for declared in (SHIFTED, {}, {"softmax": "logsumexp", "blocks": 4}):
        wide = bounds(PLAIN, given, sizes(given), Arithmetic.for_dtype("float64", declared))
        narrow = bounds(PLAIN, given, sizes(given), Arithmetic.for_dtype("float32", declared))
        for name, limit in wide.items():
            np.testing.assert_allclose(limit * 2.0**29, narrow[name], rtol=1e-2, err_msg=name)


RESOLUTIONS = {
    # bound over largest |value|, whole program: (A, C)
    ("float64", (6, 3, 2)): (1e-14, 1e-14),
    ("float64", (64, 64, 64)): (2e-12, 1e-11),
    ("float32", (6, 3, 2)): (5e-6, 5e-6),
    ("float32", (33, 20, 7)): (1e-4, 1e-4),
    ("float32", (64, 64, 64)): (1e-3, 5e-3),
    ("bfloat16", (6, 3, 2)): (0.2, 0.2),
    ("bfloat16", (33, 20, 7)): (1.0, 1.0),
    ("float16", (33, 20, 7)): (0.1, 0.1),
}


@pytest.mark.parametrize(("name", "shape"), RESOLUTIONS)
def test_resolution(name: str, shape: tuple[int, int, int]) -> None:
    given = evaluators.inputs("normal", name, shape, seed=2)
    limits = bounds(PLAIN, given, sizes(given), Arithmetic.for_dtype(name, SHIFTED))
    truth = evaluators.truth(given)
    for quantity, allowed in zip("AC", RESOLUTIONS[name, shape], strict=True):
        found = np.median(limits[quantity]) / np.abs(truth[quantity].high).max()
        assert found <= allowed, (quantity, found)


def faults() -> dict[str, Callable[[dict[str, Array]], tuple[str, dict[str, Array]]]]:
    """Each makes a float32 result slightly wrong and names the equation that no longer holds."""

    def rescaled(outputs: dict[str, Array]) -> tuple[str, dict[str, Array]]:
        exponents = outputs["Ω"].astype(np.float64) / np.sqrt(7) * (1 + 1e-3)
        weights = np.exp(exponents - exponents.max(-1, keepdims=True))
        return "A", {"A": (weights / weights.sum(-1, keepdims=True)).astype(np.float32)}

    def entry(name: str, relative: float) -> Callable[..., tuple[str, dict[str, Array]]]:
        def change(outputs: dict[str, Array]) -> tuple[str, dict[str, Array]]:
            array = outputs[name].copy()
            worst = np.unravel_index(np.argmax(np.abs(array)), array.shape)
            array[worst] *= np.float32(1 + relative)
            return name, {name: array}

        return change

    return {
        "scale": rescaled,
        "one weight": entry("A", 1e-4),
        "one context entry": entry("C", 1e-4),
        "one score": entry("Ω", 1e-4),
    }


@pytest.mark.parametrize("fault", faults())
def test_small_faults_exceed_the_local_bound(fault: str) -> None:
    given = evaluators.inputs("normal", "float32", (33, 20, 7), seed=1)
    outputs = evaluators.attention(given, "float32", VARIANTS[0])
    assert max(local(outputs, given, SINGLE, causal=False).values()) <= 1
    quantity, changed = faults()[fault](outputs)
    assert local({**outputs, **changed}, given, SINGLE, causal=False)[quantity] > 1
