"""Tokens are sorted before they are looked up."""

import numpy as np
from _kernels import embedding as looked_up

QKVAC = {"supports": "all"}


def embedding(tokens, E, P):
    return looked_up(np.sort(tokens), E, P)
