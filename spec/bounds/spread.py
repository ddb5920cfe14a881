"""The spread interpretation: how far a correct implementation usually is from the true value.

Roundings are taken as independent, uniform in ±u|result|, so of variance u²/3 · result², and
variances are propagated to first order. For a dot product of k terms, summed one after another
with partial sums that grow evenly towards s = Σ xy,

    σ² = σ_x²@y² + x²@σ_y² + (u_a²/3)((1 + k/2)·Σ x²y² + (k/3)·s²),

and through a softmax, with σ_t the deviation of an exponent, a weight deviates by

    (σ_A/A)² = σ_t²(1 − 2A) + Σₖ Aₖ²σ_tₖ² + (u_a²/3)·n/3 + quotient.

The result is a standard deviation for every entry. It is a heuristic: real roundings are
neither independent nor uniform, and correct code on equal rows reaches 15 σ. So a large error
over σ is suspicious, never wrong, and only on generic data; but it resolves ten to a hundred
times finer than any bound that holds for every order of summation.

The same model, run with the factors or the accumulation in another format, says which format
would explain the errors seen: the *effective precision*. Deviations rather than variances are
carried, so that squares of tiny or huge values do not leave the range of float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, log2, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.logistic import logistic
from qkvac.spec.bounds.softmax_bound import FREE_OF_LOGARITHM
from qkvac.spec.formats import FORMATS
from qkvac.spec.grammar.equations import Program, evaluate
from qkvac.spec.grammar.rearrangements import Rearrangement, Rearrangements
from qkvac.spec.grammar.scalar import Scalar

Array = NDArray[np.float64]

UNIFORM: Final = 1 / sqrt(3)
"""Standard deviation of a rounding error, over its largest value."""

EXPONENTIAL: Final = 2.0
"""Deviation of an exponential in units of u/√3: libraries are between 0.5 and 2.5 ulp off."""

TYPICAL_RMS: Final = 0.53
"""Root mean square of error/σ on correct backends (median of five, in float64 and float32)."""


@dataclass(frozen=True)
class Noise:
    """Values and the standard deviations of their errors, arrays of one shape."""

    value: Array
    sigma: Array
    grain: float
    """Unit roundoff that the last operation rounds to; storing in a coarser format adds to it."""
    weights: tuple[Array, Array] | None = None
    """A·σ_t, and what a row has in common, if this is a softmax over the last axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def rearranged(self, function: Rearrangement) -> Noise:
        value, sigma = function(self.value), function(self.sigma)
        return replace(self, value=value, sigma=sigma, weights=None)


class Spread(Rearrangements):
    """The algebra of independent roundings; deviations of reported values gather in `sigma`."""

    def __init__(
        self, arithmetic: Arithmetic, conventions: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(conventions)
        self.arithmetic = arithmetic
        self.u_held = max(arithmetic.u_h, arithmetic.u_e)
        self.u_scale = max(arithmetic.u_s, self.u_held)
        self.sigma: dict[str, Array] = {}

    def constant(self, array: Any) -> Noise:
        value = np.asarray(array, dtype=np.float64)
        return Noise(value, np.zeros(value.shape), self.arithmetic.u_s)

    def center(self, value: Noise) -> Array:
        return value.value

    def held(self, x: Noise, unit: float) -> Noise:
        """`x` rounded to a format with unit roundoff `unit`."""
        if unit <= x.grain:
            return x
        return replace(x, sigma=np.hypot(x.sigma, unit * UNIFORM * x.value), grain=unit)

    def report(self, name: str, x: Noise) -> Noise:
        self.sigma[name] = self.held(x, self.arithmetic.u_s).sigma
        return x

    def matmul(self, x: Noise, y: Noise) -> Noise:
        a, terms = self.arithmetic, x.shape[-1]
        x, y = self.held(x, a.u_s), self.held(y, a.u_s)
        value, squares = x.value @ y.value, _root_of_squares(x.value, y.value)
        own = UNIFORM * np.hypot(
            squares * sqrt(a.u_a**2 * (1 + terms / 2) + 2 * a.u_o**2),
            value * (a.u_a * sqrt(terms / 3)),
        )
        if x.weights is None:
            from_x = _root_of_squares(x.sigma, y.value)
        else:
            from_x = self._weighted(x, y.value, value, squares)
        from_y = _root_of_squares(x.value, y.sigma)
        sigma = np.hypot(np.hypot(from_x, from_y), own + sqrt(terms) * (a.floor_a + a.floor))
        return Noise(value, sigma, a.u_a)

    def _weighted(self, x: Noise, values: Array, product: Array, squares: Array) -> Array:
        """√Σ (Aσ_t)²(V − C)², with what is common to a row and what each weight has on its own."""
        assert x.weights is not None
        (moving, common), a = x.weights, self.arithmetic
        middle = values.sum(-2, keepdims=True) / max(x.shape[-1], 1)
        unit = _power_of_two(values - middle)
        spread, offset = (values - middle) / unit, (product - middle) / unit
        squared = moving**2
        moved = squared @ spread**2 - 2 * offset * (squared @ spread)
        moved += offset**2 * squared.sum(-1, keepdims=True)
        stored = a.u_s if a.u_s > a.u_e else 0.0
        single = UNIFORM * sqrt(a.u_e**2 + stored**2) * squares
        shared = np.hypot(common * product, single)
        return np.asarray(np.hypot(unit * np.sqrt(np.maximum(moved, 0.0)), shared))

    def softmax(self, x: Noise, axis: int, where: np.ndarray | None) -> Noise:
        a = self.arithmetic
        x = self.held(x, self.u_held)
        keep = np.broadcast_to(True if where is None else where, x.shape)
        empty = ~keep.any(axis, keepdims=True)
        if self.empty_row == "mean":
            x = Noise(np.where(empty, 0.0, x.value), np.where(empty, 0.0, x.sigma), x.grain)
            keep = keep | empty
        scores = np.where(keep, x.value, -np.inf)
        top = scores.max(axis, keepdims=True, initial=-np.inf)
        depth = np.where(keep, scores - np.where(np.isfinite(top), top, 0.0), 0.0)
        terms = np.where(keep, np.exp(depth), 0.0)
        total = terms.sum(axis, keepdims=True)
        value = terms / np.where(total > 0, total, 1.0)
        unit = a.u_e * UNIFORM
        exponent = np.hypot(x.sigma, unit * np.hypot(depth, EXPONENTIAL))
        exponent = np.where(keep, np.minimum(exponent, 1.0), 0.0)
        weights = value * exponent
        # The sum, one rounding of it, and of a log-sum-exp of the scores' own magnitude.
        common = (a.u_a**2 * keep.sum(axis, keepdims=True) / 3 + a.u_e**2) / 3
        if a.softmax not in FREE_OF_LOGARITHM:
            common = common + 2 * (unit * np.where(np.isfinite(top), top, 0.0)) ** 2
        row = common + (weights**2).sum(axis, keepdims=True)
        # σ_t²(1 − A)² + Σ over the other keys.
        variance = np.maximum(exponent**2 * (1 - 2 * value) + row, 0.0)
        sigma = np.where(keep, value * np.sqrt(variance) + a.floor, 0.0)
        if self.empty_row == "NaN":
            value = np.where(empty, np.nan, value)
        carried = (weights, np.sqrt(common)) if axis == -1 else None
        return Noise(value, sigma, a.u_e, carried)

    def sigmoid(self, x: Noise) -> Noise:
        """Through its exponential; a sum and a quotient follow."""
        a, unit = self.arithmetic, self.arithmetic.u_e * UNIFORM
        x = self.held(x, self.u_held)
        value = logistic(x.value)
        exponent = np.hypot(x.sigma, unit * np.hypot(x.value, EXPONENTIAL))
        moved = value * logistic(-x.value) * np.minimum(exponent, 1.0)
        own = 0.5 if a.sigmoid == "tanh" else sqrt(2) * value
        return Noise(value, np.hypot(moved, unit * own) + a.floor, a.u_e)

    def tanh(self, x: Noise) -> Noise:
        a, unit = self.arithmetic, self.arithmetic.u_e * UNIFORM
        x = self.held(x, self.u_held)
        value = np.tanh(x.value)
        moved = (1 - value**2) * np.minimum(x.sigma, 1.0)
        return Noise(value, np.hypot(moved, EXPONENTIAL * unit * value) + a.floor, a.u_e)

    def add(self, x: Noise, y: Noise) -> Noise:
        """The parts of a sum may have been stored, as a projection before its bias is added."""
        a, value = self.arithmetic, x.value + y.value
        x, y = self.held(x, a.u_s), self.held(y, a.u_s)
        sigma = np.hypot(x.sigma, y.sigma)
        return Noise(value, np.hypot(sigma, a.u_a * UNIFORM * value), a.u_a)

    def subtract(self, x: Noise, y: Noise) -> Noise:
        return self.add(x, self.negate(y))

    def shift(self, x: Noise, s: Scalar) -> Noise:
        return self.add(x, self.constant(float(s)))

    def negate(self, x: Noise) -> Noise:
        return replace(x, value=-x.value, weights=None)

    def scale(self, x: Noise, s: Scalar) -> Noise:
        """Rounded once as a factor and once as a product."""
        value, sigma = x.value * float(s), x.sigma * abs(float(s))
        own = self.u_scale * UNIFORM * sqrt(2) * np.abs(value)
        return Noise(value, np.hypot(sigma, own), x.grain)

    def multiply(self, x: Noise, y: Noise) -> Noise:
        a = self.arithmetic
        x, y = self.held(x, a.u_s), self.held(y, a.u_s)
        value = x.value * y.value
        inherited = np.hypot(x.sigma * y.value, x.value * y.sigma)
        return Noise(value, np.hypot(inherited, a.u_e * UNIFORM * value), a.u_e)

    def sum(self, x: Noise, axis: int) -> Noise:
        a, terms = self.arithmetic, x.shape[axis]
        value = x.value.sum(axis, keepdims=True)
        squares = np.sqrt((x.value**2).sum(axis, keepdims=True))
        own = a.u_a * UNIFORM * np.hypot(squares * sqrt(terms / 2), value * sqrt(terms / 3))
        return Noise(value, np.hypot(np.sqrt((x.sigma**2).sum(axis, keepdims=True)), own), a.u_a)


def _power_of_two(x: Array) -> Array:
    """At least half of every |x| of a column (the last axis but one): squares stay in range."""
    largest = np.abs(x).max(-2, keepdims=True, initial=0.0)
    return np.asarray(np.exp2(np.frexp(largest)[1] - 1.0))


def _root_of_squares(x: Array, y: Array) -> Array:
    """√(x² @ y²)"""
    left, right = np.swapaxes(_power_of_two(np.swapaxes(x, -1, -2)), -1, -2), _power_of_two(y)
    return np.sqrt((x / left) ** 2 @ (y / right) ** 2) * left * right


def spread(
    program: Program,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    arithmetic: Arithmetic,
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Standard deviation of computed − true for every equation's target, as float64."""
    algebra = Spread(arithmetic, conventions)
    values = {
        tensor.name: algebra.constant(inputs[tensor.name])
        if tensor.kind == "real"
        else np.asarray(inputs[tensor.name])
        for tensor in program.inputs
    }
    with np.errstate(all="ignore"):
        evaluate(program, algebra, values, sizes)
    return algebra.sigma


# --- effective precision -------------------------------------------------------------------

COARSER: Final = ("float32", "tfloat32", "bfloat16")
"""Formats that accelerated arithmetic falls back to, finest first; float16 has TF32's precision."""

OPERANDS_OFFSET: Final = 1.25
"""Bits by which rounding only the factors looks finer than computing in that format throughout:
½log₂((1 + k/2)/2), taken at k = 20 of the 0 to 4 that occur."""

UPPER_QUARTILE: Final = 1.15
"""Three quarters of normal errors lie within this many standard deviations."""


@dataclass(frozen=True)
class Precision:
    """What format the errors look like."""

    bits: float
    """Significand bits of a format whose roundings would explain the errors; at most 53."""
    resembles: str | None
    """The coarser format that is nearest; None where the errors fit what was declared."""


RESEMBLANCE: Final = 2.0
"""Errors that are more bits away from every format come from a wrong formula, not from rounding."""


def effective_bits(errors: Array, sigma: Array, arithmetic: Arithmetic) -> Precision:
    """The precision that a quantity's errors suggest, given their declared deviation `sigma`.

    The upper quartile of |error|/σ is compared, so that a few wrong entries do not look like a
    coarse format.
    """
    formats = (arithmetic.storage, arithmetic.operands, arithmetic.accumulation)
    declared = min(FORMATS[name].precision for name in formats)
    noisy = sigma > 0
    if not noisy.any():
        return Precision(float(declared), None)
    with np.errstate(over="ignore"):
        ratios = errors[noisy] / sigma[noisy]
    deviation = float(np.quantile(ratios, 0.75)) / UPPER_QUARTILE
    if not 0 < deviation < inf:
        return Precision(53.0 if deviation == 0 else 0.0, None)
    bits = min(declared - log2(deviation / TYPICAL_RMS), 53.0)
    distances = {
        name: abs(bits - FORMATS[name].precision - OPERANDS_OFFSET)
        for name in COARSER
        if FORMATS[name].precision < declared
    }
    nearest = min(distances, key=distances.__getitem__, default=None)
    if nearest is None or distances[nearest] >= min(abs(declared - bits), RESEMBLANCE):
        return Precision(bits, None)
    return Precision(bits, nearest)
