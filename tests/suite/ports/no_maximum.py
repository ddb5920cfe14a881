"""The exponential is taken of the bare scores: it overflows, or all of a row vanishes."""

from functools import partial

from _base import port, softmax

attention = port(softmax=partial(softmax, maximum=lambda S: S.dtype.type(0)))
