"""All calls of a shape return C in one buffer: an earlier result changes under its owner."""

from _base import context, port

buffers = {}


def reused(A, V):
    C = context(A, V)
    buffer = buffers.setdefault((C.shape, C.dtype), C)
    buffer[...] = C
    return buffer


attention = port(context=reused)
