"""The scale is multiplied into the caller's Wq."""

from _base import attention as plain
from _base import port

unscaled = port(scale=lambda n, d, c: 1.0)


def attention(X, Wq, Wk, Wv):
    result = plain(X, Wq, Wk, Wv)
    Wq *= Wq.dtype.type(Wq.shape[1] ** -0.5)
    return {**result, "C": unscaled(X, Wq, Wk, Wv)["C"]}
