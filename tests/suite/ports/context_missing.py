"""C is left out."""

from _base import attention as plain


def attention(X, Wq, Wk, Wv):
    result = plain(X, Wq, Wk, Wv)
    del result["C"]
    return result
