"""1e-9 is added to the sum of the exponentials: invisible in float32."""

from functools import partial

from _base import port, softmax

QKVAC = {"arithmetic": {"softmax": "shifted, divided"}}


def normalise(E):
    return E / (E.sum(axis=1, keepdims=True) + E.dtype.type(1e-9))


attention = port(softmax=partial(softmax, normalise=normalise))
