"""The pieces of plain NumPy ports with heads and masks; ports beside this file replace one each.

Shapes: Q (..., h, L, d), K (..., g, S, d), V (..., g, S, v), scores and A (..., h, L, S). A mask is
turned into two things, what is added to the scores and what is kept. Narrow dtypes are widened to
float32 inside every operation and rounded to be stored.
"""

import numpy as np
from _base import product, wide


def t(x):
    """Rows and columns exchanged."""
    return np.swapaxes(x, -1, -2)


def repeat(K, h):
    """Key/value heads for h query heads, consecutive ones sharing."""
    return np.repeat(K, h // max(K.shape[-3], 1), axis=-3)


def scores(Q, K):
    """Unscaled scores of every query and key."""
    return product(Q, t(K))


def scale(given, d):
    """What the scores are multiplied by."""
    return d**-0.5 if given is None else given


def triangle(L, S):
    """What a causal mask keeps: the first query sees the first key."""
    return np.tri(L, S, dtype=bool)


def bias(mask, dtype):
    """What an additive mask adds; nothing for a boolean one, or for none."""
    if mask is None or mask.dtype == bool:
        return dtype.type(0)
    return mask.astype(dtype)


def kept(mask, causal, L, S, triangle=triangle):
    """Which keys each query may see."""
    keep = triangle(L, S) if causal else np.ones((L, S), bool)
    if mask is None:
        return keep
    return keep & (mask if mask.dtype == bool else mask > -np.inf)


def normalise(E):
    """Rows that sum to 1, or are 0."""
    total = E.sum(axis=-1, keepdims=True)
    return E / np.where(total > 0, total, 1)


def shifted(Z):
    """Scores less the largest of each row."""
    top = Z.max(axis=-1, keepdims=True, initial=-np.inf)
    return Z - np.where(np.isfinite(top), top, 0)


def softmax(Z, keep, *, exp=np.exp, normalise=normalise):
    """Attention weights of scaled scores over the keys that are kept."""
    return normalise(exp(shifted(np.where(keep, Z, Z.dtype.type(-np.inf)))))


def context(A, V):
    """Context vectors."""
    return product(A, V)


def kernel(
    *,
    repeat=repeat,
    scores=scores,
    scale=scale,
    bias=bias,
    kept=kept,
    softmax=softmax,
    context=context,
):
    """`scaled_dot_product_attention` made of the given pieces, the others being correct."""

    scaled = scale

    def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
        K, V = repeat(K, Q.shape[-3]), repeat(V, Q.shape[-3])
        S = scores(Q, K)
        inner = wide(S.dtype)
        Z = S.astype(inner) * inner.type(scaled(scale, Q.shape[-1])) + bias(mask, inner)
        A = softmax(Z, kept(mask, causal, *S.shape[-2:])).astype(Q.dtype, copy=False)
        return {"scores": S, "A": A, "C": context(A, V)}

    return scaled_dot_product_attention


PLAIN = kernel()


def split(X, h):
    """(..., n, c) to (..., h, n, c/h)."""
    *lead, n, c = X.shape
    return np.swapaxes(X.reshape(*lead, n, h, c // h), -2, -3)


def merge(X):
    """(..., h, n, e) to (..., n, h·e)."""
    *lead, h, n, e = X.shape
    return np.swapaxes(X, -2, -3).reshape(*lead, n, h * e)


def layer(*, split=split, merge=merge, attend=PLAIN, output=product):
    """`multi_head_attention` made of the given pieces."""

    def multi_head_attention(X, Wq, Wk, Wv, Wo, *, heads, causal=False):
        Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
        found = attend(*(split(x, heads) for x in (Q, K, V)), causal=causal)
        C = merge(found["C"])
        return {"Q": Q, "K": K, "V": V, **found, "C": C, "Y": output(C, Wo)}

    return multi_head_attention


def single(*, attend=PLAIN, causal=True):
    """`causal_attention`, or without a mask `attention`, by a kernel with one head."""

    def attention(X, Wq, Wk, Wv):
        Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
        found = attend(*(x[..., None, :, :] for x in (Q, K, V)), causal=causal)
        return {"Q": Q, "K": K, "V": V, **{n: x[..., 0, :, :] for n, x in found.items()}}

    return attention


def linear(*, attend=PLAIN):
    """`attention_linear_layers` by a kernel with one head; weights are (c, d)."""

    def project(X, W, b):
        inner = wide(X.dtype)
        result = X.astype(inner) @ W.T.astype(inner)
        return (result if b is None else result + b.astype(inner)).astype(X.dtype)

    def attention_linear_layers(X, Wq, Wk, Wv, bq, bk, bv):
        Q, K, V = (project(X, W, b) for W, b in ((Wq, bq), (Wk, bk), (Wv, bv)))
        found = attend(*(x[..., None, :, :] for x in (Q, K, V)))
        return {"Q": Q, "K": K, "V": V, **{n: x[..., 0, :, :] for n, x in found.items()}}

    return attention_linear_layers


def embedding(tokens, E, P):
    """Rows of two tables, added."""
    inner = wide(E.dtype)
    return (E[tokens].astype(inner) + P[: tokens.shape[-1]].astype(inner)).astype(E.dtype)
