"""The pieces of a plain NumPy port; every port beside this file replaces one of them.

A faulty port then shows its fault in a line or two. `attention` here is correct, and so is
`port()`; shapes are those of the profile: X (n, d), weights (d, c), scores and A (n, n).
Narrow dtypes are widened to float32 inside every operation and rounded to be stored.
"""

import numpy as np


def wide(dtype):
    """The dtype that operations on `dtype` are carried out in: float32 or wider."""
    return np.promote_types(dtype, np.float32)


def product(x, y):
    """x @ y, stored in x's dtype."""
    inner = wide(x.dtype)
    return (x.astype(inner, copy=False) @ y.astype(inner, copy=False)).astype(x.dtype, copy=False)


def project(X, Wq, Wk, Wv, product=product):
    """Queries, keys and values."""
    return product(X, Wq), product(X, Wk), product(X, Wv)


def scores(Q, K):
    """Unscaled scores of every query (row) and key (column)."""
    return product(Q, K.T)


def scale(n, d, c):
    """What the scores are multiplied by."""
    return c**-0.5


def maximum(S):
    """What is subtracted before the exponential: the largest score of each row."""
    return S.max(axis=1, keepdims=True, initial=-np.inf)


def normalise(E):
    """Rows that sum to 1."""
    return E / E.sum(axis=1, keepdims=True)


def softmax(S, *, maximum=maximum, exp=np.exp, normalise=normalise):
    """Attention weights of scaled scores."""
    return normalise(exp(S - maximum(S)))


def context(A, V):
    """Context vectors."""
    return product(A, V)


def port(*, project=project, scores=scores, scale=scale, softmax=softmax, context=context):
    """An `attention` function made of the given pieces, the others being correct."""

    def attention(X, Wq, Wk, Wv):
        Q, K, V = project(X, Wq, Wk, Wv)
        S = scores(Q, K)
        inner = wide(S.dtype)
        scaled = S.astype(inner) * inner.type(scale(*X.shape, Wq.shape[1]))
        A = softmax(scaled).astype(X.dtype, copy=False)
        return {"Q": Q, "K": K, "V": V, "scores": S, "A": A, "C": context(A, V)}

    return attention


def port_with(product):
    """A port all of whose matrix products are made by `product(x, y)`."""
    return port(
        project=lambda X, *weights: tuple(product(X, W) for W in weights),
        scores=lambda Q, K: product(Q, K.T),
        context=product,
    )


attention = port()
