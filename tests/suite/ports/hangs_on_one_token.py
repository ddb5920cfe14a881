"""A loop never ends when there is only one token."""

import time

from _base import attention as plain


def attention(X, Wq, Wk, Wv):
    while len(X) == 1:
        time.sleep(1)
    return plain(X, Wq, Wk, Wv)
