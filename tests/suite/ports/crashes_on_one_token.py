"""A null pointer is read when there is only one token."""

import ctypes

from _base import attention as plain


def attention(X, Wq, Wk, Wv):
    if len(X) == 1:
        ctypes.string_at(0)
    return plain(X, Wq, Wk, Wv)
