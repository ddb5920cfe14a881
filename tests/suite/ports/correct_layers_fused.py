"""A bias as one more row of the weights, one product for Q, K and V, and one-hot tokens."""

import numpy as np
from _base import product
from _kernels import normalise, shifted, t

QKVAC = {"supports": "all"}


def fused(X, weights, biases):
    rows = (0 * W[:1] if b is None else b[None] for W, b in zip(weights, biases, strict=True))
    stacked = [np.concatenate(pair) for pair in zip(weights, rows, strict=True)]
    padded = np.concatenate([X, np.ones_like(X[..., :1])], axis=-1)
    return np.split(product(padded, np.concatenate(stacked, axis=1)), 3, axis=-1)


def attention_linear_layers(X, Wq, Wk, Wv, bq, bk, bv):
    Q, K, V = fused(X, (Wq.T, Wk.T, Wv.T), (bq, bk, bv))
    A = normalise(np.exp(shifted(product(Q, t(K)) * Q.dtype.type(len(Wk) ** -0.5))))
    return {"Q": Q, "K": K, "V": V, "A": A, "C": product(A, V)}


def embedding(tokens, E, P):
    one_hot = (tokens[..., None] == np.arange(len(E))).astype(E.dtype)
    return product(one_hot, E) + P[: tokens.shape[-1]]
