"""A bare array: C alone."""

from _base import attention as plain

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    return plain(X, Wq, Wk, Wv)["C"]
