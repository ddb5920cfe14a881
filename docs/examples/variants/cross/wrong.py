"""Five mistakes in cross-attention: qkvac check wrong.py:NAME --spec equations.py."""

import numpy as np
from port import softmax, turned

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def root(X, width):
    return X.dtype.type(np.sqrt(width))


class width_of_tokens:
    """Scores are divided by the root of the width of the tokens."""

    @staticmethod
    def weighted_cross_attention(X, Z, Wq, Wk, Wv):
        return softmax(X @ Wq @ turned(Z @ Wk) / root(X, X.shape[-1])) @ (Z @ Wv)


class keys_for_values:
    """The weight of the keys projects the values."""

    @staticmethod
    def weighted_cross_attention(X, Z, Wq, Wk, Wv):
        return softmax(X @ Wq @ turned(Z @ Wk) / root(X, Wq.shape[-1])) @ (Z @ Wk)


class not_scaled:
    """Scores are not divided by anything."""

    @staticmethod
    def weighted_cross_attention(X, Z, Wq, Wk, Wv):
        return softmax(X @ Wq @ turned(Z @ Wk)) @ (Z @ Wv)


class causal:
    """A query sees no later keys, as if it stood in the same sequence."""

    @staticmethod
    def weighted_cross_attention(X, Z, Wq, Wk, Wv):
        S = X @ Wq @ turned(Z @ Wk) / root(X, Wq.shape[-1])
        return softmax(np.where(np.tri(*S.shape[-2:], dtype=bool), S, -np.inf)) @ (Z @ Wv)


class over_queries:
    """The softmax runs over the queries of a key."""

    @staticmethod
    def weighted_cross_attention(X, Z, Wq, Wk, Wv):
        S = X @ Wq @ turned(Z @ Wk) / root(X, Wq.shape[-1])
        return turned(softmax(turned(S))) @ (Z @ Wv)
