"""Layouts: equal values, other strides, never the caller's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkvac.spec.cases.catalogue import cases
from qkvac.spec.formats import DTYPES, dtype
from qkvac.spec.inputs import layouts

STRIDES = {
    "C": (24, 8),
    "F": (8, 40),
    "strided": (2 * (2 * 3 + 4) * 8, 16),
    "reversed": (-24, -8),
    "offset": ((3 + 4) * 8, 8),
    "heads": (24, 8),
    "stride0": (0, 8),
    "readonly": (24, 8),
}


def array(name: str = "float64", rows: int = 5) -> np.ndarray[Any, Any]:
    row = np.array([[1.0, -2.0, 0.5]])
    return np.repeat(row, rows, axis=0).astype(dtype(name))


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("name", DTYPES)
def test_values_stay_and_strides_change(layout: str, name: str) -> None:
    given = array(name)
    made = layouts.apply(given, layout)
    assert made.dtype == given.dtype
    assert np.array_equal(made, given)
    assert made.strides == tuple(s * given.itemsize // 8 for s in STRIDES[layout])
    assert made.flags.writeable == (layout != "readonly")
    assert not np.shares_memory(made, given)


@pytest.mark.parametrize("layout", ["strided", "offset"])
def test_the_gaps_are_not_numbers(layout: str) -> None:
    made = layouts.apply(array(), layout)
    buffer = made.base
    assert buffer is not None
    assert np.isnan(buffer).sum() == buffer.size - made.size


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3,), (2, 3, 4)])
def test_every_number_of_axes_and_no_entries(layout: str, shape: tuple[int, ...]) -> None:
    given = np.ones(shape)
    assert np.array_equal(layouts.apply(given, layout), given)


def test_other_kinds_of_numbers() -> None:
    for given in (np.arange(6).reshape(2, 3), np.array([[True, False], [False, True]])):
        for layout in ("F", "strided", "reversed", "offset", "heads", "readonly"):
            made = layouts.apply(given, layout)
            assert made.dtype == given.dtype
            assert np.array_equal(made, given)


def test_heads_lie_beside_each_other_for_each_token() -> None:
    """[batch, head, token, width] over memory in the order [batch, token, head, width]."""
    given = np.arange(2 * 3 * 5 * 4, dtype=np.float64).reshape(2, 3, 5, 4)
    made = layouts.apply(given, "heads")
    assert made.strides == (5 * 3 * 4 * 8, 4 * 8, 3 * 4 * 8, 8)
    assert not made.flags.c_contiguous
    merged = made.swapaxes(1, 2).reshape(2, 5, 12)
    assert np.shares_memory(merged, made)
    assert np.array_equal(merged[1, 2], np.concatenate([given[1, head, 2] for head in range(3)]))


@pytest.mark.parametrize("layout", ["strided", "offset"])
@pytest.mark.parametrize("rarer", [True, False])
def test_gaps_of_a_mask_hold_what_is_rarer_in_it(layout: str, rarer: bool) -> None:
    given = np.full((4, 5), not rarer)
    given[1, 2] = rarer
    made = layouts.apply(given, layout)
    buffer = made.base
    assert buffer is not None
    gaps = buffer.size - made.size
    assert np.count_nonzero(buffer == rarer) == gaps + 1


def test_rows_that_differ_cannot_share_one_row() -> None:
    with pytest.raises(ValueError, match="equal rows"):
        layouts.apply(np.arange(6.0).reshape(2, 3), "stride0")


def test_an_unknown_layout_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'fortran'; choose from C, F, strided"):
        layouts.apply(array(), "fortran")


def test_the_cases_ask_for_layouts_that_their_data_allow() -> None:
    for case in (*cases(), *cases("scaled_dot_product_attention")):
        for name, layout in case.layouts.items():
            given = case.inputs("float32")[name]
            made = layouts.apply(given, layout)
            assert np.array_equal(made, given)
            plain = made.flags.c_contiguous and made.flags.writeable
            assert not plain
