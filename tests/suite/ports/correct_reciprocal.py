"""The exponentials are multiplied by the reciprocal of their sum."""

from functools import partial

from _base import port, softmax

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "reciprocal"}}

attention = port(
    softmax=partial(softmax, normalise=lambda E: E * (1 / E.sum(axis=1, keepdims=True)))
)
