"""The scores are divided by √c, not multiplied by its reciprocal."""

from _base import context, project, scores, softmax

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    Q, K, V = project(X, Wq, Wk, Wv)
    A = softmax(scores(Q, K) / X.dtype.type(K.shape[1] ** 0.5))
    return Q, K, V, A, context(A, V)
