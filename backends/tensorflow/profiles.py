"""Self-attention as a user of TensorFlow writes it, profile by profile.

`tf.nn.softmax` multiplies by a reciprocal outside XLA, so the softmax is written out with its
division; for the 16-bit types it is evaluated in float32, because `tf.reduce_sum` accumulates
float16 in float16. The default scale is a square root taken in the tensor's dtype, and an explicit
one a constant of it: `tf.cast` of a Python float would pass through float32.
"""

from __future__ import annotations

import math
from typing import Any, Final


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    import tensorflow as tf

    Q, K, V = tf.matmul(X, Wq), tf.matmul(X, Wk), tf.matmul(X, Wv)
    Ω = tf.matmul(Q, K, transpose_b=True)
    A = softmax(Ω / root(K.shape[-1], Ω.dtype))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": tf.matmul(A, V)}


def cross_attention(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, Ω, A, C of X[…, n, d], and K, V of what it attends to, Z[…, m, e]."""
    import tensorflow as tf

    Q, K, V = tf.matmul(X, Wq), tf.matmul(Z, Wk), tf.matmul(Z, Wv)
    Ω = tf.matmul(Q, K, transpose_b=True)
    A = softmax(Ω / root(K.shape[-1], Ω.dtype))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": tf.matmul(A, V)}


def dot_product_attention(X: Any) -> dict[str, Any]:
    """Ω, A, C of X[…, n, d], without weights and without scale."""
    import tensorflow as tf

    Ω = tf.matmul(X, X, transpose_b=True)
    A = softmax(Ω)
    return {"Ω": Ω, "A": A, "C": tf.matmul(A, X)}


def causal_attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """As `attention`, but a token sees itself and earlier tokens."""
    import tensorflow as tf

    Q, K, V = tf.matmul(X, Wq), tf.matmul(X, Wk), tf.matmul(X, Wv)
    Ω = tf.matmul(Q, K, transpose_b=True)
    A = softmax(Ω / root(K.shape[-1], Ω.dtype), triangle(Ω))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": tf.matmul(A, V)}


def scaled_dot_product_attention(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """Ω, A, C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]; g divides h.

    The mask broadcasts to […, h, L, S]; a boolean one keeps where it is true, an additive one
    wherever it is not −∞. A query that has no keys gets zeros.
    """
    import tensorflow as tf

    K, V = shared(K, Q.shape[-3]), shared(V, Q.shape[-3])
    Ω = tf.matmul(Q, K, transpose_b=True)
    logits = widened(Ω)
    if scale is None:
        logits /= root(Q.shape[-1], logits.dtype)
    else:
        logits *= tf.constant(scale, logits.dtype)
    where = triangle(Ω) if causal else None
    if mask is not None:
        kept = mask if mask.dtype == tf.bool else mask != tf.constant(-math.inf, mask.dtype)
        where = kept if where is None else kept & where
        logits = logits if mask.dtype == tf.bool else logits + tf.cast(mask, logits.dtype)
    A = tf.cast(softmax(logits, where), Ω.dtype)
    return {"Ω": Ω, "A": A, "C": tf.matmul(A, V)}


def multi_head_attention(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Q, K, V[…, n, c], Ω and A[…, heads, n, n], C[…, n, c] and Y[…, n, o] of X[…, n, d]."""
    import tensorflow as tf

    Q, K, V = tf.matmul(X, Wq), tf.matmul(X, Wk), tf.matmul(X, Wv)
    q, k, v = split(Q, heads), split(K, heads), split(V, heads)
    Ω = tf.matmul(q, k, transpose_b=True)
    A = softmax(Ω / root(q.shape[-1], Ω.dtype), triangle(Ω) if causal else None)
    C = tf.reshape(swapped(tf.matmul(A, v)), Q.shape)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": C, "Y": tf.matmul(C, Wo)}


def attention_linear_layers(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any = None, bk: Any = None, bv: Any = None
) -> dict[str, Any]:
    """As `attention`, of weights [c, d] and biases [c]; a bias may be None."""
    import tensorflow as tf

    Q, K, V = linear(X, Wq, bq), linear(X, Wk, bk), linear(X, Wv, bv)
    Ω = tf.matmul(Q, K, transpose_b=True)
    A = softmax(Ω / root(K.shape[-1], Ω.dtype))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": tf.matmul(A, V)}


def embedding(tokens: Any, E: Any, P: Any) -> dict[str, Any]:
    """X[…, n, d] of tokens[…, n], their embeddings E[t, d] and those of positions P[p, d]."""
    import tensorflow as tf

    return {"X": tf.gather(E, tokens) + P[: tokens.shape[-1]]}


def softmax(logits: Any, where: Any = None) -> Any:
    """Softmax of each row over the keys kept by `where`, in the dtype of `logits`.

    Other keys get 0. A row without keys has no maximum, and is all zeros. No gradient goes through
    the maximum: no value depends on it, so what went through would be rounding error.
    """
    import tensorflow as tf

    wide = widened(logits)
    if where is not None:
        wide = tf.where(where, wide, tf.constant(-math.inf, wide.dtype))
    largest = tf.reduce_max(tf.stop_gradient(wide), axis=-1, keepdims=True)
    largest = tf.maximum(largest, wide.dtype.min)
    powers = tf.exp(wide - largest)
    total = tf.reduce_sum(powers, axis=-1, keepdims=True)
    weights = powers / total if where is None else tf.math.divide_no_nan(powers, total)
    return tf.cast(weights, logits.dtype)


def widened(x: Any) -> Any:
    """The 16-bit types as float32, in which a score has room for any bias of its own type."""
    import tensorflow as tf

    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


def root(width: int, dtype: Any) -> Any:
    """√width, taken in the dtype."""
    import tensorflow as tf

    return tf.sqrt(tf.cast(width, dtype))


def triangle(scores: Any) -> Any:
    """Query i may see key j ≤ i, counted from the first of each."""
    import tensorflow as tf

    queries, keys = scores.shape[-2:]
    return tf.range(queries)[:, None] >= tf.range(keys)


def shared(x: Any, heads: int) -> Any:
    """Key or value heads, each as often in succession as consecutive query heads share it."""
    import tensorflow as tf

    groups = x.shape[-3]
    return x if groups == heads else tf.repeat(x, heads // groups, axis=-3)


def split(x: Any, heads: int) -> Any:
    """[…, n, c] as heads: […, heads, n, c / heads]."""
    import tensorflow as tf

    *lead, width = x.shape
    return swapped(tf.reshape(x, [*lead, heads, width // heads]))


def swapped(x: Any) -> Any:
    """[…, i, j, k] as […, j, i, k]."""
    import tensorflow as tf

    *lead, i, j, k = range(x.shape.rank)
    return tf.transpose(x, [*lead, j, i, k])


def linear(X: Any, W: Any, b: Any) -> Any:
    """A linear layer: W[c, d] as such layers store it, and its bias or None."""
    import tensorflow as tf

    product = tf.matmul(X, W, transpose_b=True)
    return product if b is None else product + b


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
