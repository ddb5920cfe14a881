"""Float64 with a radius: the oracle for float32 and the formats below it.

Plain float64 satisfies the theorem that the suite judges others by: a sum of k products in any
order errs by at most k·u·Σ|term| (Jeannerod and Rump 2013), with u = 2**-53. Evaluated beside the
value, that bound is a certificate 2**29 times finer than what float32 is allowed.

Three things are taken for granted: round to nearest with gradual underflow, a BLAS that forms
k products and adds them up, and an exponential within EXP_ULPS units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from qkvac.spec.enclosures import tangent
from qkvac.spec.enclosures.arb_balls import working_precision
from qkvac.spec.grammar.rearrangements import Array, Rearrangement, Rearrangements
from qkvac.spec.grammar.scalar import Scalar

UNIT: Final = 2.0**-53
GRID: Final = 2.0**-1074
"""Spacing of subnormal doubles: what one underflow may cost, twice over."""
EXP_ULPS: Final = 4.0
"""What NumPy's exponential may be off; more than the 3 ulp that the tested library is allowed."""
LARGEST: Final = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Interval:
    """The true value lies within value ± radius; no radius means that the value is exact."""

    value: Array
    radius: Array | None = None

    @cached_property
    def size(self) -> Array:
        """|value|"""
        magnitude: Array = np.abs(self.value)
        return magnitude

    @cached_property
    def grain(self) -> float:
        """The largest power of two that divides every entry; 1 if all are 0."""
        return grain(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def rearranged(self, function: Rearrangement) -> Interval:
        radius = None if self.radius is None else function(self.radius)
        return Interval(function(self.value), radius)


def grain(value: Array) -> float:
    """The largest power of two of which every entry is a multiple; 1 if all are 0."""
    mantissa, exponent = np.frexp(value[value != 0])
    if mantissa.size == 0:
        return 1.0
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    return float(np.min(np.ldexp((whole & -whole).astype(np.float64), exponent - 53)))


def inflation(terms: int) -> float:
    """A factor that outweighs the rounding of a radius that is a sum of `terms` products."""
    return 1.0 + (2 * terms + 32) * 2.0**-52


def settled(value: Array, radius: Array | None) -> Interval:
    """Radius inf wherever a value or radius is not finite, so that nothing is claimed there."""
    if radius is None:
        if np.isfinite(value).all():
            return Interval(value)
        radius = np.zeros_like(value)
    # One sum is finite only if every entry is, and costs less than two masks.
    if not np.isfinite(np.sum(value) + np.sum(radius)):
        unknown = ~(np.isfinite(value) & np.isfinite(radius))
        radius = np.where(unknown, np.inf, radius)
    return Interval(value, radius)


@lru_cache(maxsize=256)
def rounded_scalar(scalar: Scalar) -> tuple[float, float, float]:
    """An exact scalar as hi + lo ± error; (±inf or NaN, 0, inf) beyond the range of float64."""
    with working_precision(256):
        ball = scalar.arb()
        hi = float(ball)
        lo = float(ball - hi)
        error = float((ball - hi - lo).abs_upper())
    if not np.isfinite(hi):
        return hi, 0.0, np.inf
    return hi, lo, error * inflation(0) + (GRID if error else 0.0)


def weight_radius(
    weights: Array,
    log_error: Array,
    exponent: Callable[[], Array],
    sum_error: float,
    rounding: float,
    floor: float,
) -> Array:
    """Radius of softmax weights e/Σe along the last axis, at most about 1; overwrites `log_error`.

    `log_error` bounds |ln(true exponential) - ln(computed)|, and is 0 where masked, as are the
    weights; `exponent` gives the shifted scores (maximum 0); `sum_error` is the relative error of
    Σe beyond that of its terms, `rounding` that of the weights themselves, `floor` what underflow
    may cost. From p/P - e/D = (p - e)/P + (e/D)(D - P)/P with D ≥ 1 and
    |p - e| ≤ e·(exp(log_error) - 1).
    """
    largest = float(log_error.max(initial=0.0))
    keys = weights.shape[-1]
    if largest <= 0.0625:  # exp(t) - 1 ≤ t·(1 + largest)
        sharing = np.einsum("...i,...i->...", weights, log_error)[..., None] * (1.0 + largest)
        sharing = sharing * inflation(keys) + sum_error
        growth = (1.0 + 32 * UNIT) / (1.0 - sharing)
        log_error *= (1.0 + largest) * growth
        log_error += sharing * growth + rounding
        log_error *= weights
        log_error += floor
        return log_error
    below = np.minimum(np.maximum(exponent(), -LARGEST) + log_error, 700.0)
    upper = np.exp(below) * (1.0 + 2 * EXP_ULPS * UNIT) + GRID
    # exp(t) - 1 ≤ t + t² for t ≤ 1; beyond, the weight and its true value are both below `upper`.
    spread = np.where(log_error <= 1.0, weights * (log_error + log_error * log_error), upper)
    sharing = np.sum(spread, axis=-1, keepdims=True) * inflation(keys) + sum_error
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.where(sharing < 0.5, 1.0 / (1.0 - sharing), np.inf) * (1.0 + 32 * UNIT)
        spread *= growth
        spread += weights * (sharing * growth + rounding)
    spread += floor
    capped: Array = np.fmin(spread, 1.0, out=spread)
    return capped


def most(x: Interval) -> Array:
    """|value| + radius, in a new array."""
    magnitude: Array = np.abs(x.value)
    if x.radius is not None:
        magnitude += x.radius
    return magnitude


class IntervalAlgebra(Rearrangements):
    """Operations on intervals; every radius is an upper bound of the error, whatever the order."""

    def __init__(self, conventions: Mapping[str, str] | None = None) -> None:
        super().__init__(conventions)

    def constant(self, array: Array) -> Interval:
        return settled(np.asarray(array, np.float64), None)

    def center(self, value: Interval) -> Array:
        return value.value

    def matmul(self, x: Interval, y: Interval) -> Interval:
        terms = x.shape[-1]
        value = np.matmul(x.value, y.value)
        if x.radius is None and y.radius is None:
            radius = np.matmul(x.size, y.size)
            if self._exactly(x, y, float(radius.max(initial=0.0))):
                return Interval(value)
            radius *= terms * UNIT * inflation(terms)
            radius += 3 * terms * GRID
            return settled(value, radius)
        # |xy - x̂ŷ| ≤ |x||y - ŷ| + |x - x̂||ŷ|, and then k·u of the sum: see the module docstring.
        slack = terms * UNIT * inflation(terms)
        left, right = most(x), most(y)
        right *= slack
        right += GRID
        if y.radius is not None:
            right += y.radius
        radius = np.matmul(left, right)
        if x.radius is not None:
            radius += np.matmul(x.radius, y.size)
        radius *= inflation(terms)
        radius += 3 * terms * GRID
        return settled(value, radius)

    def _exactly(self, x: Interval, y: Interval, size: float) -> bool:
        """Whether sums of products up to `size` fit into 53 bits, so that none is rounded.

        A look at some entries usually tells that they do not.
        """
        some = grain(x.value.ravel()[:64]) * grain(y.value.ravel()[:64])
        if not size < some * 2.0**52:
            return False
        unit = x.grain * y.grain
        return size < unit * 2.0**52 and unit >= GRID

    def add(self, x: Interval, y: Interval) -> Interval:
        value = x.value + y.value
        return settled(value, np.abs(value) * (2 * UNIT) + _radius(x) + _radius(y))

    def subtract(self, x: Interval, y: Interval) -> Interval:
        return self.add(x, self.negate(y))

    def negate(self, x: Interval) -> Interval:
        return Interval(-x.value, x.radius)

    def multiply(self, x: Interval, y: Interval) -> Interval:
        value = x.value * y.value
        ex, ey = _radius(x), _radius(y)
        radius = ex * np.abs(y.value) + (np.abs(x.value) + ex) * ey + np.abs(value) * (2 * UNIT)
        return settled(value, radius * inflation(4) + 4 * GRID)

    def scale(self, x: Interval, s: Scalar) -> Interval:
        factor, rest, error = rounded_scalar(s)
        error += abs(rest) * (1.0 + 2 * UNIT)
        value = x.value * factor
        growth = (abs(factor) + error) * inflation(2)
        relative = 0.0
        if error or abs(math.frexp(factor)[0]) != 0.5:  # a power of two rounds in underflow alone
            relative = abs(factor) * UNIT + error
        radius = x.size * (relative * inflation(2)) if x.radius is None else np.abs(x.value)
        if x.radius is not None:
            radius *= relative
            radius += x.radius * growth
        radius += 4 * GRID
        return settled(value, radius)

    def shift(self, x: Interval, s: Scalar) -> Interval:
        factor, rest, error = rounded_scalar(s)
        return self.add(x, Interval(np.asarray(factor), np.asarray(error + abs(rest) * 2)))

    def sum(self, x: Interval, axis: int) -> Interval:
        terms = x.shape[axis]
        value = np.sum(x.value, axis=axis, keepdims=True)
        radius = np.sum(np.abs(x.value), axis=axis, keepdims=True) * (terms * UNIT)
        if x.radius is not None:
            radius += np.sum(x.radius, axis=axis, keepdims=True)
        return settled(value, radius * inflation(terms))

    def softmax(self, x: Interval, axis: int, where: Array | None) -> Interval:
        """Row by row with the row's largest kept score subtracted; masked entries are exactly 0."""
        scores, errors = np.moveaxis(x.value, axis, -1), x.radius
        if errors is not None:
            errors = np.moveaxis(errors, axis, -1)
        kept = None
        if where is not None:
            kept = np.moveaxis(np.broadcast_to(where, x.shape), axis, -1)
            scores = np.where(kept, scores, -np.inf)
        keys = scores.shape[-1]
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        offset = np.where(np.isfinite(top), top, 0.0)
        shifted = scores - offset
        weights = np.exp(shifted)
        total = np.sum(weights, axis=-1, keepdims=True)
        np.divide(weights, total, out=weights, where=total > 0)
        log_error = shifted
        log_error *= -2 * UNIT
        if errors is not None:
            log_error += errors
        log_error += 2 * EXP_ULPS * UNIT
        if kept is not None:
            log_error = np.where(kept, log_error, 0.0)
        # D ≥ 1, so exponentials that underflow share at most keys·GRID of it.
        sum_error = keys * (UNIT + GRID) * inflation(keys)
        radius = weight_radius(
            weights, log_error, lambda: scores - offset, sum_error, 4 * UNIT, 16 * GRID
        )
        known = np.isfinite(top) & np.isfinite(total)
        if not known.all():
            radius = np.where(known, radius, np.inf)
        if kept is not None:
            radius = np.where(kept, radius, 0.0)
            weights, radius = self._empty_rows(weights, radius, kept)
        return Interval(np.moveaxis(weights, -1, axis), np.moveaxis(radius, -1, axis))

    def tanh(self, x: Interval) -> Interval:
        return tangent.tanh(self, x)

    def reach(self, x: Interval) -> Array:
        return most(x) * inflation(0)

    def widened(self, x: Interval, radius: Array) -> Interval:
        return settled(x.value, (_radius(x) + radius) * inflation(0))

    def either(self, mask: Array, x: Interval, y: Interval) -> Interval:
        return Interval(np.where(mask, x.value, y.value), np.where(mask, _radius(x), _radius(y)))

    def _empty_rows(self, weights: Array, radius: Array, kept: Array) -> tuple[Array, Array]:
        empty = ~kept.any(axis=-1, keepdims=True)
        if not empty.any():
            return weights, radius
        keys = kept.shape[-1]
        fill, error = empty_row(self.empty_row, keys)
        return np.where(empty, fill, weights), np.where(empty, error, radius)


def empty_row(convention: str, keys: int) -> tuple[float, float]:
    """Weight of each key, and its radius, where a query has nothing to attend to."""
    if convention == "mean":
        return 1.0 / keys, UNIT / keys
    return (0.0, 0.0) if convention == "zeros" else (np.nan, np.inf)


def _radius(x: Interval) -> Array:
    return np.zeros_like(x.value) if x.radius is None else x.radius
