"""The exponentials are never divided by their sum."""

from functools import partial

from _base import port, softmax

attention = port(softmax=partial(softmax, normalise=lambda E: E))
