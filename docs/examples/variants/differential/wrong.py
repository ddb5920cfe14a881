"""Five mistakes in differential attention: qkvac check wrong.py:NAME --spec equations.py."""

import numpy as np
from port import parts, softmax, turned

QKVAC = {"supports": ["batches", "empty", "layouts"], "dtypes": ["float64", "float32"]}


class added:
    """The second attention is added."""

    @staticmethod
    def differential_attention(X, W1, U1, W2, U2, Wv, lam):
        *_, V, _, A1, A2 = parts(X, W1, U1, W2, U2, Wv, lam)
        return (A1 + lam * A2) @ V


class lam_forgotten:
    """The second attention counts in full."""

    @staticmethod
    def differential_attention(X, W1, U1, W2, U2, Wv, lam):
        *_, V, _, A1, A2 = parts(X, W1, U1, W2, U2, Wv, lam)
        return (A1 - A2) @ V


class one_query:
    """Both attentions ask with the first queries."""

    @staticmethod
    def differential_attention(X, W1, U1, W2, U2, Wv, lam):
        *_, V, _, A1, A2 = parts(X, W1, U1, W1, U2, Wv, lam)
        return (A1 - lam * A2) @ V


class difference_of_scores:
    """One softmax of the difference, not the difference of two."""

    @staticmethod
    def differential_attention(X, W1, U1, W2, U2, Wv, lam):
        Q1, K1, Q2, K2, V, root, _, _ = parts(X, W1, U1, W2, U2, Wv, lam)
        return softmax((Q1 @ turned(K1) - lam * (Q2 @ turned(K2))) / root) @ V


class scale_of_both:
    """The width of both attentions together is taken for that of one."""

    @staticmethod
    def differential_attention(X, W1, U1, W2, U2, Wv, lam):
        Q1, K1, Q2, K2, V, root, _, _ = parts(X, W1, U1, W2, U2, Wv, lam)
        root = root * X.dtype.type(np.sqrt(2))
        A = softmax(Q1 @ turned(K1) / root) - lam * softmax(Q2 @ turned(K2) / root)
        return A @ V
