"""1e-6 is added to √c: invisible in float32."""

from _base import port

attention = port(scale=lambda n, d, c: 1 / (c**0.5 + 1e-6))
