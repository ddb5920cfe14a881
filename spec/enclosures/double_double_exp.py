"""The exponential of a double-double, by table and short polynomial.

With z = N·ln2/1024 + r, exp(z) = 2**(N >> 10) · T[N & 1023] · exp(r) and |r| < 2**-11.5. The
reduction subtracts ln2/1024 in three parts, of which N times the first two are exact. In
expm1(r) = c + c²/2 + … only the first two terms need more than float64, and the square is of a
head of 26 bits, hence exact; so is the table's head of 31 bits times the leading 22 of expm1(r).
What is left is rounded three times below 2**-30.8, and less before: with the table's tails and the
cubic term below 2**-81.5 in all (docs/bounds.md, section 6). EXP_ERROR is more than twice that.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from flint import arb

from qkvac.spec.enclosures.arb_balls import working_precision
from qkvac.spec.enclosures.error_free import fast_two_sum, two_sum
from qkvac.spec.grammar.rearrangements import Array

EXP_ERROR: Final = 2.0**-80
LOWEST: Final = -800.0
"""Below this an exponential is 0 for every purpose here; it also keeps N below 2**21."""

_BITS: Final = 10
_STEPS: Final = 1 << _BITS
# Adding and subtracting 1.5·2**(52 - b) rounds a small number to a multiple of 2**-b.
_TO_37: Final = 1.5 * 2.0**15
_TO_33: Final = 1.5 * 2.0**19


@cache
def _constants() -> tuple[float, float, float, float, Array, Array]:
    """1024/ln2; ln2/1024 in three parts; 2**(j/1024) as a head of 31 bits and a tail."""
    with working_precision(256):
        step = arb(2).log() / _STEPS
        first = np.ldexp(np.floor(float(step * 2**42)), -42)
        second = np.ldexp(np.floor(float((step - first) * 2**74)), -74)
        third = float(step - first - second)
        powers = [(step * j).exp() for j in range(_STEPS)]
        heads = [np.ldexp(np.rint(float(power * 2**30)), -30) for power in powers]
        tails = [float(power - head) for power, head in zip(powers, heads, strict=True)]
    inverse = float(1 / step)
    return inverse, first, second, third, np.array(heads), np.array(tails)


def exponential(hi: Array, lo: Array) -> tuple[Array, Array, Array]:
    """Mantissas (head, tail) and exponents k with exp(hi + lo) = (head + tail)·2**k.

    The head is within [0.99, 2.01]; |hi| ≤ 800 and |lo| ≤ ulp(hi). Relative error ≤ EXP_ERROR.
    """
    inverse, first, second, third, heads, tails = _constants()
    count = np.rint(hi * inverse)
    # hi - count·first is exact: a multiple of hi's last bit, and not larger than hi.
    near, error = two_sum(hi - count * first, -(count * second))
    c, tail = fast_two_sum(near, (error + lo) - count * third)
    head = (c + _TO_37) - _TO_37
    rest = c - head
    square = 0.5 * head * head
    small = rest * (head + 0.5 * rest)
    series = 1.0 / 6.0 + c * (1.0 / 24.0 + c * (1.0 / 120.0 + c * (1.0 / 720.0)))
    small += c * c * c * series
    small += tail
    small += tail * c
    p, error = fast_two_sum(c, square)
    small += error
    whole = count.astype(np.intp)
    index = whole & (_STEPS - 1)
    table, table_tail = heads[index], tails[index]
    p_head = (p + _TO_33) - _TO_33
    small += p - p_head
    small = table * small + (table_tail * (p_head + small) + table_tail)
    sum_, error = fast_two_sum(table, table * p_head)
    head, tail = fast_two_sum(sum_, error + small)
    return head, tail, (whole >> _BITS).astype(np.int32)


def scaled(head: Array, tail: Array, exponent: Array) -> tuple[Array, Array]:
    """(head + tail)·2**exponent as a pair, within half of 2**-1074 where it underflows."""
    hi = np.ldexp(head, exponent)
    low = np.abs(hi) < 2.0**-900
    if low.any():  # hi may have lost bits; what it lost goes to the tail, in one rounding
        lost = head - np.ldexp(np.ldexp(hi, 500), -exponent - 500)
        tail = tail + np.where(low, lost, 0.0)
    return hi, np.ldexp(tail, exponent)
