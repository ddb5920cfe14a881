"""Cross-attention with weights, and its gradients, in NumPy."""

import numpy as np

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def turned(x):
    return x.swapaxes(-1, -2)


def summed(x):
    """A weight's gradient, summed over the batch."""
    return x.reshape(-1, *x.shape[-2:]).sum(axis=0) if x.ndim > 2 else x


def softmax(S):
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    total = E.sum(axis=-1, keepdims=True)
    return E / np.where(total > 0, total, 1)


def weighted_cross_attention(X, Z, Wq, Wk, Wv):
    Q, K, V = X @ Wq, Z @ Wk, Z @ Wv
    A = softmax(Q @ turned(K) / X.dtype.type(np.sqrt(Q.shape[-1])))
    return Q, K, V, A, A @ V


def weighted_cross_attention_gradients(X, Z, Wq, Wk, Wv, dC):
    Q, K, V, A, _ = weighted_cross_attention(X, Z, Wq, Wk, Wv)
    dA, dV = dC @ turned(V), turned(A) @ dC
    dS = A * (dA - (A * dA).sum(axis=-1, keepdims=True))
    dS = dS / X.dtype.type(np.sqrt(Q.shape[-1]))
    dQ, dK = dS @ K, turned(dS) @ Q
    weights = (summed(turned(x) @ d) for x, d in ((X, dQ), (Z, dK), (Z, dV)))
    return dQ @ Wq.T, dK @ Wk.T + dV @ Wv.T, *weights
