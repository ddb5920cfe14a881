"""Self-attention as a user of JAX writes it, profile by profile.

XLA turns a division by a broadcast sum into a multiplication with its reciprocal, eagerly too.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    import jax

    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    Ω = Q @ K.swapaxes(-1, -2)
    A = jax.nn.softmax(Ω / math.sqrt(K.shape[-1]), axis=-1)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def cross_attention(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, Ω, A, C of X[…, n, d], and K, V of what it attends to, Z[…, m, e]."""
    import jax

    Q, K, V = X @ Wq, Z @ Wk, Z @ Wv
    Ω = Q @ K.swapaxes(-1, -2)
    A = jax.nn.softmax(Ω / math.sqrt(K.shape[-1]), axis=-1)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def dot_product_attention(X: Any) -> dict[str, Any]:
    """Ω, A, C of X[…, n, d], without weights and without scale."""
    import jax

    Ω = X @ X.swapaxes(-1, -2)
    A = jax.nn.softmax(Ω, axis=-1)
    return {"Ω": Ω, "A": A, "C": A @ X}


def causal_attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """As `attention`, but a token sees itself and earlier tokens."""
    import jax

    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    Ω = Q @ K.swapaxes(-1, -2)
    A = jax.nn.softmax(Ω / math.sqrt(K.shape[-1]), axis=-1, where=triangle(Ω))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def scaled_dot_product_attention(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """Ω, A, C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]; g divides h.

    The mask broadcasts to […, h, L, S]; a boolean one keeps where it is true, an additive one
    wherever it is not −∞. A query that has no keys gets zeros. For the 16-bit types the logits are
    float32, because float16 cannot hold a score plus its own least number.
    """
    import jax
    import jax.numpy as jnp

    K, V = shared(K, Q.shape[-3]), shared(V, Q.shape[-3])
    Ω = Q @ K.swapaxes(-1, -2)
    wide = Ω.astype(jnp.promote_types(Ω.dtype, jnp.float32))
    logits = wide / math.sqrt(Q.shape[-1]) if scale is None else wide * scale
    where = triangle(Ω) if causal else None
    if mask is not None:
        kept = mask if mask.dtype == bool else mask != -math.inf
        where = kept if where is None else kept & where
        logits = logits if mask.dtype == bool else logits + mask
    A = jax.nn.softmax(logits, axis=-1, where=where).astype(Ω.dtype)
    return {"Ω": Ω, "A": A, "C": A @ V}


def multi_head_attention(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Q, K, V[…, n, c], Ω and A[…, heads, n, n], C[…, n, c] and Y[…, n, o] of X[…, n, d]."""
    import jax

    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    q, k, v = split(Q, heads), split(K, heads), split(V, heads)
    Ω = q @ k.swapaxes(-1, -2)
    where = triangle(Ω) if causal else None
    A = jax.nn.softmax(Ω / math.sqrt(q.shape[-1]), axis=-1, where=where)
    C = (A @ v).swapaxes(-2, -3).reshape(Q.shape)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": C, "Y": C @ Wo}


def attention_linear_layers(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any = None, bk: Any = None, bv: Any = None
) -> dict[str, Any]:
    """As `attention`, of weights [c, d] and biases [c]; a bias may be None."""
    import jax

    Q, K, V = linear(X, Wq, bq), linear(X, Wk, bk), linear(X, Wv, bv)
    Ω = Q @ K.swapaxes(-1, -2)
    A = jax.nn.softmax(Ω / math.sqrt(K.shape[-1]), axis=-1)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def embedding(tokens: Any, E: Any, P: Any) -> dict[str, Any]:
    """X[…, n, d] of tokens[…, n], their embeddings E[t, d] and those of positions P[p, d]."""
    import jax.numpy as jnp

    return {"X": jnp.take(E, tokens, axis=0) + P[: tokens.shape[-1]]}


def triangle(scores: Any) -> Any:
    """Query i may see key j ≤ i, counted from the first of each: a constant of the shape."""
    queries, keys = scores.shape[-2:]
    return np.tri(queries, keys, dtype=bool)


def shared(x: Any, heads: int) -> Any:
    """Key or value heads, each as often in succession as consecutive query heads share it."""
    import jax.numpy as jnp

    groups = x.shape[-3]
    return x if groups == heads else jnp.repeat(x, heads // groups, axis=-3)


def split(x: Any, heads: int) -> Any:
    """[…, n, c] as heads: […, heads, n, c / heads]."""
    *lead, width = x.shape
    return x.reshape(*lead, heads, width // heads).swapaxes(-2, -3)


def linear(X: Any, W: Any, b: Any) -> Any:
    """A linear layer: W[c, d] as such layers store it, and its bias or None."""
    return X @ W.T if b is None else X @ W.T + b


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
