"""The exactness interpretation: which results must come out without any rounding at all.

A sum whose terms are multiples of g = 2**k, with Σ|term| ≤ 2**p · g, is exact in p bits in any
order, with or without fused multiply-adds: every partial sum is a multiple of g no larger than
2**p · g. So each entry carries g, Σ|term| and the number of its nonzero terms until it is
reported, and p is that of the coarsest declared format.

Through a softmax: scores that are exact and tie with the row's largest get the weight 1, all that
trail by at least 746 get exp(−746) = 0 (below half the smallest subnormal number of float64), and
m ties are divided by m. Only 1/m with m a power of two is exact again as an operand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS, Format
from qkvac.spec.grammar.equations import Program, SpecError, evaluate
from qkvac.spec.grammar.rearrangements import Rearrangement, Rearrangements
from qkvac.spec.grammar.scalar import Scalar

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]

VANISHES: Final = 746.0
"""exp(−746) is less than half of 2**-1074, so it rounds to 0 in every format."""

_ONE: Final = Scalar.of(1)
_NO_TERM: Final = 2**30
"""Exponent of g where there is no nonzero term: 0 is a multiple of anything."""


@dataclass(frozen=True)
class Exactness:
    """What is proved of one quantity."""

    value: Floats
    """The exact result, where `holds`."""
    holds: Bools
    """Where every implementation of the arithmetic model returns this value, bit for bit."""
    through_softmax: bool
    """Whether the proof goes through a softmax; then it binds only the form that subtracts the
    row's maximum and divides by the sum."""


@dataclass(frozen=True)
class Known:
    """Entries value · factor, each the sum of `count` nonzero multiples of 2**exponent."""

    value: Floats
    exact: Bools
    """Where the value is known exactly and may enter further operations."""
    settled: Bools
    """Where its bits are known, although they may be those of a rounded number."""
    exponent: Integers
    magnitude: Floats
    """Σ|term|."""
    count: Integers
    factor: Scalar = _ONE
    """A common factor that has not been multiplied in yet."""
    through_softmax: bool = False
    stored: bool = False
    """Whether each entry is one number of the storage format already."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def rearranged(self, function: Rearrangement) -> Known:
        return replace(
            self,
            value=function(self.value),
            exact=function(self.exact),
            settled=function(self.settled),
            exponent=function(self.exponent),
            magnitude=function(self.magnitude),
            count=function(self.count),
        )


def exact(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    sizes: Mapping[str, Any],
    arithmetic: Arithmetic,
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Exactness]:
    """What the arithmetic model must make exact, for every quantity of the program.

    `inputs` are arrays of the tested dtype, masks boolean, indices whole numbers.
    """
    algebra = Exactly(arithmetic, conventions)
    env = {
        tensor.name: algebra.constant(np.asarray(inputs[tensor.name], dtype=np.float64))
        if tensor.kind == "real"
        else np.asarray(inputs[tensor.name])
        for tensor in program.inputs
    }
    results = evaluate(program, algebra, env, sizes)
    return {
        name: Exactness(known.value, known.settled, known.through_softmax)
        for name, known in results.items()
    }


def prove(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    sizes: Mapping[str, Any],
    dtype: str,
    claims: tuple[str, ...],
) -> None:
    """Raise SpecError unless all of `claims` are exact in the default model of the dtype."""
    model = Arithmetic.for_dtype(dtype)
    proved = exact(program, inputs, sizes, model)
    for name in claims:
        if name not in proved:
            raise SpecError(f"claimed exact, but not a quantity: {name}")
        open_ = int(np.sum(~proved[name].holds))
        if open_:
            total = proved[name].holds.size
            raise SpecError(f"{name} is claimed exact in {dtype}: no proof for {open_} of {total}")


class Exactly(Rearrangements):
    """The algebra whose values are entries with proofs of their exactness."""

    def __init__(
        self, arithmetic: Arithmetic, conventions: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(conventions)
        names = ("storage", "operands", "accumulation", "scores")
        formats = [FORMATS[getattr(arithmetic, name)] for name in names]
        self.storage = FORMATS[arithmetic.storage]
        self.truncates = arithmetic.truncates
        self.operands = FORMATS[arithmetic.operands]
        self.softmax_formats = [*formats, FORMATS[arithmetic.elementwise]]
        self.precision = min(f.precision for f in formats)
        self.largest = min(f.largest for f in formats)
        # Σ|term| comes out with a relative error far below 1e-9: less than one g below 2**p · g
        # for the narrow formats, so that only float64 must keep away from the limit.
        self.slack = 1 + 1e-9 if self.precision <= FORMATS["float32"].precision else 1 - 1e-9
        self.grid = max(f.emin - f.precision + 1 for f in formats)
        self.floor = max(f.tiny if arithmetic.flushes else f.smallest for f in formats)

    def constant(self, array: NDArray[Any]) -> Known:
        """An input: exact as it stands, except that a subnormal number may be flushed.

        Of an infinite entry only Σ|term| is known.
        """
        value = np.asarray(array, dtype=np.float64)
        finite = np.isfinite(value)
        kept = finite & ((value == 0) | (np.abs(value) >= self.floor))
        known = _single(np.where(kept, value, 0.0), kept)
        magnitude = np.where(finite, known.magnitude, np.inf)
        return replace(known, magnitude=magnitude, stored=True)

    def center(self, value: Known) -> Floats:
        return np.where(np.isinf(value.magnitude), np.inf, value.value)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """What an appended 0 consists of: the value 0, known exactly."""
        return np.full(shape, np.dtype(dtype) == np.bool_, dtype)

    def report(self, name: str, value: Known) -> Known:
        return self.closed(value)

    def closed(self, x: Known) -> Known:
        """`x` as one stored number per entry, where all its sums and its factor are exact."""
        if x.stored:
            return x
        shift = _power_of_two(x.factor)
        if x.factor != _ONE and shift is None:
            nothing = np.zeros(x.shape, bool)
            approximate = x.value * float(x.factor)
            return replace(_single(approximate, nothing), through_softmax=x.through_softmax)
        sign, exponent = shift or (1, 0)
        value = _times_power(sign * x.value, exponent)
        magnitude = _times_power(x.magnitude, exponent)
        unit = np.where(x.count > 0, x.exponent + exponent, 0)
        fits = magnitude <= _times_power(self.slack, unit + self.precision)
        fits &= magnitude <= self.largest
        fits &= (_exponent(value) >= _leading(value) - self.precision) | (value == 0)
        # A sum may pass through any multiple of g; a single term is never less than itself.
        lowest = np.where(x.count > 1, _times_power(1.0, unit), np.abs(value))
        fits &= (x.count == 0) | ((lowest >= self.floor) & (_exponent(value) >= self.grid))
        stored = _single(value, x.exact & fits)
        settled = stored.exact | (x.settled & ~x.exact & (x.factor == _ONE))
        return replace(stored, settled=settled, through_softmax=x.through_softmax, stored=True)

    def operand(self, x: Known) -> Known:
        """`x` as the factor of a product: unchanged by rounding to the operands' format."""
        x = self.closed(x)
        if self.operands.precision >= self.storage.precision:
            return x
        fits = _exponent(x.value) >= _leading(x.value) - self.operands.precision
        fits &= np.abs(x.value) <= self.operands.largest
        return replace(x, exact=x.exact & fits)

    def matmul(self, x: Known, y: Known) -> Known:
        x, y = self.operand(x), self.operand(y)
        left, right = _masked(x), _masked(y)
        # A product with an exact 0 is 0 whatever the other factor is.
        zero_left, zero_right = (k.exact & (k.value == 0) for k in (x, y))
        doubtful = _count(~x.exact, ~zero_right) + _count(~zero_left, ~y.exact)
        exponent = reduce(
            np.minimum,
            (x.exponent[..., :, k, None] + y.exponent[..., None, k, :] for k in range(x.shape[-1])),
            np.asarray(_NO_TERM),
        )
        magnitude = np.abs(left) @ np.abs(right)
        return Known(
            left @ right,
            doubtful == 0,
            doubtful == 0,
            np.minimum(np.broadcast_to(exponent, magnitude.shape), _NO_TERM),
            magnitude,
            _count(left != 0, right != 0),
            through_softmax=x.through_softmax or y.through_softmax,
        )

    def add(self, x: Known, y: Known) -> Known:
        """One open sum of the terms of both."""
        x, y = self.unscaled(x), self.unscaled(y)
        exact = x.exact & y.exact
        return Known(
            x.value + y.value,
            exact,
            exact,
            np.minimum(x.exponent, y.exponent),
            x.magnitude + y.magnitude,
            x.count + y.count,
            through_softmax=x.through_softmax or y.through_softmax,
        )

    def unscaled(self, x: Known) -> Known:
        return x if x.factor == _ONE else self.closed(x)

    def subtract(self, x: Known, y: Known) -> Known:
        return self.add(x, self.negate(y))

    def negate(self, x: Known) -> Known:
        return replace(x, value=-x.value)

    def multiply(self, x: Known, y: Known) -> Known:
        x, y = self.closed(x), self.closed(y)
        exact = x.exact & y.exact
        exact |= (x.exact & (x.value == 0)) | (y.exact & (y.value == 0))
        value = _masked(x) * _masked(y)
        terms = (value != 0).astype(np.int64)
        exponent = np.minimum(x.exponent + y.exponent, _NO_TERM)
        through = x.through_softmax or y.through_softmax
        return Known(value, exact, exact, exponent, np.abs(value), terms, _ONE, through)

    def scale(self, x: Known, s: Scalar) -> Known:
        return replace(x, factor=x.factor * s, stored=False)

    def shift(self, x: Known, s: Scalar) -> Known:
        x = self.unscaled(x)
        return self.add(x, self.constant(np.full(x.shape, float(s.rational()))))

    def sum(self, x: Known, axis: int) -> Known:
        x = self.unscaled(x)
        exact = np.all(x.exact, axis, keepdims=True)
        return Known(
            np.sum(np.where(x.exact, x.value, 0.0), axis, keepdims=True),
            exact,
            exact,
            np.min(x.exponent, axis, keepdims=True, initial=_NO_TERM),
            np.sum(x.magnitude, axis, keepdims=True),
            np.sum(x.count, axis, keepdims=True),
            through_softmax=x.through_softmax,
        )

    def softmax(self, x: Known, axis: int, where: Bools | None) -> Known:
        """Weights 1/m over m ties, 0 where a score vanishes beside them; all else is unproved."""
        scores = self.closed(replace(x, factor=_ONE))
        factor = float(x.factor)
        kept = np.broadcast_to(True if where is None else where, x.shape)
        scaled = np.where(kept, scores.value * factor, -np.inf)
        top = np.max(scaled, axis, keepdims=True, initial=-np.inf)
        tied = kept & (scaled == top)
        ties = np.sum(tied, axis, keepdims=True)
        with np.errstate(invalid="ignore"):
            vanishing = self.trailing(top, scaled) >= VANISHES
        alone = np.sum(kept, axis, keepdims=True) == 1
        safe = (ties == 1) | self.ties_survive(x, scores, tied, axis)
        reach = np.max(np.where(kept, np.abs(scaled), 0.0), axis, keepdims=True, initial=0.0)
        safe &= reach <= min(f.largest for f in self.softmax_formats)
        safe &= ties <= 2 ** min(f.precision for f in self.softmax_formats)
        decided = np.all(~kept | (scores.exact & (tied | vanishing)), axis, keepdims=True)
        settled = np.broadcast_to((decided & safe) | alone, x.shape) | ~kept
        settled = settled & np.any(kept, axis, keepdims=True)
        counts, which = np.unique(ties, return_inverse=True)
        weights = np.array([self.reciprocal(int(m)) for m in counts])
        weight = weights[which.reshape(ties.shape)] if ties.size else np.zeros(ties.shape)
        value = np.where(tied & settled, weight, 0.0)
        powers = np.broadcast_to((ties & (ties - 1)) == 0, x.shape)
        exact = settled & (powers | ~tied)
        settled = settled & (np.isfinite(value))
        known = _single(np.where(np.isfinite(value), value, 0.0), exact & settled)
        return replace(known, settled=settled, through_softmax=True)

    def sigmoid(self, x: Known) -> Known:
        """0 and 1 where the exponential of the argument vanishes in every form; else unproved."""
        scores = self.closed(replace(x, factor=_ONE))
        scaled = scores.value * float(x.factor)
        far = self.trailing(np.abs(scaled), np.zeros(())) >= VANISHES
        far &= np.abs(scaled) <= min(f.largest for f in self.softmax_formats)
        known = _single(np.where(scaled > 0, 1.0, 0.0), scores.exact & far)
        return replace(known, through_softmax=x.through_softmax)

    def tanh(self, x: Known) -> Known:
        """0 of 0; else unproved."""
        scores = self.closed(replace(x, factor=_ONE))
        known = _single(np.zeros(x.shape), scores.exact & (scores.value == 0))
        return replace(known, through_softmax=x.through_softmax)

    def trailing(self, top: Floats, scaled: Floats) -> Floats:
        """A lower bound of the computed top − scaled, given exact scores.

        The factor, common to the row, is off by 2u; each scaled score is rounded at most twice
        (multiplied, stored), and so is their difference once.
        """
        u = max(f.unit for f in self.softmax_formats) * (2 if self.truncates else 1)
        rounded = 2 * u * (np.abs(top) + np.where(np.isfinite(scaled), np.abs(scaled), 0.0))
        return np.asarray((top - scaled) * (1 - 3 * u) - rounded)

    def ties_survive(self, x: Known, scores: Known, tied: Bools, axis: int) -> Bools:
        """Whether tied scores stay equal when the scale is folded into Q, or split over Q and K.

        They do if they are sums of no nonzero term, or the scale and its root are powers of two.
        """
        shift = _power_of_two(x.factor)
        if shift is not None and shift[1] % 2 == 0:
            return np.ones((), bool)
        return np.asarray(np.all(~tied | (scores.magnitude == 0), axis, keepdims=True))

    def reciprocal(self, m: int) -> float:
        """1/m in the storage format; NaN where another way to round or to cut it off gives more."""
        if m == 0 or (self.truncates and m & (m - 1)):
            return np.nan
        wide = [f for f in FORMATS.values() if f.precision >= self.storage.precision]
        direct = _rounded(Fraction(1, m), self.storage)
        through = {_rounded(_rounded(Fraction(1, m), f), self.storage) for f in wide}
        return float(direct) if through == {direct} else np.nan


def _single(value: Floats, exact: Bools) -> Known:
    """Each entry as a single term."""
    exponent = np.where(value == 0, _NO_TERM, _exponent(value))
    count = (value != 0).astype(np.int64)
    return Known(value, exact, exact, exponent, np.abs(value), count)


def _times_power(value: Floats | float, exponent: Integers | int) -> Floats:
    """value · 2**exponent; 0 or inf beyond the range."""
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(value, np.clip(exponent, -4000, 4000).astype(np.int32)))


def _masked(x: Known) -> Floats:
    return np.where(x.exact, x.value, 0.0)


def _count(left: Bools, right: Bools) -> Integers:
    return np.asarray(left.astype(np.int64) @ right.astype(np.int64))


def _leading(value: Floats) -> Integers:
    """e with |value| < 2**e, as small as possible; 0 for 0."""
    return np.frexp(value)[1].astype(np.int64)


def _exponent(value: Floats) -> Integers:
    """The largest k such that value is a multiple of 2**k; 0 for 0."""
    fraction, exponent = np.frexp(value)
    significand = np.ldexp(fraction, 53).astype(np.int64)
    lowest = (significand & -significand).astype(np.float64)
    return np.where(value == 0, 0, exponent - 53 + np.frexp(lowest)[1] - 1).astype(np.int64)


def _power_of_two(s: Scalar) -> tuple[int, int] | None:
    """(sign, k) where s is ±2**k."""
    try:
        value = s.rational()
    except ValueError:
        return None
    numerator, denominator = abs(value.numerator), value.denominator
    if not numerator or numerator & (numerator - 1) or denominator & (denominator - 1):
        return None
    return (1 if value > 0 else -1), numerator.bit_length() - denominator.bit_length()


def _rounded(value: Fraction, form: Format) -> Fraction:
    """A positive fraction of at most 1 rounded to nearest even, in the format's normal range."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - form.precision
    unit = Fraction(2) ** exponent
    while value / unit >= 2**form.precision:
        unit *= 2
    return round(value / unit) * unit
