"""The thread's floating-point environment is left rounding upward."""

from _base import attention as plain
from _environment import round_upward


def attention(X, Wq, Wk, Wv):
    result = plain(X, Wq, Wk, Wv)
    round_upward()
    return result
