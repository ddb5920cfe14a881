"""Rounding bounds: never below the error of correct code, and no larger than they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from qkvac.spec import logerror, rounding
from qkvac.spec.attention import PROFILES, Arithmetic
from qkvac.spec.equations import Program, parse
from qkvac.spec.formats import FORMATS, dtype
from qkvac.spec.rounding import Rounding, bounds, magnitude
from qkvac.spec.scalar import Scalar
from qkvac.tests.suite import evaluators
from qkvac.tests.suite.evaluators import UNSHIFTED, VARIANTS, Array, Truth, Variant

DTYPES = ("float64", "float32", "bfloat16", "float16")
SHAPES = ((6, 3, 2), (33, 20, 7), (1, 5, 3), (12, 7, 1))
SHIFTED = {"softmax": "shifted, divided"}

PLAIN = PROFILES["attention"].program()
CAUSAL = PROFILES["causal_attention"].program()


def sizes(given: Mapping[str, Array]) -> dict[str, int]:
    (n, d), c = given["X"].shape, given["Wq"].shape[1]
    return {"n": n, "d": d, "c": c}


def model(name: str, variant: Variant, **declared: Any) -> Arithmetic:
    form = "logsumexp" if variant.form == "logsumexp" else "shifted, divided"
    return Arithmetic.for_dtype(name, {"softmax": form, "blocks": variant.block, **declared})


def ratio(error: Array, bound: Array) -> float:
    """The largest error over bound; 0 where nothing is wrong, inf where a bound of 0 is missed."""
    with np.errstate(all="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / bound), initial=0.0))


def ratios(
    truth: Mapping[str, Truth], outputs: Mapping[str, Array], limits: Mapping[str, Array]
) -> dict[str, float]:
    return {
        name: ratio(true.error(outputs[name]), limits[name])
        for name, true in truth.items()
        if name in outputs
    }


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
SINGLE = Arithmetic.for_dtype("float32", SHIFTED)
UNIT = FORMATS["float32"].unit


def accumulated(terms: Array) -> np.float32:
    total = np.float32(0)
    for term in terms.astype(np.float32):
        total = np.float32(total + term)
    return total


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


# --- the softmax rule ----------------------------------------------------------------------

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
    monkeypatch.setattr(logerror, constant, 0)
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
    text = PROFILES["embedding"].text
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
    program = PROFILES["attention_linear_layers"].program("bias")
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
