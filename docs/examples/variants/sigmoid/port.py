"""Sigmoid attention and its gradients in NumPy."""

import numpy as np

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def turned(x):
    return x.swapaxes(-1, -2)


def summed(x):
    """A weight's gradient, summed over the batch."""
    return x.reshape(-1, *x.shape[-2:]).sum(axis=0) if x.ndim > 2 else x


def sigmoid_attention(X, Wq, Wk, Wv, *, bias):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    root = X.dtype.type(np.sqrt(Q.shape[-1]))
    A = sigmoid(Q @ turned(K) / root + X.dtype.type(bias))
    return Q, K, V, A, A @ V


def sigmoid_attention_gradients(X, Wq, Wk, Wv, dC, *, bias):
    Q, K, V, A, _ = sigmoid_attention(X, Wq, Wk, Wv, bias=bias)
    dA, dV = dC @ turned(V), turned(A) @ dC
    dS = dA * A * (1 - A) / X.dtype.type(np.sqrt(Q.shape[-1]))
    dQ, dK = dS @ K, turned(dS) @ Q
    dX = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T
    return dX, *(summed(turned(X) @ d) for d in (dQ, dK, dV))
