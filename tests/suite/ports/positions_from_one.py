"""Positions are counted from 1."""

import numpy as np
from _kernels import embedding as looked_up

QKVAC = {"supports": "all"}


def embedding(tokens, E, P):
    return looked_up(tokens, E, np.roll(P, -1, axis=0))
