"""Five mistakes in tempered attention: qkvac check wrong.py:NAME --spec equations.py."""

import numpy as np
from port import merge, softmax, split, turned

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


def attention(X, Wq, Wk, Wv, heads, scaled, causal):
    q, k, v = (split(X @ W, heads) for W in (Wq, Wk, Wv))
    return merge(softmax(scaled(q @ turned(k)), causal) @ v)


class divided:
    """Scores are divided by the temperature."""

    @staticmethod
    def tempered_attention(X, Wq, Wk, Wv, tau, *, heads, causal=False):
        return attention(X, Wq, Wk, Wv, heads, lambda S: S / tau, causal)


class same_for_all:
    """All heads have the temperature of the first."""

    @staticmethod
    def tempered_attention(X, Wq, Wk, Wv, tau, *, heads, causal=False):
        return attention(X, Wq, Wk, Wv, heads, lambda S: S * tau[:1], causal)


class scaled_as_well:
    """The usual scale is still there."""

    @staticmethod
    def tempered_attention(X, Wq, Wk, Wv, tau, *, heads, causal=False):
        root = X.dtype.type(np.sqrt(Wq.shape[-1] // heads))
        return attention(X, Wq, Wk, Wv, heads, lambda S: S * tau / root, causal)


class forgotten:
    """There is no temperature."""

    @staticmethod
    def tempered_attention(X, Wq, Wk, Wv, tau, *, heads, causal=False):
        return attention(X, Wq, Wk, Wv, heads, lambda S: S, causal)


class never_causal:
    """The flag is ignored."""

    @staticmethod
    def tempered_attention(X, Wq, Wk, Wv, tau, *, heads, causal=False):
        return attention(X, Wq, Wk, Wv, heads, lambda S: S * tau, False)
