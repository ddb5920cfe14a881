"""A squeezed axis is missed when there is only one token."""

from _base import attention as plain


def attention(X, Wq, Wk, Wv):
    _n, _d = X.squeeze().shape
    return plain(X, Wq, Wk, Wv)
