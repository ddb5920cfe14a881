"""Attention as Keras offers it, written once for its backends.

`ops` is the function `keras.ops.dot_product_attention`, `layer` the layer `MultiHeadAttention`,
which calls that function, and `scores` the same layer asked for its scores, which takes another
path. Where key heads are shared the layer is `GroupQueryAttention`. The layers are given queries,
keys and values through projections that change nothing: the heads' columns side by side, times an
identity matrix.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qkvac.backends.adapter import Functions, Library, ModeError, installed

MODES: Final = ("ops", "layer", "scores")

PROFILES: Final = ("scaled_dot_product_attention", "multi_head_attention")


def declaration(backend: str, **fields: Any) -> dict[str, Any]:
    """What the adapters on all backends declare alike."""
    return {
        "name": f"keras-{backend}",
        "requires": ("keras", backend),
        "modes": MODES,
        "evidence": {
            mode: {"fused_calls": "none" if mode == "scores" else "each call"} for mode in MODES
        },
        "dtypes": ("float64", "float32", "bfloat16", "float16"),
        "devices": ("cpu",),
        "profiles": PROFILES,
        "supports": "all",
        "deterministic": True,
        # Boolean masks fill with a large negative number, so that a row without keys is a mean.
        "conventions": {"empty_row": "mean", "causal_alignment": "top-left"},
        **fields,
    }


def select(backend: str) -> None:
    """Import Keras on a backend. Raises ModeError where the process has it on another."""
    os.environ["KERAS_BACKEND"] = backend
    import keras

    if keras.backend.backend() != backend:
        raise ModeError(f"Keras runs on {keras.backend.backend()}, not on {backend}")


def versions(backend: str) -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("keras", backend, "numpy", "ml_dtypes")


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that the adapters were measured on."""
    return ("cpu",)


def functions(mode: str) -> Functions:
    """The functions of a mode, by profile."""
    if mode == "ops":
        return {PROFILES[0]: by_function, PROFILES[1]: no_projections}
    scores = mode == "scores"
    return {PROFILES[0]: by_layer(scores), PROFILES[1]: projected(scores)}


def by_function(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d], V[…, g, S, v]; an additive mask is called a bias."""
    from keras import ops
    from keras.backend import backend

    if not Q.shape[-1] == V.shape[-1] and backend() == "jax":
        raise NotImplementedError("values are as wide as keys, as documented")
    leading = tuple(Q.shape[:-3])
    additive = mask is not None and ops.dtype(mask) != "bool"
    given = None if mask is None else four_axes(mask, leading)
    Q, K, V = (ops.swapaxes(four_axes(tensor, leading), 1, 2) for tensor in (Q, K, V))
    C = ops.dot_product_attention(
        Q,
        K,
        V,
        bias=given if additive else None,
        mask=None if additive else given,
        scale=scale,
        is_causal=causal,
    )
    return {"C": ops.reshape(ops.swapaxes(C, 1, 2), (*leading, C.shape[2], C.shape[1], C.shape[3]))}


def no_projections(*arrays: Any, **keywords: Any) -> dict[str, Any]:
    """The function has no weights."""
    raise NotImplementedError("keras.ops.dot_product_attention projects nothing")


def by_layer(scores: bool) -> Callable[..., dict[str, Any]]:
    """The function of queries, keys and values, by the layer whose projections are identities."""

    def function(
        Q: Any,
        K: Any,
        V: Any,
        *,
        causal: bool = False,
        mask: Any = None,
        scale: float | None = None,
    ) -> dict[str, Any]:
        from keras import layers, ops

        if scale is not None:
            raise NotImplementedError("the layer has its own scale")
        if mask is not None and ops.dtype(mask) != "bool":
            raise NotImplementedError("the layer takes boolean masks")
        if not Q.shape[-3]:
            raise NotImplementedError("the layer has at least one head")
        leading = tuple(Q.shape[:-3])
        (h, L, d), (g, S, v), dtype = Q.shape[-3:], V.shape[-3:], ops.dtype(Q)
        made: Any
        if g == h:
            made = layers.MultiHeadAttention(
                h, d, value_dim=v, output_shape=h * v, use_bias=False, dtype=dtype
            )
        elif v == d:
            made = layers.GroupQueryAttention(d, h, g, use_bias=False, dtype=dtype)
        else:
            raise NotImplementedError("GroupQueryAttention has one head_dim for keys and values")
        query, key, value = (side_by_side(four_axes(x, leading)) for x in (Q, K, V))
        made.build(query.shape, value.shape, key.shape)
        made.set_weights(
            [
                *(identity(heads, width, dtype) for heads, width in ((h, d), (g, d), (g, v))),
                ops.reshape(ops.eye(h * v, dtype=dtype), (h, v, h * v)),
            ]
        )
        result = made(
            query,
            value,
            key=key,
            attention_mask=None if mask is None else four_axes(mask, leading),
            use_causal_mask=causal,
            return_attention_scores=scores,
        )
        C, A = result if scores else (result, None)
        C = ops.swapaxes(ops.reshape(C, (math.prod(leading), L, h, v)), 1, 2)
        return {
            "A": None if A is None else ops.reshape(A, (*leading, h, L, S)),
            "C": ops.reshape(C, (*leading, h, L, v)),
        }

    return function


def projected(scores: bool) -> Callable[..., dict[str, Any]]:
    """The function of tokens and weights, by the layer that holds the weights."""

    def function(
        X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
    ) -> dict[str, Any]:
        from keras import layers, ops

        (d, c), o = Wq.shape, Wo.shape[-1]
        leading, n = tuple(X.shape[:-2]), X.shape[-2]
        made = layers.MultiHeadAttention(
            heads, c // heads, output_shape=o, use_bias=False, dtype=ops.dtype(X)
        )
        tokens = ops.reshape(X, (math.prod(leading), n, d))
        made.build(tokens.shape, tokens.shape)
        made.set_weights(
            [
                *(ops.reshape(W, (d, heads, c // heads)) for W in (Wq, Wk, Wv)),
                ops.reshape(Wo, (heads, c // heads, o)),
            ]
        )
        result = made(tokens, tokens, use_causal_mask=causal, return_attention_scores=scores)
        Y, A = result if scores else (result, None)
        return {
            "A": None if A is None else ops.reshape(A, (*leading, heads, n, n)),
            "Y": ops.reshape(Y, (*leading, n, o)),
        }

    return function


def four_axes(tensor: Any, leading: tuple[int, ...]) -> Any:
    """A tensor[…, h, n, m], or a mask that has fewer axes, with all leading axes as one."""
    from keras import ops

    missing = len(leading) + 3 - len(tensor.shape)
    if missing > 0 or tuple(tensor.shape[:-3]) != leading:
        tensor = ops.reshape(tensor, (*(1,) * missing, *tensor.shape))
        tensor = ops.broadcast_to(tensor, (*leading, *tensor.shape[-3:]))
    return ops.reshape(tensor, (math.prod(leading), *tensor.shape[-3:]))


def side_by_side(tensor: Any) -> Any:
    """Heads[b, h, n, m] as columns [b, n, h·m]."""
    from keras import ops

    b, h, n, m = tensor.shape
    return ops.reshape(ops.swapaxes(tensor, 1, 2), (b, n, h * m))


def identity(heads: int, width: int, dtype: str) -> Any:
    """The kernel[h·m, h, m] of a projection that hands on what is side by side."""
    from keras import ops

    return ops.reshape(ops.eye(heads * width, dtype=dtype), (heads * width, heads, width))


class Keras(Library):
    """Keras on one of its backends; it is counted how often its fused function is called."""

    backend: str

    def __init__(self, mode: str, device: str) -> None:
        select(self.backend)
        super().__init__(mode, device, functions(mode))
        self.fused_calls = 0
        self._count()

    def _count(self) -> None:
        """Count the calls of `dot_product_attention`, by the function and by the layers."""
        import keras

        function = keras.ops.dot_product_attention

        def counted(*tensors: Any, **keywords: Any) -> Any:
            self.fused_calls += 1
            return function(*tensors, **keywords)

        keras.ops.dot_product_attention = keras.src.ops.dot_product_attention = counted

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        before = self.fused_calls
        results: Mapping[str, Any] = super().run(profile, tensors, keywords)  # type: ignore[safe-super]
        calls = self.fused_calls - before
        if calls != (self.mode != "scores"):
            raise ModeError(f"{self.mode} ran with {calls} calls of dot_product_attention")
        return results

    def evidence(self) -> dict[str, Any]:
        import keras

        return super().evidence() | {  # type: ignore[safe-super]
            "keras_backend": keras.backend.backend(),
            "floatx": keras.config.floatx(),
            "fused_calls": self.fused_calls,
        }
