"""The thread's floating-point environment is left flushing subnormals."""

from _base import attention as plain
from _environment import flush_subnormals


def attention(X, Wq, Wk, Wv):
    result = plain(X, Wq, Wk, Wv)
    flush_subnormals()
    return result
