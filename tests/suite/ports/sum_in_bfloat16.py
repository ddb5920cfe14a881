"""The denominator of bfloat16 weights is accumulated in bfloat16."""

from functools import partial

from _base import port, softmax
from _numerics import BFLOAT16, rounded

QKVAC = {"dtypes": ["bfloat16"]}


def normalise(E):
    total = 0 * E[:, :1]
    for column in E.T:
        total = rounded(total + column[:, None], BFLOAT16)
    return E / total


attention = port(softmax=partial(softmax, normalise=normalise))
