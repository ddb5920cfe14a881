"""What the adapters compute, in every profile and mode, compared with plain loops.

The inputs are small whole numbers, so that projections and scores have one right value in every
format, and no two axes of a call are equal. The reference shares nothing with the spec's algebra.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from qkvac.spec.formats import FORMATS
from qkvac.spec.registry import forward_profiles
from qkvac.targets.packages import FRAMEWORKS
from qkvac.tests.suite.laboratory import DTYPES, Array, adapter, inside, needs

MODES = [
    (name, mode)
    for name in FRAMEWORKS
    for mode in importlib.import_module(f"qkvac.backends.{name}.adapter").QKVAC["modes"]
    if mode != "tf32"  # there is none on a CPU
]


@dataclass(frozen=True)
class Call:
    """One call of a profile's function. Real arguments are float64 here, and cast to a dtype."""

    id: str
    profile: str
    arguments: tuple[Array | None, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


def draw(*shape: int, name: int = 0) -> Array:
    return np.random.default_rng((*shape, name)).integers(-1, 2, shape).astype(float)


def some(*shape: int) -> Array:
    """A mask that keeps most, and nothing in its third row."""
    mask = np.random.default_rng(shape).random(shape) < 0.7
    if len(shape) > 1 and shape[-2] > 2:
        mask[..., 2, :] = False
    return np.asarray(mask)


def bias(mask: Array, low: float = -math.inf) -> Array:
    return np.where(mask, np.random.default_rng(3).integers(-2, 3, mask.shape), low)


def calls() -> Iterator[Call]:
    n, d, c = 5, 4, 3
    for batch in ((), (2, 3), (0,)):
        lead = "x".join(map(str, batch)) or "single"
        X, weights = draw(*batch, n, d), [draw(d, c, name=i) for i in range(3)]
        turned = tuple(w.T for w in weights)
        yield Call(f"attention-{lead}", "attention", (X, *weights))
        yield Call(f"no-weights-{lead}", "dot_product_attention", (X,))
        yield Call(f"causal-{lead}", "causal_attention", (X, *weights))
        for name, biases in {
            "biases": [draw(c, name=i) for i in range(3)],
            "no-biases": (None, None, None),
            "a-bias": (None, draw(c), None),
        }.items():
            call = (X, *turned, *biases)
            yield Call(f"linear-{name}-{lead}", "attention_linear_layers", call)
        for causal in (False, True):
            inputs = (X, *(draw(d, 6, name=i) for i in range(3)), draw(6, 2))
            name = f"heads-{'causal-' if causal else ''}{lead}"
            yield Call(name, "multi_head_attention", inputs, {"heads": 3, "causal": causal})
        tokens = np.random.default_rng(0).integers(0, 9, (*batch, n))
        yield Call(f"embedding-{lead}", "embedding", (tokens, draw(9, d), draw(7, d)))
    yield Call("no-tokens", "attention", (draw(0, d), *weights))
    yield Call("no-width", "attention", (draw(n, 0), *3 * [draw(0, c)]))
    yield Call("nothing-embedded", "embedding", (np.zeros(0, int), draw(9, d), draw(7, d)))
    yield from kernel_calls()


def kernel_calls() -> Iterator[Call]:
    def call(name: str, *sizes: int, batch: tuple[int, ...] = (2,), **keywords: Any) -> Call:
        h, g, L, S, d, v = sizes or (6, 3, 5, 7, 4, 8)
        shapes = ((h, L, d), (g, S, d), (g, S, v))
        inputs = tuple(draw(*batch, *shape, name=i) for i, shape in enumerate(shapes))
        return Call(name, "scaled_dot_product_attention", inputs, keywords)

    yield call("plain")
    yield call("scale", scale=0.3)
    yield call("whole-scale", scale=2)
    yield call("no-batch", batch=())
    yield call("two-batches", batch=(2, 3))
    yield call("causal", causal=True)
    yield call("causal-long", 6, 3, 7, 5, 4, 8, causal=True)
    yield call("one-key-head", 6, 1, 5, 7, 4, 8)
    yield call("as-many-key-heads", 6, 6, 5, 7, 4, 8)
    for name, sizes in {
        "no-queries": (6, 3, 0, 7, 4, 8),
        "no-keys": (6, 3, 5, 0, 4, 8),
        "no-values": (6, 3, 5, 7, 4, 0),
        "no-heads": (0, 0, 5, 7, 4, 8),
    }.items():
        yield call(name, *sizes)
        yield call(f"{name}-causal", *sizes, causal=True, mask=np.ones((sizes[2], 1), bool))
    yield call("empty-batch", batch=(0,))
    for shape in ((), (7,), (1, 7), (5, 1), (5, 7), (6, 1, 1), (6, 5, 7), (2, 1, 5, 7)):
        name = "x".join(map(str, shape)) or "scalar"
        mask = some(*shape)
        yield call(f"boolean-{name}", mask=mask)
        yield call(f"boolean-causal-{name}", mask=mask, causal=True)
        yield call(f"additive-{name}", mask=bias(mask))
        yield call(f"additive-causal-scale-{name}", mask=bias(mask), causal=True, scale=0.3)
    yield call("boolean-none", mask=np.zeros((5, 7), bool))
    yield call("additive-none", mask=np.full((5, 7), -math.inf))
    yield call("additive-least", mask=bias(some(5, 7), np.nan))


CALLS = list(calls())
FEW = (
    "no-weights-0",
    "causal-2x3",
    "linear-a-bias-2x3",
    "heads-causal-2x3",
    "embedding-2x3",
    "no-heads-causal",
    "no-keys",
    "boolean-2x1x5x7",
    "additive-causal-scale-6x1x1",
    "additive-least",
)
"""Calls for a mode that takes seconds to compile each."""


def suits(mode: str, call: Call) -> bool:
    return mode != "compile" or call.id in FEW


def typed(value: Any, dtype: str) -> Any:
    """A real array in a dtype; NaN stands for the dtype's least number."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    least = -float(FORMATS[dtype].largest)
    return np.where(np.isnan(value), least, value).astype(DTYPES[dtype])


def softmax(scores: Array, kept: Array) -> Array:
    weights = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        keys = kept[row]
        powers = np.exp(scores[row][keys] - scores[row][keys].max(initial=-math.inf))
        weights[row][keys] = powers / powers.sum()
    return weights


def heads(Q: Array, K: Array, V: Array, causal: bool, mask: Any, scale: float) -> dict[str, Array]:
    h, g, L, S = Q.shape[-3], K.shape[-3], Q.shape[-2], K.shape[-2]
    of = [i * g // h for i in range(h)]
    Ω = np.einsum("...hid,...hjd->...hij", Q, K[..., of, :, :])
    scores, kept = Ω * scale, np.ones(Ω.shape, bool)
    if mask is not None and mask.dtype == bool:
        kept &= mask
    elif mask is not None:
        kept &= mask > -math.inf
        scores = scores + np.where(np.isinf(mask), 0, mask)
    if causal:
        kept &= np.arange(L)[:, None] >= np.arange(S)
    A = softmax(scores, kept)
    return {"Ω": Ω, "A": A, "C": np.einsum("...hij,...hjv->...hiv", A, V[..., of, :, :])}


def one_head(Q: Array, K: Array, V: Array, causal: bool, scale: float) -> dict[str, Array]:
    found = heads(Q[..., None, :, :], K[..., None, :, :], V[..., None, :, :], causal, None, scale)
    return {name: x[..., 0, :, :] for name, x in found.items()}


def expected(call: Call, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Array]:
    """By the profile's equations, in float64."""
    inputs = [x if x is None or x.dtype == int else x.astype(float) for x in arguments]
    causal, scale = keywords.get("causal", False), keywords.get("scale")
    if call.profile == "embedding":
        tokens, E, P = inputs
        rows = [E[token] + P[i[-1]] for i, token in np.ndenumerate(tokens)]
        return {"X": np.array(rows).reshape(*tokens.shape, E.shape[1])}
    if call.profile == "scaled_dot_product_attention":
        mask = keywords.get("mask")
        mask = mask if mask is None or mask.dtype == bool else mask.astype(float)
        scale = 1 / math.sqrt(inputs[0].shape[-1]) if scale is None else scale
        Q, K, V = inputs
        return heads(Q, K, V, causal, mask, scale)
    X, *weights = inputs
    if call.profile == "dot_product_attention":
        return one_head(X, X, X, False, 1)
    if call.profile == "attention_linear_layers":
        weights = [w.T for w in weights[:3]]
    Q, K, V = (np.einsum("...nd,dc->...nc", X, w) for w in weights[:3])
    if call.profile == "attention_linear_layers":
        Q, K, V = (x if b is None else x + b for x, b in zip((Q, K, V), inputs[4:], strict=True))
    c, found = Q.shape[-1], {"Q": Q, "K": K, "V": V}
    if call.profile != "multi_head_attention":
        causal = call.profile == "causal_attention"
        return found | one_head(Q, K, V, causal, 1 / math.sqrt(c))
    h = keywords["heads"]
    q, k, v = (np.stack(np.split(x, h, axis=-1), axis=-3) for x in (Q, K, V))
    found |= heads(q, k, v, causal, None, 1 / math.sqrt(c // h))
    C = np.concatenate([found["C"][..., i, :, :] for i in range(h)], axis=-1)
    return found | {"C": C, "Y": np.einsum("...nc,co->...no", C, weights[3])}


def _call(name: str, mode: str, call: Call, dtype: str) -> dict[str, Array]:
    arguments = [typed(x, dtype) for x in call.arguments]
    keywords = {key: typed(x, dtype) for key, x in call.keywords.items()}
    outputs = getattr(adapter(name, mode), call.profile)(*arguments, **keywords)
    return {key: np.array(x) for key, x in outputs.items()}


def assert_right(call: Call, dtype: str, outputs: dict[str, Array]) -> None:
    """Whole numbers to the bit; the rest within 64 unit roundoffs of the largest value or of 1.

    Scores reach 16, bias included, so the rounding of a logit moves a weight by 16 roundoffs at
    most. What is looked for is a wrong formula; how accurate a right one is, the matrix judges.
    """
    arguments = [typed(x, dtype) for x in call.arguments]
    keywords = {key: typed(x, dtype) for key, x in call.keywords.items()}
    values = expected(call, arguments, keywords)
    assert outputs.keys() == values.keys()
    for key, value in values.items():
        assert outputs[key].dtype == DTYPES[dtype], key
        assert outputs[key].shape == value.shape, key
        found = outputs[key].astype(float)
        if key in ("Q", "K", "V", "Ω", "X"):
            np.testing.assert_array_equal(found, value, key)
        else:
            size = max(1, np.abs(value).max(initial=0))
            allowed = 64 * size * FORMATS[dtype].unit
            np.testing.assert_allclose(found, value, rtol=0, atol=allowed, err_msg=key)
        if key == "A":
            np.testing.assert_array_equal(found[value == 0], 0, key)


@pytest.mark.parametrize(
    ("name", "mode", "call"),
    [
        pytest.param(name, mode, call, id=f"{name}/{mode}-{call.id}")
        for name, mode in MODES
        for call in CALLS
        if suits(mode, call)
    ],
)
def test_a_profile_computes_its_equations(name: str, mode: str, call: Call) -> None:
    needs(name, mode)
    assert_right(call, "float64", inside(name, _call, name, mode, call, "float64"))


@pytest.mark.parametrize(("name", "mode"), MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_so_it_does_in_every_dtype(name: str, mode: str, dtype: str) -> None:
    needs(name, mode)
    for call in (*CALLS[::8], CALLS[-1]) if mode != "compile" else CALLS[-1:]:
        assert_right(call, dtype, inside(name, _call, name, mode, call, dtype))


def _products(name: str, mode: str, call: Call) -> tuple[list[tuple[int, int]], int]:
    """The ranks of the factors of each product of a call, and the transpositions."""
    arguments = [typed(x, "float32") for x in call.arguments]
    keywords = {key: typed(x, "float32") for key, x in call.keywords.items()}
    budget = adapter(name, mode).budget(call.profile, *arguments, **keywords)
    return [(len(x.left), len(x.right)) for x in budget.contractions], budget.transpositions


@pytest.mark.parametrize(("name", "mode"), [m for m in MODES if m[1] not in ("loop", "compile")])
@pytest.mark.parametrize("call", [c for c in CALLS if c.id.endswith("-single")], ids=lambda c: c.id)
def test_a_profile_takes_no_more_products_than_declared(name: str, mode: str, call: Call) -> None:
    needs(name, mode)
    products, transpositions = inside(name, _products, name, mode, call)
    profile = forward_profiles()[call.profile]
    assert len(products) == profile.texts["plain"].count("@")
    if profile.budget is not None:
        assert transpositions == profile.budget.transpositions


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.id)
def test_token_by_token_no_two_matrices_are_multiplied(call: Call) -> None:
    products, transpositions = inside("numpy", _products, "numpy", "loop", call)
    assert all(1 in ranks for ranks in products)
    assert transpositions == (3 if call.profile == "attention_linear_layers" else 0)
    together, _ = inside("numpy", _products, "numpy", "eager", call)
    assert not any(1 in ranks for ranks in together)


def in_turn(Q: Array, K: Array, V: Array, *rest: Any) -> dict[str, Array]:
    """Key heads shared in turn, and not by consecutive query heads."""
    groups = [i % K.shape[-3] for i in range(Q.shape[-3])]
    return heads(Q, K[..., groups, :, :], V[..., groups, :, :], *rest)


def from_the_end(Q: Array, K: Array, V: Array, causal: bool, *rest: Any) -> dict[str, Array]:
    """The last query sees all keys."""
    L, S = Q.shape[-2], K.shape[-2]
    seen = np.tri(L, S, S - L, dtype=bool) if causal and rest[0] is None else rest[0]
    return heads(Q, K, V, causal and rest[0] is not None, seen, *rest[1:])


def unmasked(Q: Array, K: Array, V: Array, causal: bool, mask: Any, scale: float) -> Any:
    return heads(Q, K, V, causal, None, scale)


def mean(*arguments: Any) -> dict[str, Array]:
    """A query without keys attends to all alike."""
    found = heads(*arguments)
    empty = found["A"].sum(-1, keepdims=True) == 0
    return found | {"A": np.where(empty, 1 / max(1, found["A"].shape[-1]), found["A"])}


def truncated(Q: Array, K: Array, V: Array, causal: bool, mask: Any, scale: float) -> Any:
    """The scale through float32."""
    return heads(Q, K, V, causal, mask, float(np.float32(scale)))


@pytest.mark.parametrize("wrong", [in_turn, from_the_end, unmasked, mean, truncated])
def test_a_wrong_formula_is_found(wrong: Any) -> None:
    found = 0
    for call in kernel_calls():
        keywords = {"causal": False, "mask": None, "scale": 0.5, **call.keywords}
        mask = typed(keywords["mask"], "float64")
        outputs = wrong(*call.arguments, keywords["causal"], mask, keywords["scale"])
        try:
            assert_right(call, "float64", outputs)
        except AssertionError:
            found += 1
    assert found >= 2


def _programs(name: str, mode: str, ids: tuple[str, ...]) -> list[dict[str, Any]]:
    opened = importlib.import_module(f"qkvac.backends.{name}.adapter").open(mode, "cpu")
    found = []
    for call in (next(c for c in CALLS if c.id == wanted) for wanted in ids):
        getattr(opened, call.profile)(*call.arguments, **call.keywords)
        found.append(opened.evidence())
    return found


@pytest.mark.parametrize(
    ("name", "mode", "counted"),
    [
        ("jax", "jit", "executables"),
        ("tensorflow", "function", "graphs"),
        ("tensorflow", "xla", "graphs"),
    ],
)
def test_a_program_is_made_for_every_flag_and_shape_and_used_again(
    name: str, mode: str, counted: str
) -> None:
    needs(name, mode)
    masked, further = "boolean-5x7", ("boolean-causal-5x7", "linear-no-biases-single")
    order = (masked, masked, *further, "linear-a-bias-single", masked)
    found = inside(name, _programs, name, mode, order)
    assert [evidence["calls"] for evidence in found] == [1, 2, 3, 4, 5, 6]
    assert [evidence[counted] for evidence in found] == [1, 1, 2, 3, 4, 4]
    if mode == "xla":
        assert [evidence["programs"] for evidence in found] == [1, 1, 2, 3, 3, 3]
