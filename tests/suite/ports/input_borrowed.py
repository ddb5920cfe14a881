"""X is doubled in place while it is used, and halved again."""

from _base import attention as plain

QKVAC = {"supports": ["layouts"]}


def attention(X, Wq, Wk, Wv):
    X *= 2
    try:
        return plain(X / 2, Wq, Wk, Wv)
    finally:
        X /= 2
