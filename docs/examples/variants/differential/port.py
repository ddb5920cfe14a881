"""Differential attention and its gradients in NumPy."""

import numpy as np

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def turned(x):
    return x.swapaxes(-1, -2)


def summed(x, axes=2):
    """A gradient of what the samples of a batch share."""
    return x.reshape(-1, *x.shape[x.ndim - axes :]).sum(axis=0)


def softmax(S):
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    return E / E.sum(axis=-1, keepdims=True)


def softmax_gradient(A, dA):
    return A * (dA - (A * dA).sum(axis=-1, keepdims=True))


def parts(X, W1, U1, W2, U2, Wv, lam):
    Q1, K1, Q2, K2 = X @ W1, X @ U1, X @ W2, X @ U2
    root = X.dtype.type(np.sqrt(Q1.shape[-1]))
    A1, A2 = softmax(Q1 @ turned(K1) / root), softmax(Q2 @ turned(K2) / root)
    return Q1, K1, Q2, K2, X @ Wv, root, A1, A2


def differential_attention(X, W1, U1, W2, U2, Wv, lam):
    *_, V, _, A1, A2 = parts(X, W1, U1, W2, U2, Wv, lam)
    A = A1 - lam * A2
    return A, A @ V


def differential_attention_gradients(X, W1, U1, W2, U2, Wv, lam, dC):
    Q1, K1, Q2, K2, V, root, A1, A2 = parts(X, W1, U1, W2, U2, Wv, lam)
    dA = dC @ turned(V)
    dS1, dS2 = softmax_gradient(A1, dA) / root, softmax_gradient(A2, -lam * dA) / root
    dV = turned(A1 - lam * A2) @ dC
    handed = {"W1": dS1 @ K1, "U1": turned(dS1) @ Q1, "W2": dS2 @ K2, "U2": turned(dS2) @ Q2}
    weights = {"W1": W1, "U1": U1, "W2": W2, "U2": U2}
    dX = dV @ Wv.T + sum(d @ weights[name].T for name, d in handed.items())
    dlam = -(A2 * dA).sum().reshape(1)
    return dX, *(summed(turned(X) @ d) for d in (*handed.values(), dV)), dlam
