"""Memory layouts: arrays with equal values that lie differently in memory.

A port that reads the buffer of an array without minding its strides is right on every
C-contiguous input and wrong on these. Gaps are filled with NaN, so that reading one shows; those
of masks with the rarer of True and False.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, np.dtype[Any]]

LAYOUTS: Final = ("C", "F", "strided", "reversed", "offset", "heads", "stride0", "readonly")


def apply(array: Array, layout: str) -> Array:
    """An array equal to `array`, laid out as named; never the caller's own memory.

    C        row by row                  F         column by column
    strided  every second entry of each axis of a larger buffer
    reversed negative strides            offset    inside a larger buffer, not at its start
    heads    the third axis from the end moved before the last in memory: heads [..., h, n, e] as
             a layer has them that splits [..., n, h·e]; row by row below three axes
    stride0  one row, repeated; raises ValueError where rows differ
    readonly row by row, not writeable
    """
    if layout == "C":
        return np.array(array, order="C")
    if layout == "F":
        return np.array(array, order="F")
    if layout == "strided":
        return _inside(array, tuple(slice(1, 1 + 2 * size, 2) for size in array.shape), 1)
    if layout == "reversed":
        backwards = (slice(None, None, -1),) * array.ndim
        return np.array(array[backwards], order="C")[backwards]
    if layout == "offset":
        return _inside(array, tuple(slice(2, 2 + size) for size in array.shape), 0)
    if layout == "heads":
        return _split(array)
    if layout == "stride0":
        return _repeated(array)
    if layout == "readonly":
        fixed = np.array(array, order="C")
        fixed.flags.writeable = False
        return fixed
    raise ValueError(f"unknown layout {layout!r}; choose from {', '.join(LAYOUTS)}")


def _inside(array: Array, where: tuple[slice, ...], stretch: int) -> Array:
    """A view of a larger buffer whose other entries are what a reader of them would notice."""
    shape = tuple(size * (1 + stretch) + 4 for size in array.shape)
    buffer = np.full(shape, _gap(array)).astype(array.dtype)
    view = buffer[where]
    view[...] = array
    return view


def _gap(array: Array) -> float | bool:
    """NaN, the largest integer, or of True and False the one that is rarer in the array."""
    if array.dtype.kind in "iu":
        return np.iinfo(array.dtype).max
    if array.dtype.kind == "b":
        return bool(2 * np.count_nonzero(array) <= array.size)
    return np.nan


def _split(array: Array) -> Array:
    if array.ndim < 3:
        return np.array(array, order="C")
    return np.swapaxes(np.array(np.swapaxes(array, -2, -3), order="C"), -2, -3)


def _repeated(array: Array) -> Array:
    first = array[:1].copy()
    if array.size and not np.array_equal(np.broadcast_to(first, array.shape), array):
        raise ValueError("stride0 needs equal rows")
    return as_strided(first, array.shape, (0, *first.strides[1:]))
