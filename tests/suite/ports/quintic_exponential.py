"""The exponential is 2^whole times a quintic in the fraction: good to 3e-7."""

from functools import partial

from _base import port, softmax
from _numerics import polynomial_exponential

attention = port(softmax=partial(softmax, exp=partial(polynomial_exponential, degree=5)))
