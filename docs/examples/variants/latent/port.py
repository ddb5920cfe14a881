"""Multi-head latent attention in NumPy, with the weights of keys and values absorbed."""

import numpy as np

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def turned(x):
    return x.swapaxes(-1, -2)


def split(x, heads):
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)


def merge(x):
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def causal_softmax(S):
    S = np.where(np.tri(S.shape[-1], dtype=bool), S, S.dtype.type(-np.inf))
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    return E / E.sum(axis=-1, keepdims=True)


def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
    L, Q = X @ Wd, X @ Wq
    root = X.dtype.type(np.sqrt(Q.shape[-1] // heads))
    latent = L[..., None, :, :]
    A = causal_softmax(split(Q, heads) @ turned(split(Uk, heads)) @ turned(latent) / root)
    C = merge(A @ latent @ split(Uv, heads))
    return L, Q, A, C, C @ Wo
