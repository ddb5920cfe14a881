"""Schraudolph's trick: the scaled argument is read as the bits of a float."""

from functools import partial

import numpy as np
from _base import port, softmax


def exp(z):
    bits = np.maximum(z * (2**23 / np.log(2)) + (127 * 2**23 - 366393), 0)
    return bits.astype(np.int32).view(np.float32).astype(z.dtype)


attention = port(softmax=partial(softmax, exp=exp))
