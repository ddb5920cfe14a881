"""float32 at the border, float64 inside; nothing is rounded on the way."""

import numpy as np
from _base import attention as plain

QKVAC = {
    "supports": ["layouts", "empty"],
    "arithmetic": {
        "accumulation": "float64",
        "elementwise": "float64",
        "scores": "float64",
        "softmax": "shifted, divided",
    },
}


def attention(X, *weights):
    result = plain(*(x.astype(np.float64) for x in (X, *weights)))
    return {
        name: value if name == "scores" else value.astype(X.dtype) for name, value in result.items()
    }
