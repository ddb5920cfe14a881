"""A residual connection crept in: C = A V + X where the widths agree."""

from _base import attention as plain


def attention(X, Wq, Wk, Wv):
    result = plain(X, Wq, Wk, Wv)
    if X.shape == result["C"].shape:
        result["C"] = result["C"] + X
    return result
