"""Attention with a temperature for each head, and its gradients, in NumPy."""

import numpy as np

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def turned(x):
    return x.swapaxes(-1, -2)


def split(x, heads):
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)


def merge(x):
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def summed(x, axes):
    """A gradient of what the samples of a batch share."""
    for _ in range(x.ndim - axes):
        x = x.sum(axis=0)
    return x


def softmax(S, causal):
    S = np.where(np.tri(S.shape[-1], dtype=bool), S, S.dtype.type(-np.inf)) if causal else S
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    return E / E.sum(axis=-1, keepdims=True)


def tempered_attention(X, Wq, Wk, Wv, tau, *, heads, causal=False):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    A = softmax(split(Q, heads) @ turned(split(K, heads)) * tau, causal)
    return Q, K, V, A, merge(A @ split(V, heads))


def tempered_attention_gradients(X, Wq, Wk, Wv, tau, dC, *, heads, causal=False):
    Q, K, V, A, _ = tempered_attention(X, Wq, Wk, Wv, tau, heads=heads, causal=causal)
    q, k, v, d = (split(x, heads) for x in (Q, K, V, dC))
    dA = d @ turned(v)
    dS = A * (dA - (A * dA).sum(axis=-1, keepdims=True))
    dQ, dK, dV = merge(dS * tau @ k), merge(turned(dS * tau) @ q), merge(turned(A) @ d)
    dtau = (dS * (q @ turned(k))).sum(axis=(-1, -2), keepdims=True)
    weights = (summed(turned(X) @ d, 2) for d in (dQ, dK, dV))
    return dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T, *weights, summed(dtau, 3)
