"""A score of 0 that belongs to no key takes part in the softmax."""

import numpy as np
from _base import maximum, port


def softmax(S):
    m = maximum(S)
    E = np.exp(S - m)
    return E / (E.sum(axis=1, keepdims=True) + np.exp(-m))


attention = port(softmax=softmax)
