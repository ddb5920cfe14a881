"""1/√c is folded into the queries; the reported Q is the unscaled one."""

from _base import context, project, scale, scores, softmax

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    Q, K, V = project(X, Wq, Wk, Wv)
    A = softmax(scores(Q * Q.dtype.type(scale(*X.shape, Wq.shape[1])), K))
    return Q, K, V, A, context(A, V)
