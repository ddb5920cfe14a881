"""The division by √c is missing."""

from _base import port

attention = port(scale=lambda n, d, c: 1.0)
