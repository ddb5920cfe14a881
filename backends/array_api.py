"""Self-attention in the Array API standard: written once, for every library that follows it.

Only what the standard and dask have in common is used, so that a library is asked for nothing
beyond it: `moveaxis` for a transposition, a comparison of two ranges for the triangle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

Tensors = dict[str, Any]


def dot_product_attention(xp: Any, X: Any) -> Tensors:
    """Ω, A, C of X[…, n, d] alone."""
    return attend(xp, X, X, X, 1.0)


def attention(xp: Any, X: Any, Wq: Any, Wk: Any, Wv: Any) -> Tensors:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    return projected(xp, xp.matmul(X, Wq), xp.matmul(X, Wk), xp.matmul(X, Wv))


def causal_attention(xp: Any, X: Any, Wq: Any, Wk: Any, Wv: Any) -> Tensors:
    """The same where a token sees itself and earlier tokens."""
    Q, K, V = xp.matmul(X, Wq), xp.matmul(X, Wk), xp.matmul(X, Wv)
    return projected(xp, Q, K, V, earlier(xp, X.shape[-2], X.shape[-2]))


def attention_linear_layers(
    xp: Any, X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any
) -> Tensors:
    """The same with weights [c, d], as linear layers store them; a bias [c] may be None."""
    return projected(xp, linear(xp, X, Wq, bq), linear(xp, X, Wk, bk), linear(xp, X, Wv, bv))


def scaled_dot_product_attention(
    xp: Any,
    Q: Any,
    K: Any,
    V: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
) -> Tensors:
    """Ω, A, C of Q[…, h, L, d], K[…, g, S, d], V[…, g, S, v], where g divides h."""
    heads, groups = Q.shape[-3], K.shape[-3]
    if heads != groups:
        K, V = (xp.repeat(x, heads // groups, axis=x.ndim - 3) for x in (K, V))
    keep = earlier(xp, Q.shape[-2], K.shape[-2]) if causal else None
    return attend(xp, Q, K, V, 1 / math.sqrt(Q.shape[-1]) if scale is None else scale, keep, mask)


def multi_head_attention(
    xp: Any, X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> Tensors:
    """Q, K, V before the split, Ω and A by head, C with the heads merged, Y = C Wo."""
    Q, K, V = xp.matmul(X, Wq), xp.matmul(X, Wk), xp.matmul(X, Wv)
    keep = earlier(xp, X.shape[-2], X.shape[-2]) if causal else None
    scale = 1 / math.sqrt(Q.shape[-1] // heads)
    inner = attend(xp, split(xp, Q, heads), split(xp, K, heads), split(xp, V, heads), scale, keep)
    C = xp.reshape(xp.moveaxis(inner["C"], -3, -2), Q.shape)
    return {"Q": Q, "K": K, "V": V, **inner, "C": C, "Y": xp.matmul(C, Wo)}


def embedding(xp: Any, tokens: Any, E: Any, P: Any) -> Tensors:
    """X[…, n, d] = E[token] + P[position]; the standard takes along one axis by flat indices."""
    flat = xp.reshape(tokens, (math.prod(tokens.shape),))
    found = xp.reshape(xp.take(E, flat, axis=0), (*tokens.shape, E.shape[-1]))
    return {"X": found + P[: tokens.shape[-1], :]}


def projected(xp: Any, Q: Any, K: Any, V: Any, keep: Any = None) -> Tensors:
    """Q, K, V and what follows from them at the scale 1/√c."""
    return {"Q": Q, "K": K, "V": V, **attend(xp, Q, K, V, 1 / math.sqrt(K.shape[-1]), keep)}


def attend(
    xp: Any, Q: Any, K: Any, V: Any, scale: float, keep: Any = None, mask: Any = None
) -> Tensors:
    """Ω, A, C; `keep` says what may be attended to, `mask` as well or is added to the scores."""
    scores = xp.matmul(Q, xp.moveaxis(K, -1, -2))
    logits = scores * scale
    if mask is not None:
        boolean = "bool" in str(mask.dtype)
        logits = xp.where(mask, logits, -math.inf) if boolean else logits + mask
    if keep is not None:
        logits = xp.where(keep, logits, -math.inf)
    A = softmax(xp, logits)
    return {"Ω": scores, "A": A, "C": xp.matmul(A, V)}


def softmax(xp: Any, logits: Any) -> Any:
    """Softmax of each row; a row that may attend to nothing is zeros."""
    if 0 in logits.shape:
        return logits
    top = xp.max(logits, axis=-1, keepdims=True)
    powers = xp.exp(logits - xp.where(top == -math.inf, xp.zeros_like(top), top))
    total = xp.sum(powers, axis=-1, keepdims=True)
    return powers / xp.where(total == 0, total + 1, total)


def earlier(xp: Any, queries: int, keys: int) -> Any:
    """Whether a key is not later than a query [L, S]; both count from the first."""
    return xp.arange(queries)[:, None] >= xp.arange(keys)[None, :]


def linear(xp: Any, X: Any, weight: Any, bias: Any) -> Any:
    """X Wᵀ + b."""
    product = xp.matmul(X, xp.moveaxis(weight, 0, 1))
    return product if bias is None else product + bias


def split(xp: Any, x: Any, heads: int) -> Any:
    """[…, n, c] → […, h, n, c/h]."""
    *batch, tokens, width = x.shape
    return xp.moveaxis(xp.reshape(x, (*batch, tokens, heads, width // heads)), -2, -3)


WRITTEN: Final[Mapping[str, Callable[..., Tensors]]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            attention,
            dot_product_attention,
            causal_attention,
            scaled_dot_product_attention,
            multi_head_attention,
            attention_linear_layers,
            embedding,
        )
    }
)


def functions(xp: Any) -> dict[str, Callable[..., Tensors]]:
    """By profile: the function of a library's namespace."""
    return {name: partial(function, xp) for name, function in WRITTEN.items()}
