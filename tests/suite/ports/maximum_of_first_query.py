"""A tile of 8 queries is shifted by the maximum of its first one."""

from functools import partial

import numpy as np
from _base import maximum, port, softmax


def shared(S):
    return np.repeat(maximum(S)[::8], 8, axis=0)[: len(S)]


attention = port(softmax=partial(softmax, maximum=shared))
