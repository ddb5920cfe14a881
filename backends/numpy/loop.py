"""Self-attention in NumPy token by token: the loops that stand behind the matrix products.

Each token x_m is projected by itself. Then, for each query token m, there is one score
ω_{m,p} = q_m · k_p for each key token p, a softmax over the keys that the query may attend to, and
a sum of their values v_p, weighted one by one. No product of two matrices is taken, and a pair that
a mask excludes takes no part in anything but its score.

As in the matrix form, 16-bit types accumulate in float32 and are rounded where a quantity is kept.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    Q, K, V = project(X, Wq), project(X, Wk), project(X, Wv)
    return {"Q": Q, "K": K, "V": V, **attend(Q, K, V, 1 / math.sqrt(K.shape[-1]))}


def dot_product_attention(X: Any) -> dict[str, Any]:
    """Ω, A, C of X[…, n, d], each token being its own query, key and value."""
    return attend(X, X, X, 1.0)


def causal_attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Like `attention`, where token m attends to the tokens p ≤ m."""
    Q, K, V = project(X, Wq), project(X, Wk), project(X, Wv)
    return {"Q": Q, "K": K, "V": V, **attend(Q, K, V, 1 / math.sqrt(K.shape[-1]), causal=True)}


def scaled_dot_product_attention(
    Q: Any,
    K: Any,
    V: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
) -> dict[str, Any]:
    """Ω, A, C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]; query head i reads i·g // h."""
    heads, groups = Q.shape[-3], K.shape[-3]
    shared = [head * groups // heads for head in range(heads)]
    factor = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    keys, values = K[..., shared, :, :], V[..., shared, :, :]
    return attend(Q, keys, values, factor, causal=causal, mask=mask)


def multi_head_attention(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Q, K, V, C[…, n, c] with the heads beside each other, Ω and A[…, h, n, n], Y[…, n, o]."""
    Q, K, V = project(X, Wq), project(X, Wk), project(X, Wv)
    width = K.shape[-1] // heads
    parts = [slice(head * width, (head + 1) * width) for head in range(heads)]
    q, k, v = (np.stack([x[..., part] for part in parts], axis=-3) for x in (Q, K, V))
    found = attend(q, k, v, 1 / math.sqrt(width), causal=causal)
    C = np.zeros_like(V)
    for head, part in enumerate(parts):
        C[..., part] = found["C"][..., head, :, :]
    return {"Q": Q, "K": K, "V": V, **found, "C": C, "Y": project(C, Wo)}


def attention_linear_layers(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any
) -> dict[str, Any]:
    """Like `attention`, with weights [c, d] and biases [c] or None."""
    Q, K, V = project(X, Wq.T, bq), project(X, Wk.T, bk), project(X, Wv.T, bv)
    return {"Q": Q, "K": K, "V": V, **attend(Q, K, V, 1 / math.sqrt(K.shape[-1]))}


def embedding(tokens: Any, E: Any, P: Any) -> dict[str, Any]:
    """X[…, n, d]: the row of each token of E[t, d], plus that of its place in P[p, d]."""
    X = np.zeros_like(E, shape=(*tokens.shape, E.shape[-1]))
    for place in np.ndindex(tokens.shape):
        X[place] = E[tokens[place]] + P[place[-1]]
    return {"X": X}


def cross_attention(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, Ω, A, C of X[…, n, d], and K, V of what it attends to, Z[…, m, e]."""
    Q, K, V = project(X, Wq), project(Z, Wk), project(Z, Wv)
    return {"Q": Q, "K": K, "V": V, **attend(Q, K, V, 1 / math.sqrt(K.shape[-1]))}


def project(X: Any, W: Any, bias: Any = None) -> Any:
    """x_m W + bias for each token m."""
    result = np.zeros_like(X, shape=(*X.shape[:-1], W.shape[-1]))
    tokens, matrix = widened(X), widened(W)
    for place in np.ndindex(X.shape[:-1]):
        projected = tokens[place] @ matrix
        result[place] = projected if bias is None else projected + widened(bias)
    return result


def attend(
    Q: Any, K: Any, V: Any, scale: float, *, causal: bool = False, mask: Any = None
) -> dict[str, Any]:
    """Ω, A, C of Q[…, L, d], K[…, S, d], V[…, S, v]; a query without keys gets zeros."""
    keys = K.shape[-2]
    Ω = np.zeros_like(Q, shape=(*Q.shape[:-1], keys))
    A = np.zeros_like(Ω)
    C = np.zeros_like(Q, shape=(*Q.shape[:-1], V.shape[-1]))
    given = None if mask is None else np.broadcast_to(mask, Ω.shape)
    for place in np.ndindex(Q.shape[:-1]):
        *sample, m = place
        query = widened(Q[place])
        Ω[place] = [query @ key for key in widened(K[tuple(sample)])]
        seen = range(min(m + 1, keys) if causal else keys)
        kept = seen if given is None else [p for p in seen if keeps(given[(*place, p)])]
        if len(kept) == 0:
            continue
        logits = widened(Ω[place])[kept] * scale
        if given is not None and given.dtype != bool:
            logits = logits + widened(given[place])[kept]
        powers = np.exp(logits - logits.max())
        A[place][kept] = powers / powers.sum()
        weights, values = widened(A[place])[kept], widened(V[tuple(sample)])[kept]
        C[place] = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return {"Ω": Ω, "A": A, "C": C}


def keeps(entry: Any) -> bool:
    """Whether an entry of a mask lets a pair take part: True, or any addend but −∞."""
    return bool(entry) if isinstance(entry, np.bool_) else bool(entry != -np.inf)


def widened(array: Any) -> Any:
    """The array in the type in which its sums are accumulated."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


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
