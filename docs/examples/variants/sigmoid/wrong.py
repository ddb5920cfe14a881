"""Five mistakes in sigmoid attention: qkvac check wrong.py:NAME --spec equations.py."""

import numpy as np
from port import sigmoid, turned

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def scores(X, Wq, Wk, bias):
    Q, K = X @ Wq, X @ Wk
    return Q @ turned(K) / X.dtype.type(np.sqrt(Q.shape[-1])) + X.dtype.type(bias)


class no_bias:
    """The bias is forgotten."""

    @staticmethod
    def sigmoid_attention(X, Wq, Wk, Wv, *, bias):
        return sigmoid(scores(X, Wq, Wk, 0)) @ (X @ Wv)


class bias_subtracted:
    """The bias has the other sign."""

    @staticmethod
    def sigmoid_attention(X, Wq, Wk, Wv, *, bias):
        return sigmoid(scores(X, Wq, Wk, -bias)) @ (X @ Wv)


class softmax_instead:
    """The weights of a row add up to 1, as those of a softmax do."""

    @staticmethod
    def sigmoid_attention(X, Wq, Wk, Wv, *, bias):
        S = scores(X, Wq, Wk, bias)
        E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
        return E / E.sum(axis=-1, keepdims=True) @ (X @ Wv)


class hard_sigmoid:
    """A sigmoid of straight lines, which saves the exponential."""

    @staticmethod
    def sigmoid_attention(X, Wq, Wk, Wv, *, bias):
        S = scores(X, Wq, Wk, bias)
        A = np.clip(S / X.dtype.type(6) + X.dtype.type(0.5), 0, 1)
        return A.astype(X.dtype) @ (X @ Wv)


class keys_for_values:
    """The weight of the keys projects the values."""

    @staticmethod
    def sigmoid_attention(X, Wq, Wk, Wv, *, bias):
        return sigmoid(scores(X, Wq, Wk, bias)) @ (X @ Wk)
