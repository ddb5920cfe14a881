"""Attention of jax.nn, Flax and Equinox: weights end up where they belong, and modes are proved."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError, UnavailableError
from qkvac.targets.packages import adapter as module
from qkvac.tests.suite.laboratory import Array, inside, refusal


def _needs(*names: str) -> None:
    for name in ("jax", *names):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@cache
def _opened(name: str, mode: str) -> Any:
    return module(name).open(mode, "cpu")


def _call(name: str, mode: str, profile: str, arrays: list[Array], **keywords: Any) -> Any:
    outputs = getattr(_opened(name, mode), profile)(*arrays, **keywords)
    return {key: np.array(value) for key, value in outputs.items()}


def _heads(name: str, mode: str, heads: int, causal: bool) -> Any:
    return _call(name, mode, "multi_head_attention", weights(), heads=heads, causal=causal)


def weights() -> list[Array]:
    """X [5, 8], Wq, Wk, Wv [8, 6], Wo [6, 4]: no two axes are equal."""
    draw = np.random.default_rng(0).standard_normal
    shapes = ((5, 8), (8, 6), (8, 6), (8, 6), (6, 4))
    return [draw(shape).astype(np.float32) for shape in shapes]


def written_out(heads: int, causal: bool) -> dict[str, Array]:
    """The same in float64, head by head."""
    X, Wq, Wk, Wv, Wo = (array.astype(float) for array in weights())
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    width = Q.shape[1] // heads
    parts = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        logits = Q[:, columns] @ K[:, columns].T / np.sqrt(width)
        if causal:
            logits = np.where(np.tri(len(X), dtype=bool), logits, -np.inf)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        parts.append(powers / powers.sum(axis=1, keepdims=True) @ V[:, columns])
    return {"Q": Q, "K": K, "V": V, "Y": np.hstack(parts) @ Wo}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "mode"),
    [("flax", "fused"), ("flax", "weights"), ("equinox", "eager"), ("equinox", "jit")],
)
def test_the_layers_weights_are_ours(name: str, mode: str, causal: bool) -> None:
    _needs(name)
    outputs = inside(name, _heads, name, mode, 3, causal)
    for quantity, expected in written_out(3, causal).items():
        np.testing.assert_allclose(outputs[quantity], expected, atol=1e-5, err_msg=quantity)
    other = written_out(2, causal)["Y"]
    assert np.abs(outputs["Y"] - other).max() > 0.1
    if "A" in outputs:
        assert outputs["A"].shape == (3, 5, 5)
        np.testing.assert_allclose(outputs["A"].sum(axis=-1), 1, atol=1e-6)


def _without_weights() -> str:
    flax = _opened("flax", "weights")
    kept, flax.functions = flax.functions, _opened("flax", "fused").functions
    try:
        return refusal(ModeError, partial(flax.multi_head_attention, heads=2), *weights())
    finally:
        flax.functions = kept


def test_flax_notices_that_another_implementation_ran() -> None:
    _needs("flax")
    assert "called 1 times, not 0" in inside("flax", _without_weights)


def _evidence(name: str, mode: str) -> Any:
    return _opened(name, mode).evidence()


def test_flax_says_which_implementation_ran() -> None:
    _needs("flax")
    for mode, expected in (("fused", True), ("weights", False)):
        inside("flax", _heads, "flax", mode, 3, False)
        found = inside("flax", _evidence, "flax", mode)
        assert bool(found["fused_calls"]) is expected


def _disabled() -> str:
    import jax

    fresh = module("jax-nn").open("jit", "cpu")
    x = np.ones((1, 2, 3, 4), np.float32)
    with jax.disable_jit():
        return refusal(ModeError, fresh.scaled_dot_product_attention, x, x, x)


def test_jit_that_is_disabled_is_noticed() -> None:
    _needs()
    assert "jax_disable_jit" in inside("jax-nn", _disabled)


def _attend(mode: str, arrays: list[Array], **keywords: Any) -> Array:
    result: Array = _call("jax-nn", mode, "scaled_dot_product_attention", arrays, **keywords)["C"]
    return result


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_jax_nn_tells_the_two_kinds_of_masks_apart(mode: str) -> None:
    _needs()
    draw = np.random.default_rng(1).standard_normal
    Q, K, V = (draw((2, 3, 4, 5)).astype(np.float32) for _ in range(3))
    keep = np.tri(4, dtype=bool)
    added = np.where(keep, np.float32(0), np.float32(-np.inf))
    causal = inside("jax-nn", _causal, mode, [Q, K, V])
    for mask in (keep, added):
        masked = inside("jax-nn", _masked, mode, [Q, K, V], mask)
        np.testing.assert_allclose(masked, causal, atol=1e-6)
    plain = inside("jax-nn", _attend, mode, [Q, K, V])
    assert np.abs(plain - causal).max() > 0.1


def _causal(mode: str, arrays: list[Array]) -> Array:
    return _attend(mode, arrays, causal=True)


def _masked(mode: str, arrays: list[Array], mask: Array) -> Array:
    return _attend(mode, arrays, mask=mask)


def _two_batches(mode: str) -> str:
    x = np.ones((2, 2, 1, 3, 4), np.float32)
    return refusal(
        NotImplementedError, _opened("jax-nn", mode).scaled_dot_product_attention, x, x, x
    )


def _float16() -> str:
    x = np.ones((1, 2, 3, 4), np.float16)
    return refusal(UnavailableError, _opened("jax-nn", "jit").scaled_dot_product_attention, x, x, x)


def test_what_xla_has_no_product_for_is_skipped() -> None:
    _needs()
    eager = inside("jax-nn", _attend, "eager", [np.ones((1, 2, 3, 4), np.float16)] * 3)
    np.testing.assert_array_equal(eager, 1)
    assert "F16_F16_F32" in inside("jax-nn", _float16)


def test_what_jax_nn_cannot_take_is_refused() -> None:
    _needs()
    assert "batch axis" in inside("jax-nn", _two_batches, "eager")


@pytest.mark.parametrize(("version", "runs"), [("0.4.30", False), ("0.4.31", True), ("", True)])
def test_jax_nn_is_left_out_where_jax_has_no_such_function(
    version: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = module("jax-nn")
    monkeypatch.setattr(adapter, "installed", lambda *_: {"jax": version} if version else {})
    reason = adapter.unavailable("eager")
    assert (reason is None) is runs
    assert runs or version in str(reason)
