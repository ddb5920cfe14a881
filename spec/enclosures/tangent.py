"""The hyperbolic tangent in arithmetics of a value with a radius.

As 2σ(2x) − 1 its radius is that of σ, about the same for all x, so that nothing would be known of
small results. Up to NEAR it is therefore x − x³/3 + 2x⁵/15, an alternating series of falling terms,
which is off by at most the next one, 17|x|⁷/315.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from qkvac.spec.grammar.rearrangements import Array
from qkvac.spec.grammar.scalar import Scalar

NEAR: Final = 2.0**-10
"""There the series is off by less than 2**-64 of the result."""

NEXT: Final = 0.054
"""More than 17/315, by more than the roundings of a seventh power."""

THIRD: Final = Scalar(Fraction(1, 3))
FIFTHS: Final = Scalar(Fraction(2, 15))
TWO: Final = Scalar.of(2)

V = TypeVar("V")


class Radii(Protocol[V]):
    """What is needed of an arithmetic."""

    def add(self, x: V, y: V, /) -> V: ...
    def subtract(self, x: V, y: V, /) -> V: ...
    def multiply(self, x: V, y: V, /) -> V: ...
    def scale(self, x: V, s: Scalar, /) -> V: ...
    def shift(self, x: V, s: Scalar, /) -> V: ...
    def sigmoid(self, x: V, /) -> Any: ...

    def reach(self, x: V, /) -> Array:
        """An upper bound of |x|."""

    def widened(self, x: V, radius: Array, /) -> V:
        """x with `radius` added to its own."""

    def either(self, mask: Array, x: V, y: V, /) -> V:
        """x where the mask is true, else y."""


def tanh(algebra: Radii[V], x: V) -> V:
    """An enclosure of the hyperbolic tangent, entry by entry."""
    a, reach = algebra, algebra.reach(x)
    far = a.shift(a.scale(a.sigmoid(a.scale(x, TWO)), TWO), Scalar.of(-1))
    square = a.multiply(x, x)
    cube = a.multiply(square, x)
    less = a.subtract(a.scale(cube, THIRD), a.scale(a.multiply(cube, square), FIFTHS))
    near = a.widened(a.subtract(x, less), NEXT * reach**7)
    return a.either(np.asarray(reach <= NEAR), near, far)
