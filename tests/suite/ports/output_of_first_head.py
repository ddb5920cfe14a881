"""The output projection sees the first head alone."""

import numpy as np
from _base import product
from _kernels import layer, merge, split

QKVAC = {"supports": "all"}
HEADS = []


def remembering(X, h):
    HEADS[:] = [h]
    return split(X, h)


def of_first(C, Wo):
    heads = split(C, HEADS[0])
    return product(merge(np.where(np.arange(HEADS[0])[:, None, None] == 0, heads, 0)), Wo)


multi_head_attention = layer(split=remembering, output=of_first)
