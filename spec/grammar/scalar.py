"""Exact scalars of the form q·√r, the only ones that attention's equations contain.

√c, c/h, an explicit scale and their quotients all have this form, so a scale factor reaches
every interpretation without having been rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from flint import arb, fmpq


@dataclass(frozen=True)
class Scalar:
    """The exact number factor·√radicand; a rational has radicand 1."""

    factor: Fraction
    radicand: Fraction = Fraction(1)

    @classmethod
    def of(cls, value: Scalar | Fraction | int | float) -> Scalar:
        """`value` without rounding; raises ValueError for a NaN and OverflowError for ±inf."""
        return value if isinstance(value, Scalar) else cls(Fraction(value))

    def __mul__(self, other: Scalar) -> Scalar:
        if self.radicand == other.radicand:
            return Scalar(self.factor * other.factor * self.radicand)
        return Scalar(self.factor * other.factor, self.radicand * other.radicand)._simplified()

    def __truediv__(self, other: Scalar) -> Scalar:
        if other.factor == 0 or other.radicand == 0:
            raise ZeroDivisionError("division by a scalar that is 0")
        return self * Scalar(1 / (other.factor * other.radicand), other.radicand)

    def __neg__(self) -> Scalar:
        return Scalar(-self.factor, self.radicand)

    def __add__(self, other: Scalar) -> Scalar:
        return Scalar(self.rational() + other.rational())

    def __sub__(self, other: Scalar) -> Scalar:
        return self + -other

    def sqrt(self) -> Scalar:
        """√ of a non-negative rational."""
        value = self.rational()
        if value < 0:
            raise ValueError(f"square root of the negative scalar {value}")
        return Scalar(Fraction(1), value)._simplified()

    def rational(self) -> Fraction:
        """The value as a fraction; raises ValueError where it is irrational."""
        simple = self._simplified()
        if simple.radicand != 1:
            raise ValueError("a sum or a root of an irrational scalar is outside the grammar")
        return simple.factor

    def arb(self) -> arb:
        """An enclosing ball at the current working precision."""
        root = arb(fmpq(self.radicand.numerator, self.radicand.denominator)).sqrt()
        return arb(fmpq(self.factor.numerator, self.factor.denominator)) * root

    def __float__(self) -> float:
        """The nearest double, up to a few units in the last place."""
        return float(self.factor) * math.sqrt(self.radicand)

    def _simplified(self) -> Scalar:
        """Radicand 1 where it is the square of a rational, or the whole value is 0."""
        numerator, denominator = _root(self.radicand.numerator), _root(self.radicand.denominator)
        if self.factor == 0:
            return Scalar(Fraction(0))
        if numerator is None or denominator is None:
            return self
        return Scalar(self.factor * Fraction(numerator, denominator))


def _root(value: int) -> int | None:
    root = math.isqrt(value)
    return root if root * root == value else None
