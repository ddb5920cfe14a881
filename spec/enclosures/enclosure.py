"""Enclosures: certified values, and the choice of the arithmetic that certifies them.

The true value of a quantity lies within hi + lo ± radius, entry by entry, in three float64
arrays. Where nothing is known, because an operand is infinite or NaN, hi is NaN; where the true
value certainly leaves the range of float64, hi is ±inf; the radius is infinite in both cases.

A radius is 0 or at least GRID = 2**-1074, which is also the finest spacing of hi and lo. Around
0 a radius of exactly GRID is reserved: it says that the true value is below GRID/2 in magnitude,
so that every format rounds it to 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import sub
from typing import Any, Final

import numpy as np
from flint import arb

from qkvac.spec.enclosures.arb_balls import BallAlgebra, Balls, working_precision
from qkvac.spec.enclosures.double_double import DoubleDouble, DoubleDoubleAlgebra
from qkvac.spec.enclosures.error_free import two_sum
from qkvac.spec.enclosures.midpoint_radius import GRID, UNIT, Interval, IntervalAlgebra, settled
from qkvac.spec.formats import FORMATS, Format
from qkvac.spec.formats import dtype as numpy_dtype
from qkvac.spec.grammar import equations
from qkvac.spec.grammar.equations import Program
from qkvac.spec.grammar.rearrangements import Array

SHARPNESS: Final = 2.0**-10
"""The part of a bound that the oracle's own radius may take up."""

LONG: Final = 512
"""Matrix axis from which on double-double is tried before Arb."""

PRECISIONS: Final = (128, 256, 512, 1024, 2048, 4096)

_OVERFLOW: Final = arb(2**1024 - 2**970)
"""Numbers from here on round to infinity in float64."""

_VANISHING: Final = arb(2) ** -1075
"""Numbers below this round to 0 in float64."""


@dataclass(frozen=True)
class Enclosure:
    """The true value lies within hi + lo ± radius."""

    hi: Array
    lo: Array
    radius: Array

    @classmethod
    def of(cls, value: Balls | DoubleDouble | Interval) -> Enclosure:
        """The enclosure that an algebra's value stands for."""
        if isinstance(value, Balls):
            if value.exact is None:
                return _from_balls(value)
            value = settled(value.exact, None)
        if isinstance(value, Interval):
            zero = np.zeros(value.shape)
            radius = zero if value.radius is None else value.radius
            if np.isfinite(np.sum(radius)):  # so every value is known
                return cls(value.value, zero, radius)
            return _settled(value.value, zero, radius)
        hi, lo, radius = value.parts
        return _settled(*two_sum(hi, lo), radius)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    @property
    def known(self) -> Array:
        """Where the true value is enclosed in a finite range."""
        return np.isfinite(self.radius)

    @property
    def center(self) -> Array:
        """The double nearest to the middle."""
        return self.hi + self.lo

    def error(self, y: Array) -> Array:
        """An upper bound of |y - true value|; inf where the true value or y is not finite."""
        upper, _ = self._errors(y)
        return upper

    def least_error(self, y: Array) -> Array:
        """A lower bound of |y - true value|, 0 where nothing is known; for proving a fault."""
        _, lower = self._errors(y)
        return lower

    def _errors(self, y: Array) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            difference, error = two_sum(np.asarray(y).astype(np.float64), -self.hi)
            rest = error - self.lo
            total = np.abs(difference + rest)
            slack = np.abs(rest) * (4 * UNIT) + self.radius  # rest was rounded once
            upper = (total + slack) * (1.0 + 4 * UNIT)
            lower = np.maximum(total - slack * (1.0 + 4 * UNIT), 0.0) * (1.0 - 4 * UNIT)
        vague = ~np.isfinite(upper)
        return np.where(vague, np.inf, upper), np.where(vague, 0.0, lower)

    def sharp(self, bound: Array) -> Array:
        """Where the radius is at most bound/1024, or as small as float64 can express."""
        fine = (self.radius <= bound * SHARPNESS) | (self.radius <= 4 * GRID)
        return np.asarray(fine | ~np.isfinite(bound))

    def rounded(self, dtype: str) -> tuple[Array, Array]:
        """The true value rounded to nearest, ties to even; and where that is certain.

        One rounding from the enclosure to the format, never by way of another; -0 becomes +0;
        beyond the range it is ±inf, which is certain if the enclosure is beyond.
        """
        chosen = FORMATS[dtype]
        with np.errstate(all="ignore"):
            below, above = self.lo - self.radius, self.lo + self.radius
            below = np.where(self.radius > 0, np.nextafter(below, -np.inf), below)
            above = np.where(self.radius > 0, np.nextafter(above, np.inf), above)
            low, high = _rounded(self.hi, below, chosen), _rounded(self.hi, above, chosen)
            value = _rounded(self.hi, self.lo, chosen)
            beyond = np.isinf(self.hi)
            value = np.where(beyond, self.hi, value) + 0.0
            narrow = value if dtype == "float64" else value.astype(np.float32)
            vanishing = (self.hi == 0) & (self.lo == 0) & (self.radius <= GRID)
            return narrow.astype(numpy_dtype(dtype)), (low == high) | beyond | vanishing

    def arrays(self) -> dict[str, Array]:
        """The three float64 arrays, for a cache."""
        return {"hi": self.hi, "lo": self.lo, "radius": self.radius}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Enclosure:
        """The inverse of `arrays`; raises ValueError if these are not three equal-shaped parts."""
        parts = [arrays[name] for name in ("hi", "lo", "radius") if name in arrays]
        if len(parts) != 3 or len({(part.shape, part.dtype.str) for part in parts}) != 1:
            raise ValueError("an enclosure consists of hi, lo and radius, of one shape and dtype")
        if parts[0].dtype != np.float64:
            raise ValueError(f"an enclosure is held in float64, not {parts[0].dtype}")
        return cls(*parts)


def _settled(hi: Array, lo: Array, radius: Array, beyond: Array | None = None) -> Enclosure:
    known = np.isfinite(hi) & np.isfinite(lo) & np.isfinite(radius)
    if not known.all():
        if beyond is not None:
            hi = np.where(known | beyond, hi, np.nan)
        else:
            hi = np.where(known, hi, np.nan)
        lo, radius = np.where(known, lo, 0.0), np.where(known, radius, np.inf)
    return Enclosure(hi, lo, radius)


def _from_balls(value: Balls) -> Enclosure:
    flat = value.flat
    his = list(map(float, flat))  # the middle, rounded to nearest
    rest = list(map(sub, flat, his))
    hi = np.array(his, np.float64)
    lo = np.fromiter(map(float, rest), np.float64, len(rest))
    radius = np.fromiter(map(float, map(arb.rad, rest)), np.float64, len(rest))
    # lo was rounded by at most u·|lo|; where lo or the radius underflows, each by half a GRID.
    slack = np.abs(lo) * (2 * UNIT)
    underflow = (slack + radius < 2.0**-960) & ((lo != 0) | (radius != 0))
    radius = (radius + slack) * (1.0 + 4 * UNIT) + np.where(underflow, GRID, 0.0)
    for i in np.flatnonzero((lo == 0) & (radius == 0)):
        if not rest[i].is_zero():
            radius[i] = GRID if abs(flat[i]) < _VANISHING else 2 * GRID
    beyond = np.zeros(hi.shape, bool)
    for i in np.flatnonzero(np.isinf(hi)):
        beyond[i] = flat[i].is_finite() and bool(abs(flat[i]) >= _OVERFLOW)
    parts = (part.reshape(value.shape) for part in (hi, lo, radius, beyond))
    return _settled(*parts)


def _rounded(hi: Array, lo: Array, chosen: Format) -> Array:
    """hi + lo rounded once to a format, as float64."""
    if chosen.precision >= 53:
        return np.asarray(hi + lo)
    head, tail = two_sum(hi, lo)
    # Rounding to odd keeps what matters of the tail in the last bit of 53, so that the rounding
    # that follows is of the exact sum (Boldo and Melquiond 2008).
    even = (head.view(np.int64) & 1) == 0
    head = np.where((tail != 0) & even, np.nextafter(head, np.copysign(np.inf, tail)), head)
    last = np.maximum(np.frexp(head)[1] - 1, chosen.emin) - (chosen.precision - 1)
    value = np.ldexp(np.rint(np.ldexp(head, -last)), last)
    bounded: Array = np.where(np.abs(value) > chosen.largest, np.copysign(np.inf, value), value)
    return bounded


# --- certification -------------------------------------------------------------------------


class FlushedSubnormalsError(RuntimeError):
    """The calling thread flushes subnormal numbers to zero, so no radius would be right."""


def certify(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, Any],
    dtype: str,
    *,
    wanted: Collection[str] | None = None,
    bound: Mapping[str, Array] | None = None,
    exact: Collection[str] = (),
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Enclosure]:
    """Enclosures of the equations' targets, or of those in `wanted`.

    Inputs are exact numbers in any dtype that float64 contains; they may be infinite or NaN, and
    what depends on such an entry is then unknown. `dtype` names the tested format, from which the
    first arithmetic follows: float64 ± radius for float32 and below; for float64 double-double if
    an axis has LONG entries, else Arb. The next one is taken while a radius exceeds bound/1024,
    or the rounding to `dtype` of a quantity in `exact` is uncertain; Arb's precision rises to
    4096 bits as long as that helps. `conventions` as in `Rearrangements`.
    Raises FlushedSubnormalsError.
    """
    if np.all(np.ldexp(np.ones(1), -1022) * 0.5 == 0.0):
        raise FlushedSubnormalsError("subnormal numbers are flushed to zero in this thread")
    targets = [equation.target.name for equation in program.equations]
    names = targets if wanted is None else [name for name in targets if name in wanted]
    needed = _needed(program, names)
    arrays = {tensor.name: _plain(inputs[tensor.name], tensor.kind) for tensor in needed.inputs}
    longest = max((size for array in arrays.values() for size in array.shape[-2:]), default=0)
    finite = all(np.all(np.isfinite(array)) for array in arrays.values())
    best: dict[str, Enclosure] = {}
    for algebra, bits in _arithmetics(dtype, longest, conventions or {}):
        precision = working_precision(bits) if bits else nullcontext()
        with precision, np.errstate(all="ignore"):
            values = {
                tensor.name: algebra.constant(arrays[tensor.name])
                if tensor.kind == "real"
                else arrays[tensor.name]
                for tensor in needed.inputs
            }
            results = equations.evaluate(needed, algebra, values, sizes)
            found = {name: Enclosure.of(results[name]) for name in names}
        before, best = best, {name: _sharper(best.get(name), new) for name, new in found.items()}
        vague = {name: ~_settles(best[name], bound, name in exact, dtype, name) for name in names}
        if not any(mask.any() for mask in vague.values()):
            break
        if bits > PRECISIONS[0] and not any(
            np.any(_improves(before[name], best[name], finite)[mask])
            for name, mask in vague.items()
        ):
            break
    return best


def _arithmetics(
    dtype: str, longest: int, conventions: Mapping[str, str]
) -> Iterator[tuple[BallAlgebra | DoubleDoubleAlgebra | IntervalAlgebra, int]]:
    """Algebras in the order in which they are tried, with the precision that Arb is to work at."""
    if dtype != "float64":
        yield IntervalAlgebra(conventions), 0
    if longest >= LONG:
        yield DoubleDoubleAlgebra(conventions, slices=2), 0
        yield DoubleDoubleAlgebra(conventions, slices=4), 0
    for bits in PRECISIONS:
        yield BallAlgebra(conventions), bits


def _needed(program: Program, names: Collection[str]) -> Program:
    """The equations that `names` depend on, and the inputs of these."""
    kept, used = list[equations.Equation](), set(names)
    for equation in reversed(program.equations):
        if equation.target.name in used:
            kept.insert(0, equation)
            used.update(equation.operands)
    inputs = tuple(tensor for tensor in program.inputs if tensor.name in used)
    return Program(inputs, program.parameters, tuple(kept))


def _plain(array: Array, kind: str) -> Array:
    types = {"real": np.float64, "mask": np.bool_, "index": np.intp}
    return np.asarray(array).astype(types[kind], copy=False)


def _sharper(old: Enclosure | None, new: Enclosure) -> Enclosure:
    """Entry by entry the enclosure with the smaller radius."""
    if old is None:
        return new
    better = new.radius <= old.radius
    if better.all():
        return new
    pairs = zip(new.arrays().values(), old.arrays().values(), strict=True)
    return Enclosure(*(np.where(better, left, right) for left, right in pairs))


def _improves(before: Enclosure, best: Enclosure, finite: bool) -> Array:
    """Where a higher precision may help; of `finite` inputs, it helps against infinite radii.

    Beside the most negative number of float64, scores show from about 1100 bits on only.
    """
    unbounded = finite & np.isinf(best.radius)
    return np.asarray((best.radius < before.radius / 2) | unbounded)


def _settles(
    found: Enclosure, bound: Mapping[str, Array] | None, exact: bool, dtype: str, name: str
) -> Array:
    """Which entries need no finer arithmetic."""
    enough = found.known
    if bound is not None and name in bound:
        enough = found.sharp(bound[name])
    if exact:
        enough = enough & found.rounded(dtype)[1]
    return enough
