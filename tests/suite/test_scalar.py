"""Exact scalars q·√r against rational and high-precision arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from flint import ctx
from hypothesis import assume, given
from hypothesis import strategies as st

from qkvac.spec.grammar.scalar import Scalar

RATIONALS = st.fractions(min_value=-50, max_value=50, max_denominator=40)
SCALARS = st.builds(
    lambda factor, radicand: Scalar(factor) * Scalar.of(radicand).sqrt(),
    RATIONALS,
    RATIONALS.map(abs),
)


def square(value: Scalar) -> Fraction:
    return value.factor**2 * value.radicand


def sign(value: Scalar) -> int:
    return (value.factor > 0) - (value.factor < 0) if value.radicand else 0


@given(SCALARS, SCALARS)
def test_products_and_quotients_are_exact(x: Scalar, y: Scalar) -> None:
    assert square(x * y) == square(x) * square(y)
    assert sign(x * y) == sign(x) * sign(y)
    assume(square(y) != 0)
    assert square(x / y) == square(x) / square(y)
    assert sign(x / y) == sign(x) * sign(y)
    assert square(x / y * y) == square(x)


@given(RATIONALS, RATIONALS)
def test_rationals_are_added_exactly(x: Fraction, y: Fraction) -> None:
    assert (Scalar.of(x) + Scalar.of(y)).rational() == x + y
    assert (Scalar.of(x) - Scalar.of(y)).rational() == x - y
    assert (-Scalar.of(x)).rational() == -x


@given(RATIONALS)
def test_the_root_of_a_square_is_rational(x: Fraction) -> None:
    assert Scalar.of(x * x).sqrt().rational() == abs(x)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Scalar.of(2).sqrt() * Scalar.of(8).sqrt(), Fraction(4)),
        (Scalar.of(12).sqrt() / Scalar.of(3).sqrt(), Fraction(2)),
        (Scalar.of(1) / Scalar.of(Fraction(9, 4)).sqrt(), Fraction(2, 3)),
        (Scalar.of(0) * Scalar.of(2).sqrt(), Fraction(0)),
        (Scalar.of(0).sqrt(), Fraction(0)),
        (Scalar.of(0.1), Fraction(3602879701896397, 2**55)),
        (Scalar.of(Scalar.of(7)), Fraction(7)),
    ],
)
def test_rational_values_are_recognised(value: Scalar, expected: Fraction) -> None:
    assert value.rational() == expected


def test_what_is_not_of_the_form_is_refused() -> None:
    root = Scalar.of(2).sqrt()
    with pytest.raises(ValueError, match="irrational"):
        root.rational()
    with pytest.raises(ValueError, match="irrational"):
        root + Scalar.of(1)
    with pytest.raises(ValueError, match="irrational"):
        root.sqrt()
    with pytest.raises(ValueError, match="negative"):
        Scalar.of(-1).sqrt()
    with pytest.raises(ValueError, match="NaN"):
        Scalar.of(math.nan)
    with pytest.raises(OverflowError):
        Scalar.of(math.inf)


@pytest.mark.parametrize("zero", [Scalar.of(0), Scalar(Fraction(1), Fraction(0))])
def test_division_by_zero_is_refused(zero: Scalar) -> None:
    with pytest.raises(ZeroDivisionError):
        Scalar.of(1) / zero


@given(SCALARS)
def test_the_ball_encloses_the_value_and_the_float_is_close(x: Scalar) -> None:
    before = ctx.prec
    try:
        ctx.prec = 200
        ball = x.arb()
        exact = square(x)
        assert (ball * ball * exact.denominator).contains(exact.numerator)
        assert ball.is_zero() == (exact == 0)
        assert (float(ball) > 0) == (sign(x) > 0)
        assert float(ball.rad()) <= abs(float(ball.mid())) * 2.0**-190
        assert float(x) == pytest.approx(float(ball.mid()), rel=1e-15, abs=0)
    finally:
        ctx.prec = before
