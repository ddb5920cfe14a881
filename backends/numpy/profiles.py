"""Self-attention as a user of NumPy writes it, in matrix form, profile by profile.

NumPy has no bfloat16 of its own, and the matrix product of ml_dtypes' bfloat16 comes back as
float32. So both 16-bit types are computed as frameworks compute them: products accumulate in
float32 and are rounded to the storage type, the softmax is evaluated in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
    Ω = product(Q, K.swapaxes(-1, -2))
    A = softmax(Ω, 1 / math.sqrt(K.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": product(A, V)}


def dot_product_attention(X: Any) -> dict[str, Any]:
    """Ω, A, C of X[…, n, d], whose tokens are queries, keys and values, without a scale."""
    Ω = product(X, X.swapaxes(-1, -2))
    A = softmax(Ω)
    return {"Ω": Ω, "A": A, "C": product(A, X)}


def causal_attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Like `attention`, where a token sees itself and earlier tokens."""
    Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
    Ω = product(Q, K.swapaxes(-1, -2))
    A = softmax(Ω, 1 / math.sqrt(K.shape[-1]), keep=triangle(Ω))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": product(A, V)}


def scaled_dot_product_attention(
    Q: Any,
    K: Any,
    V: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
) -> dict[str, Any]:
    """Ω, A, C of Q[…, h, L, d], K[…, g, S, d], V[…, g, S, v] and a mask for [..., h, L, S].

    A boolean mask says True for pairs to keep; an additive one drops pairs by −∞. Groups of h/g
    query heads share a key and value head.
    """
    group = Q.shape[-3] // max(K.shape[-3], 1)
    K, V = K.repeat(group, axis=-3), V.repeat(group, axis=-3)
    Ω = product(Q, K.swapaxes(-1, -2))
    keep, bias = (None, None) if mask is None else (mask, None)
    if mask is not None and mask.dtype != bool:
        keep, bias = ~np.isneginf(mask), mask
    if causal:
        keep = triangle(Ω) if keep is None else keep & triangle(Ω)
    A = softmax(Ω, 1 / math.sqrt(Q.shape[-1]) if scale is None else scale, bias, keep)
    return {"Ω": Ω, "A": A, "C": product(A, V)}


def multi_head_attention(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Q, K, V, C[…, n, c] with the heads beside each other, Ω and A[…, h, n, n], Y[…, n, o]."""
    Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
    *lead, c = Q.shape
    q, k, v = (x.reshape(*lead, heads, c // heads).swapaxes(-2, -3) for x in (Q, K, V))
    Ω = product(q, k.swapaxes(-1, -2))
    A = softmax(Ω, 1 / math.sqrt(c // heads), keep=triangle(Ω) if causal else None)
    C = product(A, v).swapaxes(-2, -3).reshape(Q.shape)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": C, "Y": product(C, Wo)}


def attention_linear_layers(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any
) -> dict[str, Any]:
    """Like `attention`, with weights [c, d] and biases [c] or None."""
    Q, K, V = product(X, Wq.T, bq), product(X, Wk.T, bk), product(X, Wv.T, bv)
    Ω = product(Q, K.swapaxes(-1, -2))
    A = softmax(Ω, 1 / math.sqrt(K.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": product(A, V)}


def embedding(tokens: Any, E: Any, P: Any) -> dict[str, Any]:
    """X[…, n, d] of tokens[…, n], from token embeddings E[t, d] and positions P[p, d]."""
    return {"X": E[tokens] + P[: tokens.shape[-1]]}


def cross_attention(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, Ω, A, C of X[…, n, d], and K, V of what it attends to, Z[…, m, e]."""
    Q, K, V = product(X, Wq), product(Z, Wk), product(Z, Wv)
    Ω = product(Q, K.swapaxes(-1, -2))
    A = softmax(Ω, 1 / math.sqrt(K.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": product(A, V)}


def product(left: Any, right: Any, bias: Any = None) -> Any:
    """left @ right + bias, accumulated in `wide` and rounded once, to the dtype of `left`."""
    accumulator = wide(left.dtype)
    result = left.astype(accumulator, copy=False) @ right.astype(accumulator, copy=False)
    if bias is not None:
        result = result + bias.astype(accumulator, copy=False)
    return result.astype(left.dtype, copy=False)


def triangle(scores: Any) -> Any:
    """[L, S], True where query i sees key j ≤ i."""
    return np.tri(*scores.shape[-2:], dtype=bool)


def softmax(scores: Any, scale: float = 1.0, bias: Any = None, keep: Any = None) -> Any:
    """Softmax of each row of scale·scores + bias over the keys to keep, else zeros.

    A row has its maximum among these keys, and none without any, hence the initial −∞.
    """
    logits = scores.astype(wide(scores.dtype), copy=False) * scale
    if bias is not None:
        logits = logits + bias.astype(logits.dtype)
    if keep is not None:
        logits = np.where(keep, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(logits - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=-1, keepdims=True)
    return (powers / np.where(total == 0, 1, total)).astype(scores.dtype, copy=False)


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The accumulator of a dtype: itself, but float32 for the 16-bit types."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


FUNCTIONS: Final = {
    function.__name__: function
    for function in (
        attention,
        dot_product_attention,
        causal_attention,
        scaled_dot_product_attention,
        multi_head_attention,
        attention_linear_layers,
        embedding,
        cross_attention,
    )
}
