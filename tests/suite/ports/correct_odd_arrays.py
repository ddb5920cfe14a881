"""Every result is another kind of array, in another memory layout, and its zeros are −0."""

import numpy as np
from _base import attention as plain

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


class OnlyArray:
    """Converts by `__array__` alone."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class OnlyDLPack:
    """Converts by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def attention(X, Wq, Wk, Wv):
    result = plain(X, Wq, Wk, Wv)
    Q, K, V, S, A, C = (np.where(x == 0, x.dtype.type(-0.0), x) for x in result.values())
    C.flags.writeable = False
    return {
        "Q": np.asfortranarray(Q),
        "K": OnlyArray(np.ascontiguousarray(K[::-1])[::-1]),
        "V": OnlyDLPack(V),
        "scores": np.repeat(S, 2, axis=1)[:, ::2],
        "A": memoryview(A),
        "C": C,
    }
