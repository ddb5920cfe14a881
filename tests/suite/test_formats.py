"""The constants of the formats against what NumPy and ml_dtypes compute with."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkvac.spec.formats import DTYPES, FORMATS, dtype

REAL = [FORMATS[name] for name in DTYPES]


@pytest.mark.parametrize("name", DTYPES)
def test_the_constants_are_those_of_the_dtype(name: str) -> None:
    limits: Any = ml_dtypes.finfo
    found, info = FORMATS[name], limits(dtype(name))
    assert found.precision == info.nmant + 1
    assert found.unit == float(info.eps) / 2
    assert found.tiny == float(info.smallest_normal)
    assert found.smallest == float(info.smallest_subnormal)
    assert found.largest == float(info.max)
    assert found.name == name == str(dtype(name))


@pytest.mark.parametrize("name", DTYPES)
def test_the_constants_are_those_of_its_arithmetic(name: str) -> None:
    number: Any = dtype(name).type
    found = FORMATS[name]
    one, unit = number(1), found.unit
    assert one + number(2 * unit) != one
    assert one + number(unit) == one
    assert number(found.smallest) != 0
    assert number(found.smallest) / number(2) == 0
    assert np.isfinite(number(found.largest))
    with np.errstate(over="ignore"):
        assert not np.isfinite(number(found.largest) * number(2))


def test_tfloat32_has_the_range_of_float32_and_the_precision_of_float16() -> None:
    tf32, wide, half = (FORMATS[name] for name in ("tfloat32", "float32", "float16"))
    assert (tf32.tiny, tf32.emax) == (wide.tiny, wide.emax)
    assert tf32.unit == half.unit == 2.0**-11
    assert tf32.largest < wide.largest < 2.0**128


def test_dtypes_are_ordered_by_precision_and_range() -> None:
    assert [f.precision for f in REAL] == [53, 24, 8, 11]
    assert all(wide.emax >= narrow.emax for wide, narrow in itertools.pairwise(REAL))


@pytest.mark.parametrize("name", ["tfloat32", "float128", "int32", ""])
def test_a_name_without_arrays_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="choose from float64, float32, bfloat16, float16"):
        dtype(name)
