"""Queries and keys are both divided by the fourth root of c."""

from _base import context, project, scores, softmax

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    Q, K, V = project(X, Wq, Wk, Wv)
    root = X.dtype.type(K.shape[1] ** -0.25)
    A = softmax(scores(Q * root, K * root))
    return Q, K, V, A, context(A, V)
