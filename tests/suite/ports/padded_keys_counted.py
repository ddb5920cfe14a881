"""Keys are padded to a multiple of 8, and the padding's zero scores are counted."""

import numpy as np
from _base import port, softmax


def padded(S):
    n = len(S)
    return softmax(np.pad(S, ((0, 0), (0, -n % 8))))[:, :n]


attention = port(softmax=padded)
