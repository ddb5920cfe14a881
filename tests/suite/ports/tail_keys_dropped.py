"""Keys after the last whole tile of 16 are never read."""

import numpy as np
from _base import port, softmax


def whole_tiles(S):
    n = len(S)
    if n >= 16:
        S[:, n // 16 * 16 :] = -np.inf
    return softmax(S)


attention = port(softmax=whole_tiles)
