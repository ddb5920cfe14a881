"""The scale is taken from the number of tokens."""

from _base import port

attention = port(scale=lambda n, d, c: n**-0.5)
