"""Results in Fortran order, reversed in memory, read-only, or as memoryviews; zeros are −0."""

import numpy as np
from _base import attention as plain

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    result = {
        name: np.where(value == 0, value.dtype.type(-0.0), value)
        for name, value in plain(X, Wq, Wk, Wv).items()
    }
    result["Q"] = np.asfortranarray(result["Q"])
    result["K"] = np.ascontiguousarray(result["K"][::-1])[::-1]
    result["V"].flags.writeable = False
    result["A"] = memoryview(np.ascontiguousarray(result["A"]))
    return result
