"""It prints on both streams and draws random numbers, and none of it matters."""

import sys

import numpy as np
from _base import attention as plain

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    print("attending to", len(X), "tokens", np.random.default_rng().random())
    print("warning: \x00\x1b[31m{}", file=sys.stderr)
    return plain(X, Wq, Wk, Wv)
