"""The object that carries certified values: rounding, errors, and exact sums."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qkvac.spec.enclosures.enclosure import Enclosure, certify
from qkvac.spec.enclosures.midpoint_radius import GRID
from qkvac.spec.formats import FORMATS
from qkvac.spec.formats import dtype as numpy_dtype
from qkvac.spec.grammar.equations import parse
from qkvac.tests.suite.carriers import (
    ATTENTION,
    attention_case,
    everyone,
    run,
)
from qkvac.tests.suite.multiprecision import misses, truth


def nearest(value: Fraction, name: str) -> float:
    """Round to nearest, ties to even, in rational arithmetic."""
    chosen = FORMATS[name]
    if value == 0:
        return 0.0
    magnitude, exponent = abs(value), 0
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, chosen.emin) - chosen.precision + 1)
    rounded = round(magnitude / step) * step  # Fraction rounds half to even
    sign = 1 if value > 0 else -1
    if rounded >= Fraction(2) ** (chosen.emax + 1):
        return sign * float("inf")
    return sign * float(rounded)


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
@settings(max_examples=300, deadline=None)
@given(
    mantissa=st.integers(-(2**13), 2**13),
    nudge=st.sampled_from([-1, 0, 1]),
    place=st.integers(1, 60),
    exponent=st.integers(-40, 12),
    where=st.sampled_from(["top", "middle", "bottom"]),
)
def test_rounding_of_pairs_is_correct(
    name: str, mantissa: int, nudge: int, place: int, exponent: int, where: str
) -> None:
    """Around the ties of each format: no double rounding, right subnormals, right overflow."""
    chosen = FORMATS[name]
    origin = {
        "top": chosen.emax - 6,
        "middle": 0,
        "bottom": chosen.emin - chosen.precision - 4,
    }[where]
    p = chosen.precision
    with np.errstate(over="ignore"):
        hi = np.ldexp(float(mantissa) + 2.0**-p, max(origin + exponent, -1070))
    assume(bool(np.isfinite(hi)))
    lo = float(nudge * np.ldexp(abs(hi), -53 - place))
    value, certain = Enclosure(np.array([hi]), np.array([lo]), np.zeros(1)).rounded(name)
    expected = nearest(Fraction(hi) + Fraction(lo), name)
    assert value.dtype == numpy_dtype(name)
    assert certain.all()
    assert float(value[0]) == expected
    assert not np.signbit(float(value[0])) or expected < 0


@pytest.mark.parametrize(("name", "ulp"), [("float64", 2.0**-52), ("float32", 2.0**-23)])
def test_rounding_is_certain_only_off_the_ties(name: str, ulp: float) -> None:
    tie = np.array([1.0 + ulp / 2]) if name == "float32" else np.array([1.0])
    lo = np.zeros(1) if name == "float32" else np.array([ulp / 2])
    radius = np.array([2.0**-80])
    assert not Enclosure(tie, lo, radius).rounded(name)[1].any()
    assert Enclosure(tie, lo, radius * 0).rounded(name)[1].all()
    assert Enclosure(tie, lo + 2.0**-79, radius).rounded(name)[1].all()
    assert float(Enclosure(tie, lo + 2.0**-79, radius).rounded(name)[0][0]) == 1.0 + ulp
    assert float(Enclosure(tie, lo, radius * 0).rounded(name)[0][0]) == 1.0


def test_bfloat16_is_rounded_once() -> None:
    """1 + 2**-8 + 2**-40 lies above a tie of bfloat16, but rounds to it in float32."""
    value = 1.0 + 2.0**-8 + 2.0**-40
    assert float(np.float32(value).astype(ml_dtypes.bfloat16)) == 1.0
    found = Enclosure(np.array([value]), np.zeros(1), np.zeros(1))
    assert float(found.rounded("bfloat16")[0][0]) == 1.0 + 2.0**-7


@settings(max_examples=300, deadline=None)
@given(
    hi=st.floats(-1e300, 1e300),
    y=st.floats(allow_nan=False, allow_infinity=False),
    offset=st.integers(-4, 4),
    part=st.floats(-1, 1),
    relative=st.integers(0, 60),
)
def test_errors_are_bracketed(hi: Any, y: Any, offset: int, part: float, relative: int) -> None:
    y = y if offset == 4 else float(hi + offset * np.spacing(abs(hi)))
    lo = float(part * np.spacing(abs(hi)) / 2)
    radius = float(np.spacing(abs(hi)) * 2.0**-relative)
    found = Enclosure(np.array([hi]), np.array([lo]), np.array([radius]))
    assume(bool(np.isfinite(y)))
    middle = abs(Fraction(y) - Fraction(hi) - Fraction(lo))
    upper, lower = found.error(np.array([y]))[0], found.least_error(np.array([y]))[0]
    assert Fraction(lower) <= max(middle - Fraction(radius), Fraction(0))
    if np.isfinite(upper):
        assert Fraction(upper) >= middle + Fraction(radius)
        assert upper <= (float(middle) + radius) * (1 + 1e-14)


def test_an_exact_result_has_no_error() -> None:
    inputs, sizes = attention_case(0, "whole", 4, 3, 4)
    found = certify(ATTENTION, inputs, sizes, "float64")
    exact = inputs["X"] @ inputs["Wq"]
    assert found["Q"].error(exact).tolist() == np.zeros((4, 4)).tolist()
    assert found["Q"].error(exact.astype(np.float32)).tolist() == np.zeros((4, 4)).tolist()


def test_a_value_below_all_doubles_has_the_smallest_radius() -> None:
    program = parse("S[n, m]\nA[n, m] = softmax(S, axis=1)")
    for m in (2, 600):
        scores = np.full((1, m), -900.0)
        scores[0, 0] = 0.0
        found = certify(program, {"S": scores}, {"n": 1, "m": m}, "float64")["A"]
        assert found.hi[0, 1] == 0
        assert GRID <= found.radius[0, 1] <= 4 * GRID
        assert found.sharp(np.full((1, m), GRID))[0, 1:].all()


def test_enclosures_survive_as_plain_arrays() -> None:
    found = certify(ATTENTION, *attention_case(0, "normal", 3, 3, 2), "float64")["C"]
    arrays = found.arrays()
    again = Enclosure.from_arrays(arrays)
    assert all((again.arrays()[name] == arrays[name]).all() for name in ("hi", "lo", "radius"))
    with pytest.raises(ValueError, match="consists of"):
        Enclosure.from_arrays({"hi": found.hi, "lo": found.lo})
    with pytest.raises(ValueError, match="consists of"):
        Enclosure.from_arrays(arrays | {"lo": found.lo[:1]})


@everyone
def test_a_weight_below_half_the_smallest_double_certainly_rounds_to_zero(carrier: str) -> None:
    """exp(-745.133) is just below 2**-1075, exp(-745.1) above it."""
    program = parse("S[n, m]\nA[n, m] = softmax(S, axis=1)")
    scores = np.array([[0.0, -745.0, -745.1, -745.3, -760.0, -1e6, -1e300]])
    found = run(carrier, program, {"S": scores}, {"n": 1, "m": 7})["A"]
    assert misses(found, truth(program, {"S": scores}, {"n": 1, "m": 7})["A"]) == []
    value, certain = found.rounded("float64")
    if carrier != "interval":
        assert certain[0].tolist()[3:] == [True] * 4
        assert not certain[0, 1:3].any()
        assert value[0, 3:].tolist() == [0.0] * 4
    value, certain = found.rounded("float32")
    assert certain.all()
    assert value.tolist() == [[1.0, *[0.0] * 6]]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["float32", "bfloat16", "float16"]))
def test_sums_that_fit_into_a_double_have_no_radius(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    inputs, sizes = attention_case(seed, "normal", 4, 3, 2)
    places = 2.0 ** -rng.integers(1, 7)
    inputs = {
        k: (np.rint(x / places) * places).astype(numpy_dtype(name)) for k, x in inputs.items()
    }
    true, found = truth(ATTENTION, inputs, sizes), certify(ATTENTION, inputs, sizes, name)
    for quantity in ("Q", "K", "V", "Ω"):
        assert (found[quantity].radius == 0).all()
        assert misses(found[quantity], true[quantity]) == []
