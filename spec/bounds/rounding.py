"""The rounding interpretation: how far a correct implementation may be from the true value.

Bounding every operation by itself fails correct code as soon as a framework fuses: a bias added
inside the product's accumulation, a weight gradient summed over batch and tokens in one go. So a
sum stays open. An `OpenSum` stands for Σ termᵢ with its number of terms k, Σ|termᵢ|, a relative
error per term, and an error inherited from its factors. Products, additions, sums over an axis
and biases add terms and magnitudes; a scale is 4 roundings a term (√, reciprocal, product; or √s
taken into Q and K). Only where the sum is reported, enters a softmax or is a factor is it charged

    |computed − true| ≤ inherited + ((1 + (k − 1)u_a)(1 + factor) − 1) · Σ|termᵢ|,

which for a plain dot product of length k is (ku_a + (k − 1)u_a²)·Σ|x||y|, a little more than what
Jeannerod and Rump (2013) prove; docs/bounds.md has the proofs. It holds for every order of
summation, blocked or not, with or without FMA, and with any accumulator at least as precise as
u_a; it is attained, so nothing smaller is safe.

Factors x̂ = x ± E contribute E_x(|y| + E_y) + |x|E_y, and |x̂||ŷ| replaces |x||y| in Σ|term|.
If values are stored in a coarser format than they are accumulated in, the result is rounded
once more (u_s(|v| + E)), and so is each part of a sum that was stored on the way. Underflow adds
λ a product: the smallest subnormal, or the smallest normal where an implementation flushes.

The centers are float64 evaluations, themselves off by the same bound with u = 2**-53. True
values are therefore taken up to `doubt` times the error, which matters in float64 only, and
every reported bound is inflated by 1e-6 for the float64 evaluation of the bound itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.logistic import sigmoid_error, tanh_error
from qkvac.spec.bounds.softmax_bound import Weights, compound, softmax_error, weighted_error
from qkvac.spec.formats import FORMATS
from qkvac.spec.grammar.equations import Program, evaluate
from qkvac.spec.grammar.rearrangements import Rearrangement, Rearrangements
from qkvac.spec.grammar.scalar import Scalar

Array = NDArray[np.float64]

Bounded = Callable[[Arithmetic, Array, Array, float], tuple[Array, Array]]
"""Arguments and their errors → values of a function and their errors."""

INFLATION: Final = 1 + 1e-6
"""Covers the rounding of the bound's own float64 evaluation, sums of 2**30 terms included."""

SCALE_ROUNDINGS: Final = 4
"""√, reciprocal and product; or √s rounded twice and multiplied into Q and K."""


@dataclass(frozen=True)
class OpenSum:
    """A sum whose roundings have not been charged yet; arrays of one shape (or broadcasting)."""

    value: Array
    size: Array
    """Σ|term|, with the errors of the factors included."""
    error: Array | float = 0.0
    """What the factors' errors and underflow contribute, an array; the number 0.0 if nothing."""
    terms: int = 1
    factor: float = 0.0
    """Relative error of each term before it is added."""
    grain: float = 0.0
    """Unit roundoff that the last operation rounds to; storing in a coarser format adds to it."""
    parts: Array | None = None
    """Σ|part| over the separately computed parts of the sum; None: the value is the only part."""
    stored: int = 0
    """How often a part may have been rounded to storage before the sum was complete."""
    factors: float = 0.0
    """Largest Σ|x| + Σ|y| over the entries of a product x @ y, for a scale taken into x or y."""
    weights: Weights | None = None
    """Logarithmic errors, if this is the result of a softmax over its last axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def rearranged(self, function: Rearrangement) -> OpenSum:
        """The sum with its entries moved; what is known of them as weights is dropped."""
        return replace(
            self,
            value=function(self.value),
            size=function(self.size),
            error=self.error if isinstance(self.error, float) else function(self.error),
            parts=None if self.parts is None else function(self.parts),
            weights=None,
        )


class Rounding(Rearrangements):
    """The algebra of open sums under one arithmetic model.

    Of what is reported, `values`, `bounds` and `magnitudes` gather by name.
    """

    def __init__(
        self, arithmetic: Arithmetic, conventions: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(conventions)
        a = self.arithmetic = arithmetic
        formats = [FORMATS[f] for f in (a.storage, a.accumulation, a.elementwise, a.scores)]
        used = [*formats, FORMATS[a.operands]] if a.u_o else formats
        self.u_held = max(a.u_h, a.u_e)
        self.u_scale = max(a.u_s, a.u_h, a.u_a, a.u_e)
        self.product = compound(a.u_a, a.u_o, a.u_o)
        self.floor = max(f.tiny if a.flushes else f.smallest for f in used)
        operands = FORMATS[a.operands]
        narrower = a.u_o and operands.emin > FORMATS[a.storage].emin
        self.operand_floor = self.floor if narrower else 0.0
        self.stores_parts = self.u_scale > a.u_a
        self.doubt = 1 + FORMATS["float64"].unit / min(f.unit for f in formats)
        self.values: dict[str, Array] = {}
        self.bounds: dict[str, Array] = {}
        self.magnitudes: dict[str, Array] = {}

    def operand(self, array: Any, roundings: int = 0) -> OpenSum:
        """An input known exactly, or a reported value `roundings` storage roundings off."""
        value = np.asarray(array, dtype=np.float64)
        size, grain = np.abs(value), self.arithmetic.u_s
        if roundings:
            error = compound(*[grain] * roundings) * size + roundings * self.floor * (size > 0)
            return OpenSum(value, size + error, error, grain=grain)
        tiny = FORMATS[self.arithmetic.storage].tiny
        if self.arithmetic.flushes and np.any((size < tiny) & (size > 0)):
            error = np.where(size < tiny, size, 0.0)
            return OpenSum(value, size + error, error, grain=grain)
        return OpenSum(value, size, grain=grain)

    def constant(self, array: Array) -> OpenSum:
        return self.operand(array)

    def center(self, value: OpenSum) -> Array:
        return value.value

    def charge(self, x: OpenSum, unit: float) -> Array | None:
        """Roundings of the summation, and of its parts' storage in a format of this unit."""
        relative = compound((x.terms - 1) * self.arithmetic.u_a, x.factor)
        if relative == 0 and not x.stored:
            return None
        charge: Array = x.size * relative
        if x.stored and unit > self.arithmetic.u_a:
            charge += x.stored * unit * (1 + relative) * self.part(x)
        return charge

    def summed(self, x: OpenSum, unit: float) -> OpenSum:
        """`x` with its charge in the error, and nothing left open but its own storage."""
        charge = self.charge(x, unit)
        if charge is None:
            return x
        size = x.size + charge
        charge += x.error
        return replace(x, size=size, error=charge, terms=1, factor=0.0, parts=None, stored=0)

    def held(self, x: OpenSum, unit: float) -> Array | float:
        """|computed − true| where `x` is held in a format with unit roundoff `unit`."""
        error, charge = x.error, self.charge(x, unit)
        if charge is not None:
            charge += error
            error = charge
        if unit <= x.grain:
            return error
        return error + unit * (np.abs(x.value) + error)

    def as_factor(self, x: OpenSum) -> Array | float:
        """|computed − true| of a factor, as it is stored and without its rounding for a product."""
        error = self.held(x, self.arithmetic.u_s)
        if self.operand_floor:
            error = self.underflow(error, x.size, self.operand_floor)
        return error

    def reach(self, x: OpenSum, error: Array | float) -> Array:
        """The largest |value| that a computed or the true `x` can have."""
        # An exact input is its own only term.
        return x.size if isinstance(error, float) else np.abs(x.value) + self.doubt * error

    def part(self, x: OpenSum) -> Array:
        return np.abs(x.value) + x.error if x.parts is None else x.parts

    def underflow(self, error: Array | float, present: NDArray[Any], amount: float) -> Array:
        """`error` and λ for every entry that is not a sum of zeros."""
        if isinstance(error, float) or not np.all(present):
            return np.asarray(error + amount * (present != 0))
        return np.asarray(error + amount)

    def report(self, name: str, x: OpenSum) -> OpenSum:
        x = self.summed(x, self.arithmetic.u_s)
        bound = np.broadcast_to(self.held(x, self.arithmetic.u_s) * INFLATION, x.shape)
        undefined = np.isnan(bound)
        self.bounds[name] = np.where(undefined, np.inf, bound) if undefined.any() else bound
        self.magnitudes[name] = x.size
        self.values[name] = x.value
        return x

    # --- open sums -------------------------------------------------------------------------

    def matmul(self, x: OpenSum, y: OpenSum) -> OpenSum:
        a, terms = self.arithmetic, x.shape[-1]
        error_x, error_y = self.as_factor(x), self.as_factor(y)
        value = x.value @ y.value
        reach_x, reach_y = self.reach(x, error_x), self.reach(y, error_y)
        size = reach_x @ reach_y
        from_x, from_y = _product(error_x, reach_y), _product(reach_x, error_y)
        error = from_x + from_y
        if x.weights is not None:
            sharper = weighted_error(x.weights, y.value, value, size, from_y, self.doubt)
            error = np.where(sharper < error, sharper, error)
        present = size
        if not np.all(size):
            present = (reach_x > 0).astype(np.float64) @ (reach_y > 0).astype(np.float64)
        # A flushing machine may lose λ in every addition, too, and any machine when storing.
        products = (2 * terms if a.flushes else terms) * a.floor_a
        error = self.underflow(error, present, products + 2 * self.floor)
        if terms == 0:
            return OpenSum(value, size, grain=a.u_a)
        factors = _largest(reach_x.sum(-1)) + _largest(reach_y.sum(-2))
        return OpenSum(value, size, error, terms, self.product, a.u_a, factors=factors)

    def add(self, x: OpenSum, y: OpenSum) -> OpenSum:
        a = self.arithmetic
        size = x.size + y.size
        both = OpenSum(
            x.value + y.value,
            size,
            self.underflow(x.error + y.error, size, 2 * self.floor),
            x.terms + y.terms,
            max(x.factor, y.factor),
            a.u_a,
        )
        if not self.stores_parts:
            return both
        computed = min(x.grain, y.grain) < self.u_scale
        stored = x.stored + y.stored + computed
        return replace(both, parts=self.part(x) + self.part(y), stored=stored)

    def subtract(self, x: OpenSum, y: OpenSum) -> OpenSum:
        return self.add(x, self.negate(y))

    def shift(self, x: OpenSum, s: Scalar) -> OpenSum:
        number = np.full((), float(s))
        term = OpenSum(number, np.abs(number), factor=self.u_scale, grain=self.arithmetic.u_s)
        return self.add(x, term)

    def negate(self, x: OpenSum) -> OpenSum:
        return replace(x, value=-x.value, weights=None)

    def scale(self, x: OpenSum, s: Scalar) -> OpenSum:
        factor = float(s)
        scaled = x.rearranged(lambda array: array * abs(factor))
        if factor < 0:
            scaled = replace(scaled, value=x.value * factor)
        if abs(factor) == 1:
            return scaled
        # Taken into a factor of a product, it may underflow there: λ·Σ|other factor|.
        lost = 2 * self.floor * (1 + max(1.0, sqrt(abs(factor))) * x.factors)
        return replace(
            scaled,
            factors=abs(factor) * x.factors,
            error=self.underflow(scaled.error, x.size, lost),
            factor=compound(x.factor, *[self.u_scale] * SCALE_ROUNDINGS),
        )

    def multiply(self, x: OpenSum, y: OpenSum) -> OpenSum:
        a = self.arithmetic
        error_x, error_y = self.held(x, a.u_s), self.held(y, a.u_s)
        reach_x, reach_y = self.reach(x, error_x), self.reach(y, error_y)
        size = reach_x * reach_y
        error = self.underflow(
            error_x * reach_y + reach_x * error_y, (reach_x > 0) & (reach_y > 0), 2 * self.floor
        )
        return OpenSum(x.value * y.value, size, error, 1, max(a.u_e, a.u_a), a.u_e)

    def _reduced(self, x: OpenSum, add: Callable[[Array], Array], terms: int) -> OpenSum:
        """Sums of up to `terms` entries; each entry may have been stored on its own."""
        error = add(np.broadcast_to(np.asarray(x.error), x.shape))
        size = add(np.broadcast_to(x.size, x.shape))
        if self.arithmetic.flushes:
            error = self.underflow(error, size, terms * self.arithmetic.floor_a)
        summed = OpenSum(
            add(x.value), size, error, x.terms * max(terms, 1), x.factor, self.arithmetic.u_a
        )
        if not self.stores_parts:
            return summed
        stored = x.stored + (x.grain < self.u_scale)
        parts = add(np.broadcast_to(self.part(x), x.shape))
        return replace(summed, parts=parts, stored=stored)

    def sum(self, x: OpenSum, axis: int) -> OpenSum:
        return self._reduced(x, lambda array: array.sum(axis, keepdims=True), x.shape[axis])

    def sum_to(self, x: OpenSum, like: OpenSum) -> OpenSum:
        """Sum over batch axes, over axes of size 1 in `like`, and over groups of equal heads."""
        lead, grouped, axes = len(x.shape) - len(like.shape), list[int](), list[int]()
        for have, want in zip(x.shape[lead:], like.shape, strict=True):
            axes.append(len(grouped) + 1)
            grouped += [want, have // want if want else 1]
        shape = (*x.shape[:lead], *grouped)
        over = (*range(lead), *(lead + axis for axis in axes))
        terms = int(np.prod([shape[axis] for axis in over]))
        if terms == 1:
            return x.rearranged(lambda array: array.reshape(like.shape))
        return self._reduced(x, lambda array: array.reshape(shape).sum(over), terms)

    def scatter_add(self, x: OpenSum, index: Any, like: OpenSum) -> OpenSum:
        def add(array: Array) -> Array:
            table = np.zeros(like.shape)
            np.add.at(table, index, array)
            return table

        repeats = np.unique(index, return_counts=True)[1].max(initial=0)
        return self._reduced(x, add, int(repeats))

    def softmax(self, x: OpenSum, axis: int, where: np.ndarray | None) -> OpenSum:
        a, scores = self.arithmetic, x.value
        error = np.broadcast_to(self.held(x, self.u_held), x.shape)
        empty = None
        if where is not None and self.empty_row != "zeros":
            empty = ~np.broadcast_to(where, x.shape).any(axis, keepdims=True)
            # Equal weights come from equal scores; of NaN there is no bound.
            scores, error = (np.where(empty, 0.0, array) for array in (scores, error))
            where = where | empty
        value, error, weights = softmax_error(a, scores, error, axis, where, self.doubt)
        if empty is not None and self.empty_row == "NaN":
            value, error = (np.where(empty, np.nan, array) for array in (value, error))
        last = weights if axis == -1 else None
        return OpenSum(value, value + error, error, grain=a.u_e, weights=last)

    def sigmoid(self, x: OpenSum) -> OpenSum:
        """See `qkvac.spec.bounds.logistic`."""
        return self._function(x, sigmoid_error)

    def tanh(self, x: OpenSum) -> OpenSum:
        """See `qkvac.spec.bounds.logistic`."""
        return self._function(x, tanh_error)

    def _function(self, x: OpenSum, bounded: Bounded) -> OpenSum:
        """A function of each entry, whose argument is held as scores are."""
        held = np.broadcast_to(np.asarray(self.held(x, self.u_held)), x.shape)
        value, error = bounded(self.arithmetic, x.value, held, self.doubt)
        return OpenSum(value, np.abs(value) + error, error, grain=self.arithmetic.u_e)


def _product(x: Array | float, y: Array | float) -> Array | float:
    """x @ y, where a factor that is a number stands for an exact operand: 0."""
    if isinstance(x, float) or isinstance(y, float):
        return 0.0
    return np.asarray(x @ y)


def _largest(x: Array) -> float:
    """The largest finite entry; infinite ones have infinite bounds anyway."""
    return float(x.max(initial=0.0, where=np.isfinite(x)))


def bounds(
    program: Program,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    arithmetic: Arithmetic,
    *,
    inherited: Mapping[str, int] | None = None,
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Componentwise bound of |computed − true| for every equation's target, as float64.

    `inherited[name]` is the number of storage roundings by which the operand `name` may be off:
    none for true inputs, one or two for intermediates that a backend reported. So the same
    function serves the bound of a whole program and of a single equation on reported operands.
    Non-finite operands give infinite bounds. `conventions` as in `Rearrangements`.
    """
    return evaluated(program, inputs, sizes, arithmetic, inherited or {}, conventions).bounds


def magnitude(
    program: Program,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Σ|term| of every equation's target: the scale of a sum that is 0 by cancellation."""
    exact = Arithmetic.for_dtype("float64")
    return evaluated(program, inputs, sizes, exact, {}, conventions).magnitudes


def evaluated(
    program: Program,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    arithmetic: Arithmetic,
    inherited: Mapping[str, int],
    conventions: Mapping[str, str] | None,
) -> Rounding:
    """The algebra with all that it has gathered of the equations' targets; see `bounds`."""
    algebra = Rounding(arithmetic, conventions)
    with np.errstate(all="ignore"):
        values = {
            tensor.name: algebra.operand(inputs[tensor.name], inherited.get(tensor.name, 0))
            if tensor.kind == "real"
            else np.asarray(inputs[tensor.name])
            for tensor in program.inputs
        }
        evaluate(program, algebra, values, sizes)
    return algebra
