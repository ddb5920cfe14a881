"""The profiles' equations against direct NumPy, and the declared arithmetic models.

The references below are written head by head and row by row, without the grammar, so that a
wrong text, a wrong evaluation and a wrong reference cannot agree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from qkvac.spec.attention import CONVENTIONS, SOFTMAX_FORMS, Arithmetic
from qkvac.spec.grammar.equations import SpecError, evaluate
from qkvac.spec.registry import forward_profiles
from qkvac.tests.suite.arrays import Array, Arrays

BATCHES = [(), (2,), (3, 2)]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([*shape, seed]).normal(size=shape)


def values(name: str, variant: str, inputs: dict[str, Array], **sizes: Any) -> dict[str, Array]:
    return evaluate(forward_profiles()[name].program(variant), Arrays(), inputs, sizes)


def weights(scores: Array, kept: Array | None = None) -> Array:
    """Softmax of one row of scores; a row that keeps nothing is zeros."""
    kept = np.ones(scores.shape, bool) if kept is None else kept
    result = np.zeros(scores.shape)
    if kept.any():
        powers = np.exp(scores[kept] - scores[kept].max())
        result[kept] = powers / powers.sum()
    return result


def attend(
    Q: Array, K: Array, V: Array, scale: float, kept: Array | None = None, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """Ω, A and C of one head, row by row; `kept` and `bias` are [L, S]."""
    scores = np.array([[float(np.dot(q, k)) for k in K] for q in Q]).reshape(len(Q), len(K))
    logits = scores * scale + (0 if bias is None else bias)
    rows = [weights(row, None if kept is None else kept[i]) for i, row in enumerate(logits)]
    A = np.array(rows).reshape(scores.shape)
    return scores, A, A @ V


def over_batches(batch: tuple[int, ...], of: Any) -> list[Array]:
    """Stack what `of` returns for every index of the batch."""
    found = [of(index) for index in np.ndindex(*batch)]
    return [np.array(part).reshape(*batch, *part[0].shape) for part in zip(*found, strict=True)]


def assert_close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


# --- the profiles -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(causal: bool, batch: tuple[int, ...]) -> None:
    n, d, c = 5, 4, 3
    X, W = draw(*batch, n, d), {name: draw(d, c, seed=i) for i, name in enumerate(("q", "k", "v"))}
    inputs = {"X": X} | {f"W{name}": weight for name, weight in W.items()}
    found = values("causal_attention" if causal else "attention", "plain", inputs, n=n, d=d, c=c)

    def of(index: tuple[int, ...]) -> tuple[Array, ...]:
        Q, K, V = (X[index] @ W[name] for name in "qkv")
        kept = np.tri(n, dtype=bool) if causal else None
        return (Q, K, V, *attend(Q, K, V, 3**-0.5, kept))

    for name, expected in zip(("Q", "K", "V", "Ω", "A", "C"), over_batches(batch, of), strict=True):
        assert_close(found[name], expected)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_self_attention_without_weights(batch: tuple[int, ...]) -> None:
    X = draw(*batch, 5, 4)
    found = values("dot_product_attention", "plain", {"X": X}, n=5, d=4)
    expected = over_batches(batch, lambda i: attend(X[i], X[i], X[i], 1.0))
    for name, part in zip(("Ω", "A", "C"), expected, strict=True):
        assert_close(found[name], part)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("variant", ["plain", "bias"])
def test_linear_layers(variant: str, batch: tuple[int, ...]) -> None:
    n, d, c = 5, 4, 3
    X = draw(*batch, n, d)
    W = {name: draw(c, d, seed=i) for i, name in enumerate("qkv")}
    b = {name: draw(c, seed=i) for i, name in enumerate("qkv")}
    inputs = {"X": X} | {f"W{name}": weight for name, weight in W.items()}
    if variant == "bias":
        inputs |= {f"b{name}": bias for name, bias in b.items()}
    found = values("attention_linear_layers", variant, inputs, n=n, d=d, c=c)

    def of(index: tuple[int, ...]) -> tuple[Array, ...]:
        Q, K, V = (
            np.array([W[name] @ x + (b[name] if variant == "bias" else 0) for x in X[index]])
            for name in "qkv"
        )
        return (Q, K, V, *attend(Q, K, V, 3**-0.5))

    for name, expected in zip(("Q", "K", "V", "Ω", "A", "C"), over_batches(batch, of), strict=True):
        assert_close(found[name], expected)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("variant", ["plain", "causal"])
def test_several_heads(variant: str, batch: tuple[int, ...]) -> None:
    n, d, c, h, o = 5, 4, 6, 3, 7
    X = draw(*batch, n, d)
    W = {name: draw(d, c, seed=i) for i, name in enumerate("qkv")} | {"o": draw(c, o)}
    inputs = {"X": X} | {f"W{name}": weight for name, weight in W.items()}
    found = values("multi_head_attention", variant, inputs, n=n, d=d, c=c, h=h, o=o)

    def of(index: tuple[int, ...]) -> tuple[Array, ...]:
        Q, K, V = (X[index] @ W[name] for name in "qkv")
        kept = np.tri(n, dtype=bool) if variant == "causal" else None
        heads = [slice(2 * i, 2 * i + 2) for i in range(h)]
        Ω, A, C = zip(
            *(attend(Q[:, i], K[:, i], V[:, i], 2**-0.5, kept) for i in heads), strict=True
        )
        merged = np.concatenate(C, axis=1)
        return Q, K, V, np.array(Ω), np.array(A), merged, merged @ W["o"]

    quantities = forward_profiles()["multi_head_attention"].quantities
    for name, expected in zip(quantities, over_batches(batch, of), strict=True):
        assert_close(found[name], expected)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_embedding(batch: tuple[int, ...]) -> None:
    E, P = draw(9, 4), draw(6, 4)
    tokens = np.random.default_rng(1).integers(0, 9, (*batch, 5))
    found = values("embedding", "plain", {"E": E, "P": P, "tokens": tokens}, t=9, d=4, p=6, n=5)

    def of(index: tuple[int, ...]) -> tuple[Array, ...]:
        return (np.array([E[t] + P[i] for i, t in enumerate(tokens[index])]),)

    (expected,) = over_batches(batch, of)
    assert_close(found["X"], expected)


# --- kernels: grouped heads, masks, widths of values, lengths of keys ---------------------------

SIZES = {"h": 4, "g": 2, "L": 3, "S": 5, "d": 6, "v": 7}
MASK_SHAPES = [
    (), (5,), (1, 5), (3, 1), (3, 5), (1, 3, 5), (4, 3, 5), (4, 1, 5), (4, 3, 1),
    (2, 1, 1, 5), (2, 1, 3, 5), (1, 4, 3, 5), (2, 4, 3, 5),
]  # fmt: skip
VARIANTS = list(forward_profiles()["scaled_dot_product_attention"].texts)


def kernel(
    inputs: dict[str, Array], batch: tuple[int, ...], scale: float, mask: Array | None, causal: bool
) -> list[Array]:
    """Ω, A and C head by head; `mask` is boolean, or additive with −inf."""
    Q, K, V = (inputs[name] for name in "QKV")
    h, g, L, S = (SIZES[name] for name in "hgLS")
    full = None if mask is None else np.broadcast_to(mask, (*batch, h, L, S))

    def of(index: tuple[int, ...]) -> tuple[Array, ...]:
        heads = []
        for i in range(h):
            group = i * g // h
            kept, bias = np.ones((L, S), bool), None
            if full is not None:
                own = full[(*index, i)]
                kept = own if own.dtype == bool else own > -np.inf
                bias = None if own.dtype == bool else np.where(kept, own, 0.0)
            if causal:
                kept = kept & (np.arange(S) <= np.arange(L)[:, None])
            heads.append(attend(Q[index][i], K[index][group], V[index][group], scale, kept, bias))
        return tuple(np.array(part) for part in zip(*heads, strict=True))

    return over_batches(batch, of)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels(variant: str, batch: tuple[int, ...]) -> None:
    h, g, L, S, d, v = SIZES.values()
    inputs = {"Q": draw(*batch, h, L, d), "K": draw(*batch, g, S, d), "V": draw(*batch, g, S, v)}
    sizes: dict[str, Any] = dict(SIZES)
    scale = 6**-0.5
    if "scale" in variant:
        scale = -0.375
        sizes["scale"] = Fraction(-3, 8)
    masks: list[Array | None] = [None]
    if "boolean" in variant or "additive" in variant:
        shapes = [shape for shape in MASK_SHAPES if len(shape) <= 3 + len(batch)]
        drawn = np.random.default_rng(8)
        booleans = [np.asarray(drawn.random(shape) < 0.6) for shape in shapes]
        masks = list(booleans)
        if "additive" in variant:
            masks = [np.where(m, drawn.normal(size=m.shape), -np.inf) for m in booleans]
    for mask in masks:
        given = inputs if mask is None else inputs | {"mask": mask}
        found = values("scaled_dot_product_attention", variant, given, **sizes)
        expected = kernel(inputs, batch, scale, mask, "causal" in variant)
        for name, part in zip(("Ω", "A", "C"), expected, strict=True):
            assert_close(found[name], part)


def test_a_finite_lowest_bias_is_kept_and_an_infinite_one_is_not() -> None:
    """A row of finfo.min is uniform over its keys, a row of −inf keeps none."""
    Q, K, V = draw(1, 2, 3), draw(1, 4, 3), draw(1, 4, 2)
    mask = np.full((1, 2, 4), np.finfo(np.float64).min)
    mask[0, 1] = -np.inf
    sizes = {"h": 1, "g": 1, "L": 2, "S": 4, "d": 3, "v": 2}
    found = values(
        "scaled_dot_product_attention", "additive", {"Q": Q, "K": K, "V": V, "mask": mask}, **sizes
    )
    np.testing.assert_array_equal(found["A"][0, 0], 0.25)
    np.testing.assert_array_equal(found["A"][0, 1], 0.0)


# --- what a profile declares --------------------------------------------------------------------


@pytest.mark.parametrize("profile", forward_profiles().values(), ids=list(forward_profiles()))
def test_a_profile_reports_what_its_equations_define(profile: Any) -> None:
    for variant in profile.texts:
        targets = [equation.target.name for equation in profile.program(variant).equations]
        assert tuple(targets) == profile.quantities
    assert profile.last == profile.quantities[-1]
    assert profile.intermediates <= set(profile.quantities[:-1])
    assert profile.program() is profile.program(next(iter(profile.texts)))


@pytest.mark.parametrize("profile", forward_profiles().values(), ids=list(forward_profiles()))
def test_a_budget_counts_the_products_and_transpositions_of_the_text(profile: Any) -> None:
    if profile.budget is not None:
        assert profile.budget.products == profile.text.count("@")
        assert profile.budget.transpositions == profile.text.count(".T")


def test_the_mission_is_five_products_and_one_transposition() -> None:
    profile = forward_profiles()["attention"]
    assert profile.budget is not None
    assert (profile.budget.products, profile.budget.transpositions) == (5, 1)
    assert profile.quantities == ("Q", "K", "V", "Ω", "A", "C")
    assert profile.intermediates == {"Ω"}


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(SpecError, match="multi_head_attention has no variant 'x'; it has plain, c"):
        forward_profiles()["multi_head_attention"].program("x")


def test_the_conventions_name_the_specs_choice_first() -> None:
    assert {name: convention.default for name, convention in CONVENTIONS.items()} == {
        "empty_row": "zeros",
        "causal_alignment": "top-left",
        "mask": "True keeps",
        "weight_layout": "d×c",
    }


# --- arithmetic models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "accumulation"),
    [
        ("float64", "float64"),
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float16", "float32"),
    ],
)
def test_the_default_model_of_a_dtype(dtype: str, accumulation: str) -> None:
    model = Arithmetic.for_dtype(dtype)
    assert model == Arithmetic(dtype, dtype, accumulation, dtype, dtype)
    assert model.softmax is None
    assert not model.flushes
    assert model.u_o == 0


def test_declared_fields_replace_the_defaults() -> None:
    model = Arithmetic.for_dtype("bfloat16", {"scores": "float32", "softmax": "fused", "blocks": 8})
    assert model == Arithmetic(
        "bfloat16", "bfloat16", "float32", "bfloat16", "float32", "fused", False, 8
    )


def test_operands_elementwise_and_scores_follow_the_storage() -> None:
    model = Arithmetic.for_dtype("float16", {"storage": "float32"})
    assert model == Arithmetic("float32", "float32", "float32", "float32", "float32")


def test_the_roundoffs_and_floors_are_those_of_the_formats() -> None:
    model = Arithmetic("float32", "tfloat32", "float32", "bfloat16", "float32")
    assert (model.u_s, model.u_o, model.u_a, model.u_e) == (2.0**-24, 2.0**-11, 2.0**-24, 2.0**-8)
    assert model.floor == model.floor_a == 2.0**-149
    flushing = Arithmetic("float16", "float16", "float32", "float16", "float16", flushes=True)
    assert (flushing.floor, flushing.floor_a) == (2.0**-14, 2.0**-126)


def test_a_result_that_is_cut_off_is_twice_as_far_off() -> None:
    model = Arithmetic.for_dtype("bfloat16", {"truncates": True})
    assert (model.u_s, model.u_h) == (2.0**-7, 2.0**-7)
    assert (model.u_a, model.u_o) == (2.0**-24, 0)


def test_finer_operands_are_used_as_stored() -> None:
    assert Arithmetic("float16", "float32", "float32", "float16", "float16").u_o == 0


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"storage": "float8"}, "arithmetic.storage = 'float8' is no format; choose from float64"),
        ({"operands": "int8"}, "arithmetic.operands = 'int8' is no format"),
        ({"accumulation": ""}, "arithmetic.accumulation = '' is no format"),
        ({"elementwise": "half"}, "arithmetic.elementwise = 'half' is no format"),
        ({"scores": "Float32"}, "arithmetic.scores = 'Float32' is no format"),
        ({"softmax": "exact"}, "arithmetic.softmax = 'exact'; choose from shifted, divided, fused"),
        ({"blocks": -1}, "arithmetic.blocks = -1; it is a block size, or 0"),
        ({"rounding": "up"}, "arithmetic has no field 'rounding'"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Arithmetic.for_dtype("float32", declared)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("form", SOFTMAX_FORMS)
def test_every_form_of_the_softmax_can_be_declared(form: str) -> None:
    assert Arithmetic.for_dtype("float32", {"softmax": form}).softmax == form
