"""Subnormals are flushed inside the call, as declared, and nowhere else."""

from _base import attention as plain
from _environment import environment, flush_subnormals, restore

QKVAC = {
    "supports": ["layouts", "empty"],
    "arithmetic": {"softmax": "shifted, divided", "flushes": True},
}


def attention(X, Wq, Wk, Wv):
    before = environment()
    flush_subnormals()
    try:
        return plain(X, Wq, Wk, Wv)
    finally:
        restore(before)
