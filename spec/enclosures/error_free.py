"""Error-free transformations: the rounding error of one float64 operation, as a float64.

Exact under round to nearest, unless an intermediate over- or underflows.
"""

from __future__ import annotations

from typing import Final

from qkvac.spec.grammar.rearrangements import Array

SPLITTER: Final = 2.0**27 + 1.0


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y = s + e with s = fl(x + y); for any x and y (Knuth)."""
    s = x + y
    shadow = s - x
    return s, (x - (s - shadow)) + (y - shadow)


def fast_two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y = s + e with s = fl(x + y), where |x| ≥ |y| or x = 0 (Dekker)."""
    s = x + y
    return s, y - (s - x)


def halves(x: Array) -> tuple[Array, Array]:
    """x = h + t, both of at most 26 bits (Veltkamp); overflows beyond 2**996."""
    product = SPLITTER * x
    head = product - (product - x)
    return head, x - head


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """x·y = p + e with p = fl(x·y) (Dekker, Veltkamp)."""
    p = x * y
    (xh, xt), (yh, yt) = halves(x), halves(y)
    return p, ((xh * yh - p) + xh * yt + xt * yh) + xt * yt
