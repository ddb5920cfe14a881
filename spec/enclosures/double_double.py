"""Double-double with a radius: the oracle for float64 on long inputs, in plain NumPy.

A value is hi + lo, about 106 bits, within a radius that is computed along. Products go through
error-free slices (Ozaki, Ogita, Oishi and Rump 2012): operands are cut into slices so short that
a float64 matrix product of two slices is exact in whatever order the BLAS sums; only what the
slices leave over, at most 2**(-slices·width) of the operands, is multiplied with rounding.
Everything else is built from two_sum and two_product.

Numbers beyond about 2**990 overflow inside; they get an infinite radius, and Arb is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from qkvac.spec.enclosures import tangent
from qkvac.spec.enclosures.double_double_exp import EXP_ERROR, LOWEST, exponential, scaled
from qkvac.spec.enclosures.error_free import fast_two_sum, two_product, two_sum
from qkvac.spec.enclosures.midpoint_radius import (
    GRID,
    UNIT,
    empty_row,
    inflation,
    rounded_scalar,
    weight_radius,
)
from qkvac.spec.grammar.rearrangements import Array, Rearrangement, Rearrangements
from qkvac.spec.grammar.scalar import Scalar

PAIR_UNIT: Final = 2.0**-102
"""16u², charged of |x| + |y| for a sum and of the result for a product: what is left out and
rounded is at most 3u² and 8u² (docs/bounds.md, section 6; Joldes, Muller and Popescu 2017)."""

VANISHING: Final = -745.2
"""Logarithms of what is below GRID/2, whose own is -745.13."""

BLOCK: Final = 1 << 13
"""Entries of a softmax that are worked on at once, so that they stay in the cache."""


@dataclass(frozen=True)
class DoubleDouble:
    """The true value lies within hi + lo ± radius; without lo and radius, hi is exact."""

    hi: Array
    lo: Array | None = None
    radius: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    def rearranged(self, function: Rearrangement) -> DoubleDouble:
        rest = (None if part is None else function(part) for part in (self.lo, self.radius))
        return DoubleDouble(function(self.hi), *rest)

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """hi, lo and radius, zeros where absent."""
        lo, radius = (np.zeros_like(self.hi) if p is None else p for p in (self.lo, self.radius))
        return self.hi, lo, radius


class DoubleDoubleAlgebra(Rearrangements):
    """Operations on pairs; `slices` of each operand of a product are multiplied exactly."""

    def __init__(self, conventions: Mapping[str, str] | None = None, slices: int = 2) -> None:
        super().__init__(conventions)
        self.slices = slices

    def constant(self, array: Array) -> DoubleDouble:
        hi = np.asarray(array, np.float64)
        if np.isfinite(hi).all():
            return DoubleDouble(hi)
        return settled(hi, np.zeros_like(hi), np.zeros_like(hi))

    def center(self, value: DoubleDouble) -> Array:
        return value.hi

    def matmul(self, x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
        hi, lo, radius = product(x.hi, x.lo, y.hi, y.lo, self.slices)
        left = right = None
        if y.radius is not None:
            most = np.abs(x.hi) * (1.0 + 4 * UNIT)
            left = np.matmul(most if x.radius is None else most + x.radius, y.radius)
        if x.radius is not None:
            right = np.matmul(x.radius, np.abs(y.hi) * (1.0 + 4 * UNIT))
        for inherited in (left, right):
            if inherited is not None:
                radius += inherited * inflation(x.shape[-1]) + x.shape[-1] * GRID
        return settled(hi, lo, radius)

    def add(self, x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
        (xh, xl, xr), (yh, yl, yr) = x.parts, y.parts
        s, e = two_sum(xh, yh)
        hi, lo = fast_two_sum(s, e + (xl + yl))
        radius = (np.abs(xh) + np.abs(yh)) * PAIR_UNIT + 2 * GRID
        return settled(hi, lo, (radius + (xr + yr)) * inflation(2))

    def subtract(self, x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
        return self.add(x, self.negate(y))

    def negate(self, x: DoubleDouble) -> DoubleDouble:
        return DoubleDouble(-x.hi, None if x.lo is None else -x.lo, x.radius)

    def multiply(self, x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
        (xh, xl, xr), (yh, yl, yr) = x.parts, y.parts
        p, e = two_product(xh, yh)
        hi, lo = fast_two_sum(p, e + (xh * yl + xl * yh))
        radius = np.abs(hi) * PAIR_UNIT + (xr * np.abs(yh) + (np.abs(xh) + xr) * yr)
        # Below 2**-960 the parts of the error-free product underflow, each by half a GRID.
        return settled(hi, lo, radius * inflation(8) + 16 * GRID)

    def scale(self, x: DoubleDouble, s: Scalar) -> DoubleDouble:
        factor, rest, error = rounded_scalar(s)
        exact = (np.full((1,) * x.hi.ndim, value) for value in (factor, rest, error))
        return self.multiply(x, DoubleDouble(*exact))

    def shift(self, x: DoubleDouble, s: Scalar) -> DoubleDouble:
        exact = (np.full((1,) * x.hi.ndim, value) for value in rounded_scalar(s))
        return self.add(x, DoubleDouble(*exact))

    def sum(self, x: DoubleDouble, axis: int) -> DoubleDouble:
        """Halves added to halves: log2 of the length rounds of pairwise sums."""
        parts = [np.moveaxis(part, axis, -1) for part in x.parts]
        value = DoubleDouble(*parts)
        if value.shape[-1] == 0:
            value = self.constant(np.zeros((*value.shape[:-1], 1)))
        while (length := value.shape[-1]) > 1:
            half = length // 2
            first, second, odd = (
                DoubleDouble(*(part[..., where] for part in value.parts))
                for where in (
                    slice(half),
                    slice(half, 2 * half),
                    slice(2 * half, length),
                )
            )
            pairs = self.add(first, second)
            joined = zip(pairs.parts, odd.parts, strict=True)
            value = DoubleDouble(*(np.concatenate(both, axis=-1) for both in joined))
        return value.rearranged(lambda a: np.moveaxis(a, -1, axis))

    def softmax(self, x: DoubleDouble, axis: int, where: Array | None) -> DoubleDouble:
        """Row by row with the row's largest kept score subtracted; masked entries are exactly 0."""
        parts = [np.moveaxis(part, axis, -1) for part in x.parts]
        shape = parts[0].shape
        keys = shape[-1]
        count = int(np.prod(shape[:-1], dtype=np.int64))
        rows = [part.reshape(count, keys) for part in parts]
        kept = None
        if where is not None:
            kept = np.moveaxis(np.broadcast_to(where, x.shape), axis, -1)
            kept = kept.reshape(rows[0].shape)
        out = tuple(np.empty(rows[0].shape) for _ in range(3))
        step = max(1, BLOCK // max(keys, 1))
        for start in range(0, count if keys else 0, step):
            part = slice(start, start + step)
            hi, lo, radius = (row[part] for row in rows)
            block = weights(hi, lo, radius, None if kept is None else kept[part])
            for target, values in zip(out, block, strict=True):
                target[part] = values
        if kept is not None:
            empty = ~kept.any(axis=-1)
            if empty.any() and keys:
                fill, error = empty_row(self.empty_row, keys)
                for target, value in zip(out, (fill, 0.0, error), strict=True):
                    target[empty] = value
        return DoubleDouble(*(np.moveaxis(part.reshape(shape), -1, axis) for part in out))

    def tanh(self, x: DoubleDouble) -> DoubleDouble:
        return tangent.tanh(self, x)

    def reach(self, x: DoubleDouble) -> Array:
        hi, _, radius = x.parts
        return np.asarray((np.abs(hi) * (1.0 + 4 * UNIT) + radius) * inflation(0))

    def widened(self, x: DoubleDouble, radius: Array) -> DoubleDouble:
        hi, lo, own = x.parts
        return settled(hi, lo, (own + radius) * inflation(0))

    def either(self, mask: Array, x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
        pairs = zip(x.parts, y.parts, strict=True)
        return DoubleDouble(*(np.where(mask, left, right) for left, right in pairs))


def settled(hi: Array, lo: Array, radius: Array) -> DoubleDouble:
    """Radius inf, lo 0, wherever a part is not finite, so that nothing is claimed there."""
    if not np.isfinite(np.sum(hi) + np.sum(lo) + np.sum(radius)):
        known = np.isfinite(hi) & np.isfinite(lo) & np.isfinite(radius)
        lo, radius = np.where(known, lo, 0.0), np.where(known, radius, np.inf)
    return DoubleDouble(hi, lo, radius)


# --- matrix product ------------------------------------------------------------------------


def product(
    xh: Array, xl: Array | None, yh: Array, yl: Array | None, slices: int
) -> tuple[Array, Array, Array]:
    """(xh + xl) @ (yh + yl) as hi, lo, radius.

    Rows of x and columns of y are scaled to at most 1 by powers of two, after the inner axis has
    been balanced between them, which changes no product. In these units, with k the inner size:
    slice i holds multiples of 2**-(i+1)·width up to 2**-i·width, so k products of two slices fit
    into 53 bits. The products with what is left over err by (k + 3)·u times the sum of their
    magnitudes, k·(slices + 1)·2**-(slices·width); each of the `steps` sums by u·|lo|.
    """
    inner = xh.shape[-1]
    if inner == 0:
        lead = np.broadcast_shapes(xh.shape[:-2], yh.shape[:-2])
        zero = np.zeros((*lead, xh.shape[-2], yh.shape[-1]))
        return zero, zero.copy(), zero.copy()
    width = (53 - math.ceil(math.log2(max(inner, 2)))) // 2
    balance = (_exponent(yh, -1).swapaxes(-1, -2) - _exponent(xh, -2)) // 2
    left, left_rest, rows = _scaled(xh, xl, balance, -1)
    right, right_rest, columns = _scaled(yh, yl, -balance.swapaxes(-1, -2), -2)
    heads_x, tails_x = _sliced(left, left_rest, slices, width)
    heads_y, tails_y = _sliced(right, right_rest, slices, width)
    hi = np.matmul(heads_x[0], heads_y[0])
    lo = np.zeros_like(hi)
    for level in range(1, slices):
        for i in range(level + 1):
            hi, error = two_sum(hi, np.matmul(heads_x[i], heads_y[level - i]))
            lo += error
    for i in range(slices):
        lo += np.matmul(heads_x[i], tails_y[slices - 1 - i])
    lo += np.matmul(tails_x[slices - 1], right)
    steps = slices * (slices + 1) // 2 + slices + 1
    inexact = (inner + steps + 6) * (slices + 1) * UNIT * 2.0 ** (-slices * width)
    radius = inner * (inexact + (steps * UNIT) ** 2)
    return _unscaled(*two_sum(hi, lo), radius, rows + columns)


def _exponent(x: Array, axis: int) -> Array:
    """e with |x| ≤ 2**e along an axis; 0 where x is not finite."""
    most = np.max(np.abs(x), axis=axis, keepdims=True, initial=GRID)
    return np.where(np.isfinite(most), np.frexp(most)[1], 0).astype(np.int32)


def _scaled(
    hi: Array, lo: Array | None, balance: Array, axis: int
) -> tuple[Array, Array | None, Array]:
    """hi and lo times 2**(balance - e), with e such that the largest along the axis is ≤ 1; e.

    What underflows here is below 2**-1074 of the largest, and does not count.
    """
    exponent = _exponent(np.ldexp(hi, balance), axis)
    shift = balance - exponent
    return np.ldexp(hi, shift), None if lo is None else np.ldexp(lo, shift), exponent


def _sliced(
    hi: Array, lo: Array | None, slices: int, width: int
) -> tuple[list[Array], list[Array]]:
    """The leading slices of hi + lo, and what is left (rounded) after each."""
    heads, tails = [], []
    for i in range(slices):
        magic = 1.5 * 2.0 ** (52 - (i + 1) * width)  # rounds to a multiple of 2**-(i+1)·width
        head = (hi + magic) - magic
        hi = hi - head
        if lo is not None:
            hi, lo = two_sum(hi, lo)
        heads.append(head)
        tails.append(hi)
    return heads, tails


def _unscaled(hi: Array, lo: Array, radius: float, exponent: Array) -> tuple[Array, Array, Array]:
    big, small = scaled(hi, lo, exponent)
    spread = np.ldexp(radius, exponent)
    # A pair may lose half a GRID where it underflows, its radius another half.
    return big, small, spread + np.where(spread < 2.0**-900, 2 * GRID, 0.0)


# --- softmax -------------------------------------------------------------------------------


def weights(hi: Array, lo: Array, radius: Array, kept: Array | None) -> tuple[Array, Array, Array]:
    """Softmax over the last axis of rows of scores, as hi, lo, radius."""
    scores = hi if kept is None else np.where(kept, hi, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    known = np.isfinite(top)
    top = np.where(known, top, 0.0)
    # Among equal leading parts the largest trailing part, so that no shifted score exceeds 0.
    top_lo = np.max(np.where(scores == top, lo, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    top_lo = np.where(np.isfinite(top_lo), top_lo, 0.0)
    difference, error = two_sum(hi, -top)
    z, z_lo = fast_two_sum(difference, error + (lo - top_lo))
    if kept is not None:
        z, z_lo = np.where(kept, z, 2 * LOWEST), np.where(kept, z_lo, 0.0)
    far = z < LOWEST
    head, tail, power = exponential(np.maximum(z, LOWEST), np.where(far, 0.0, z_lo))
    inverse, inverse_lo, sum_error = _reciprocal(np.ldexp(head, power), np.ldexp(tail, power))
    p, error = two_product(head, inverse)
    error += head * inverse_lo + tail * inverse
    w, w_lo = scaled(*fast_two_sum(p, error), power)
    size = np.abs(hi) + np.abs(top)
    log_error = radius + (size * (2 * PAIR_UNIT) + 2 * EXP_ERROR)
    if kept is not None:
        log_error = np.where(kept, log_error, 0.0)
    # The sum is at least that of the largest, so this leaves no value in reach of half a GRID.
    slack = np.max(np.where(z > -1.0, log_error, 0.0), axis=-1, keepdims=True, initial=0.0)
    vanishing = (w == 0) & (z + log_error + slack < VANISHING)
    spread = weight_radius(w, log_error, lambda: z, sum_error, PAIR_UNIT, 2 * GRID)
    spread = np.where(vanishing, GRID, spread)
    spread = np.where(known & np.isfinite(inverse), spread, np.inf)
    if kept is not None:
        spread = np.where(kept, spread, 0.0)
    return w, w_lo, spread


def _reciprocal(hi: Array, lo: Array) -> tuple[Array, Array, float]:
    """1/Σ over the last axis, as a pair, and the relative error of the sum.

    The largest summand is 1. Leading parts, cut to multiples of 2**-bits, add up exactly.
    """
    count = hi.shape[-1]
    bits = 50 - math.ceil(math.log2(max(count, 2)))
    magic = 1.5 * 2.0 ** (52 - bits)
    leading = (hi + magic) - magic
    rest = np.sum((hi - leading) + lo, axis=-1, keepdims=True)
    total, total_lo = fast_two_sum(np.sum(leading, axis=-1, keepdims=True), rest)
    inverse = 1.0 / total
    p, error = two_product(inverse, total)
    inverse_lo = ((1.0 - p) - error - inverse * total_lo) * inverse
    return inverse, inverse_lo, count * ((count + 3) * UNIT * 2.0**-bits + 4 * GRID) + PAIR_UNIT
