"""√c is cut to an integer: right only where c is a square."""

from math import isqrt

from _base import port

attention = port(scale=lambda n, d, c: 1 / isqrt(c))
