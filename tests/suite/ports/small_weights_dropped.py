"""Weights under 1e-6 are set to 0."""

import numpy as np
from _base import port, softmax


def thinned(S):
    A = softmax(S)
    return np.where(A < 1e-6, 0, A)


attention = port(softmax=thinned)
