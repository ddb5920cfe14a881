"""Which cases stay normal: whether powers of two commute with every rounding on the way.

Rounded or not, a sum of multiples of g is a multiple of g, so no number on the way to a product
X @ Y is smaller than the granule of X times that of Y, unless it is 0. The equations are evaluated
with that granule beside each value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import rounding
from qkvac.spec.cases.case import Case
from qkvac.spec.formats import FORMATS, Format
from qkvac.spec.grammar.equations import evaluate
from qkvac.spec.grammar.rearrangements import Rearrangements
from qkvac.spec.grammar.scalar import Scalar

Array = np.ndarray[Any, Any]

MARGIN: Final = 2.0**6
"""What scaling may divide a number by before it may be subnormal."""
DEEPEST: Final = 700.0
"""Exponentials of less than −700 are taken for those of −700."""


@cache
def stays_normal(case: Case, dtype: str) -> bool:
    """Whether scaling inputs by powers of two up to 8 keeps every number on the way normal."""
    inputs = case.inputs(dtype)
    if any(array.size == 0 for array in inputs.values()):
        return False
    model = Arithmetic.for_dtype(dtype)
    errors = rounding.bounds(case.program, inputs, case.bindings, model)
    algebra = Granules(FORMATS[dtype], errors)
    given = {t.name: algebra.given(inputs[t.name]) for t in case.program.inputs}
    with np.errstate(all="ignore"):
        evaluate(case.program, algebra, given, case.bindings)
    return algebra.normal


def granule(array: Array) -> float:
    """The largest power of two of which every entry is a multiple; 1 for all zeros."""
    values = array[(array != 0) & np.isfinite(array)]
    if not values.size:
        return 1.0
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    trailing = np.log2((whole & -whole).astype(np.float64))
    return float(2.0 ** np.min(exponent - 53 + trailing))


@dataclass(frozen=True)
class Grained:
    """Values as float64, and a power of two of which every one that is computed is a multiple."""

    value: Array
    granule: float

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.value.shape
        return shape

    def rearranged(self, function: Callable[[Array], Array]) -> Grained:
        return replace(self, value=function(self.value))


class Granules(Rearrangements):
    """The algebra of values with granules; remembers the smallest and the largest number."""

    def __init__(self, form: Format, errors: Mapping[str, Array]) -> None:
        super().__init__()
        self._form = form
        self._errors = errors
        self._smallest = math.inf
        self._largest = 0.0

    @property
    def normal(self) -> bool:
        """Whether all numbers so far stay clear of both ends of the format's range."""
        form = self._form
        return self._smallest >= MARGIN * form.tiny and self._largest <= form.largest / MARGIN

    def given(self, array: Array) -> Grained | Array:
        """An input; masks and indices are no numbers."""
        if array.dtype.kind in "bi":
            return array
        real = array.astype(np.float64)
        return self._seen(Grained(real, granule(real)))

    def constant(self, array: Array) -> Grained:
        return Grained(array, granule(array))

    def center(self, x: Grained) -> Array:
        return x.value

    def matmul(self, x: Grained, y: Grained) -> Grained:
        return self._seen(Grained(x.value @ y.value, x.granule * y.granule))

    def add(self, x: Grained, y: Grained) -> Grained:
        return self._seen(Grained(x.value + y.value, min(x.granule, y.granule)))

    def subtract(self, x: Grained, y: Grained) -> Grained:
        return self.add(x, self.negate(y))

    def multiply(self, x: Grained, y: Grained) -> Grained:
        return self._seen(Grained(x.value * y.value, x.granule * y.granule))

    def negate(self, x: Grained) -> Grained:
        return replace(x, value=-x.value)

    def sum(self, x: Grained, axis: int) -> Grained:
        return self._seen(replace(x, value=x.value.sum(axis, keepdims=True)))

    def scale(self, x: Grained, s: Scalar) -> Grained:
        """What is no power of two rounds, to the last place of the smallest number."""
        factor = abs(float(s)) or 1.0
        exact = math.frexp(factor)[0] == 0.5
        return Grained(x.value * float(s), x.granule * factor * (1 if exact else self._form.unit))

    def shift(self, x: Grained, s: Scalar) -> Grained:
        """A number is known exactly, but not by what power of two every rounding of it divides."""
        number = float(s)
        return self._seen(Grained(x.value + number, min(x.granule, self._rounded_unit(number))))

    def _rounded_unit(self, number: float) -> float:
        """The last place of a number that is rounded to the format."""
        last = math.frexp(number)[1] - self._form.precision
        return math.inf if number == 0 else max(2.0**last, self._form.smallest)

    def softmax(self, x: Grained, axis: int, where: Array | None) -> Grained:
        """No weight is smaller than e to the row's spread over the number of keys, but by a half.

        Weights of dropped keys are 0.
        """
        kept = np.broadcast_to(True if where is None else where, x.shape)
        top = np.max(x.value, axis, keepdims=True, where=kept, initial=-np.inf)
        depth = np.where(kept, top - x.value, 0.0)
        spread = float(np.max(depth, initial=0.0))
        powers = np.where(kept, np.exp(-depth), 0.0)
        total = powers.sum(axis, keepdims=True)
        weights = np.divide(powers, total, out=np.zeros(x.shape), where=total > 0)
        least = math.exp(-min(spread, DEEPEST)) / x.shape[axis]
        return Grained(weights, least * 2.0 ** (1 - self._form.precision))

    def sigmoid(self, x: Grained) -> Grained:
        """No result is smaller than e to the lowest argument, over 2, but by a half."""
        value = 1 / (1 + np.exp(-x.value))
        depth = float(np.max(-x.value, initial=0.0))
        least = math.exp(-min(depth, DEEPEST)) / 2
        return self._seen(Grained(value, least * 2.0**-self._form.precision))

    def tanh(self, x: Grained) -> Grained:
        """No result but 0 is smaller than that of the granule, but by a half."""
        least = math.tanh(min(x.granule, 1.0))
        return self._seen(Grained(np.tanh(x.value), least * 2.0**-self._form.precision))

    def report(self, name: str, x: Grained) -> Grained:
        """As an implementation stores it.

        Entries that no rounding brings near 0 keep their magnitude, and have p bits.
        """
        nonzero = np.abs(x.value[x.value != 0])
        # Twice the bound for their error, and for that of the values themselves.
        if nonzero.size and np.all(np.abs(x.value) > 4 * self._errors[name]):
            least = 2.0 ** np.floor(np.log2(nonzero.min() / 2)) * 2 * self._form.unit
            return replace(x, granule=max(x.granule, float(least)))
        return x

    def _seen(self, x: Grained) -> Grained:
        finite = np.abs(x.value[np.isfinite(x.value)])
        self._smallest = min(self._smallest, x.granule)
        self._largest = max(self._largest, float(finite.max(initial=0.0)))
        return x
