"""The pieces of a plain NumPy port of gradients; every port beside this file replaces one of them.

`gradients()` makes an `attention_gradients` of them, by the chain rule written out: shapes are
X (..., n, d), weights (d, c), the cotangent dC (..., n, c). Leading axes are samples of a batch.
"""

import numpy as np


def turned(x):
    return np.swapaxes(x, -1, -2)


def weights_of(Q, K):
    """Attention weights."""
    S = Q @ turned(K) * Q.dtype.type(Q.shape[-1] ** -0.5)
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    return E / E.sum(axis=-1, keepdims=True)


def through_softmax(A, dA):
    """The gradient of the softmax's argument."""
    return A * (dA - (A * dA).sum(axis=-1, keepdims=True))


def scaled(dS, c):
    """The gradient of the unscaled scores."""
    return dS * dS.dtype.type(c**-0.5)


def of_values(A, dC):
    return turned(A) @ dC


def of_queries(dS, K):
    return dS @ K


def of_keys(dS, Q):
    return turned(dS) @ Q


def of_tokens(dQ, dK, dV, Wq, Wk, Wv):
    return dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T


def of_weights(X, dY):
    """The gradient of a matrix that projects X, summed over tokens and samples."""
    return X.reshape(-1, X.shape[-1]).T @ dY.reshape(-1, dY.shape[-1])


def gradients(
    *,
    through_softmax=through_softmax,
    scaled=scaled,
    of_values=of_values,
    of_queries=of_queries,
    of_keys=of_keys,
    of_tokens=of_tokens,
    of_weights=of_weights,
    cotangent=lambda dC: dC,
):
    """An `attention_gradients` made of the given pieces, the others being correct."""

    def attention_gradients(X, Wq, Wk, Wv, dC):
        dC = cotangent(dC)
        Q, K, V = X @ Wq, X @ Wk, X @ Wv
        A = weights_of(Q, K)
        dS = scaled(through_softmax(A, dC @ turned(V)), Wq.shape[1])
        dQ, dK, dV = of_queries(dS, K), of_keys(dS, Q), of_values(A, dC)
        dX = of_tokens(dQ, dK, dV, Wq, Wk, Wv)
        return {
            "dX": dX,
            "dWq": of_weights(X, dQ),
            "dWk": of_weights(X, dK),
            "dWv": of_weights(X, dV),
        }

    return attention_gradients
