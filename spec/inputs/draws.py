"""Random numbers that are the same bits everywhere.

Cases must be byte-identical on every platform and NumPy release, which no distribution of
`numpy.random` promises. So the bits come from SHAKE-256 over a seed text, and everything up to
the last step is integer arithmetic; `ldexp` then places the binary point without rounding.
Every draw has its own seed text, so that no case depends on another or on their order.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.formats import FORMATS, dtype

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Shape = tuple[int, ...]

_UNIFORMS = 12
"""Twelve uniforms on [0, 1) have a sum of variance exactly 1."""
_BITS = 57
"""Bits of a uniform: twice the sum of twelve stays below 2**62."""


def words(seed: str, count: int) -> NDArray[np.uint64]:
    """`count` independent 64-bit words."""
    stream = hashlib.shake_256(seed.encode()).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def integers(seed: str, shape: Shape, low: int, high: int) -> Integers:
    """Whole numbers between `low` and `high`, both included."""
    span = np.uint64(high - low + 1)
    drawn = (words(seed, prod(shape)) >> np.uint64(1)) % span
    result: Integers = drawn.astype(np.int64).reshape(shape) + low
    return result


def signs(seed: str, shape: Shape) -> Integers:
    """±1."""
    return 2 * integers(seed, shape, 0, 1) - 1


def permutation(seed: str, n: int) -> Integers:
    """A permutation of range(n), not its own inverse for n ≥ 3.

    Were it an involution, attention weights and their transpose would be the same matrix.
    """
    for attempt in range(64):
        order = np.argsort(words(f"{seed}/{attempt}", n), kind="stable").astype(np.int64)
        if n < 3 or np.any(order[order] != np.arange(n)):
            return order
    raise AssertionError("every draw was an involution")


def normal(seed: str, shape: Shape, name: str, exponent: int = 0) -> Floats:
    """Values like those of a normal distribution of variance 4**exponent, in the format `name`.

    A sum of twelve uniforms, cut off to the format's precision; what would be smaller than its
    smallest normal number is 0.
    """
    drawn = words(seed, _UNIFORMS * prod(shape)) >> np.uint64(64 - _BITS)
    total = drawn.astype(np.int64).reshape(*shape, _UNIFORMS).sum(axis=-1)
    centred = 2 * total - _UNIFORMS * (2**_BITS - 1)
    return truncated(centred, exponent - _BITS - 1, name)


def truncated(significands: Integers, exponent: int, name: str) -> Floats:
    """significands · 2**exponent, cut off towards 0 to a normal number of the format or to 0."""
    form = FORMATS[name]
    magnitude = np.abs(significands)
    length = _bit_length(magnitude)
    drop = np.maximum(length - form.precision, 0)
    kept = np.where(length + exponent > form.emin, (magnitude >> drop) << drop, 0)
    whole: Floats = (np.sign(significands) * kept).astype(np.float64)
    result: Floats = np.ldexp(whole, exponent)
    return result


def full_mantissa(seed: str, shape: Shape, name: str, low: int = 0, high: int = 0) -> Floats:
    """± numbers of the format whose last bit is 1, in the binades 2**low to 2**high.

    Any narrower operand format or accumulator changes every one of them.
    """
    precision = FORMATS[name].precision
    fraction = integers(f"{seed}/fraction", shape, 0, 2 ** (precision - 2) - 1)
    significand = signs(f"{seed}/sign", shape) * (2 ** (precision - 1) + 2 * fraction + 1)
    exponent = integers(f"{seed}/exponent", shape, low, high) - (precision - 1)
    result: Floats = np.ldexp(significand.astype(np.float64), exponent.astype(np.int32))
    return result


def stored(values: NDArray[Any], name: str) -> NDArray[Any]:
    """`values` in the dtype `name`; raises ValueError where that would round.

    Booleans and whole numbers (masks and indices) keep their dtype.
    """
    if values.dtype.kind in "bi":
        return np.ascontiguousarray(values)
    array: NDArray[Any] = np.ascontiguousarray(values.astype(dtype(name)))
    if not np.array_equal(array.astype(np.float64), values):
        raise ValueError(f"values of a case are not representable in {name}")
    return array


def _bit_length(values: Integers) -> Integers:
    """Bit lengths of non-negative whole numbers."""
    length, rest = np.zeros_like(values), values.copy()
    for step in (32, 16, 8, 4, 2, 1):
        above = rest >> step > 0
        length += np.where(above, step, 0)
        rest = np.where(above, rest >> step, rest)
    result: Integers = length + (rest > 0)
    return result
