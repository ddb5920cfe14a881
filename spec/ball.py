"""Arb balls through python-flint: rigorous by construction, at any working precision.

A value keeps whichever form its last operation produced: an exact float64 array, one `arb_mat`
per leading index, or an object array of `arb`. The others are made when an operation asks,
because packing and unpacking cost as much as a matrix product.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from flint import arb, arb_mat, ctx

from qkvac.spec.rearrangements import Array, Rearrangement, Rearrangements
from qkvac.spec.scalar import Scalar

_PRECISION: Final = threading.RLock()


@contextmanager
def working_precision(bits: int) -> Iterator[None]:
    """Set Arb's precision, which is one number for the whole process, and put it back.

    Held under a lock, so threads that evaluate at once wait for each other.
    """
    with _PRECISION:
        before = ctx.prec
        ctx.prec = bits
        try:
            yield
        finally:
            ctx.prec = before


class Balls:
    """An array of balls; the true value of each entry lies in its ball."""

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        exact: Array | None = None,
        entries: Array | None = None,
        matrices: list[arb_mat] | None = None,
    ) -> None:
        self.shape = shape
        self.exact = exact
        self._entries = entries
        self._matrices = matrices

    @property
    def entries(self) -> Array:
        """Object array of `arb`."""
        if self._entries is None:
            if self.exact is not None:
                flat = list(map(arb, self.exact.ravel().tolist()))
            else:
                assert self._matrices is not None
                flat = [entry for matrix in self._matrices for entry in matrix.entries()]
            self._entries = objects(flat, self.shape)
        return self._entries

    @property
    def matrices(self) -> list[arb_mat]:
        """The trailing two axes as matrices, one for each index of the leading axes, C order."""
        if self._matrices is None:
            rows, columns = self.shape[-2:]
            source = self.exact if self.exact is not None else self.entries
            count = int(np.prod(self.shape[:-2], dtype=np.int64))
            parts = source.reshape(count, rows * columns)
            self._matrices = [arb_mat(rows, columns, part.tolist()) for part in parts]
        return self._matrices

    @property
    def packed(self) -> bool:
        """Whether the matrices exist already, so that a matrix operation is the cheap one."""
        return self._matrices is not None

    def rearranged(self, function: Rearrangement) -> Balls:
        if self.exact is not None:
            exact = function(self.exact)
            return Balls(exact.shape, exact=exact)
        entries = function(self.entries)
        return Balls(entries.shape, entries=entries)


def objects(flat: list[Any], shape: tuple[int, ...]) -> Array:
    """An object array; NumPy is not asked to look into the objects."""
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


class BallAlgebra(Rearrangements):
    """Operations on balls at the working precision in force."""

    def __init__(self, conventions: Mapping[str, str] | None = None) -> None:
        super().__init__(conventions)

    def constant(self, array: Array) -> Balls:
        exact = np.asarray(array, np.float64)
        return Balls(exact.shape, exact=exact)

    def center(self, value: Balls) -> Array:
        if value.exact is not None:
            return value.exact
        return np.asarray(value.entries.astype(np.float64))

    def matmul(self, x: Balls, y: Balls) -> Balls:
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        shape = (*lead, x.shape[-2], y.shape[-1])
        left, right = x.matrices, y.matrices
        pairs = zip(_positions(x.shape, lead), _positions(y.shape, lead), strict=True)
        return Balls(shape, matrices=[left[i] * right[j] for i, j in pairs])

    def transpose(self, x: Balls) -> Balls:
        if not x.packed:
            return super().transpose(x)  # type: ignore[no-any-return]
        *lead, rows, columns = x.shape
        matrices = [matrix.transpose() for matrix in x.matrices]
        return Balls((*lead, columns, rows), matrices=matrices)

    def add(self, x: Balls, y: Balls) -> Balls:
        return _elementwise(x.entries + y.entries)

    def subtract(self, x: Balls, y: Balls) -> Balls:
        return _elementwise(x.entries - y.entries)

    def multiply(self, x: Balls, y: Balls) -> Balls:
        return _elementwise(x.entries * y.entries)

    def negate(self, x: Balls) -> Balls:
        return _elementwise(-x.entries)

    def scale(self, x: Balls, s: Scalar) -> Balls:
        factor = s.arb()
        if x.packed:
            return Balls(x.shape, matrices=[matrix * factor for matrix in x.matrices])
        return _elementwise(x.entries * factor)

    def shift(self, x: Balls, s: Scalar) -> Balls:
        return _elementwise(x.entries + s.arb())

    def sum(self, x: Balls, axis: int) -> Balls:
        total = np.add.reduce(x.entries, axis=axis, keepdims=True, initial=arb(0))
        return _elementwise(total)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if dtype.kind != "O":
            return super().zeros(shape, dtype)
        return objects([arb(0)] * int(np.prod(shape, dtype=np.int64)), shape)

    def softmax(self, x: Balls, axis: int, where: Array | None) -> Balls:
        """Exponentials over their sum, row by row; masked entries are exactly 0."""
        moved = np.moveaxis(x.entries, axis, -1)
        keys = moved.shape[-1]
        rows = moved.reshape(int(np.prod(moved.shape[:-1], dtype=np.int64)), keys)
        if where is None:
            flat = [weight for row in rows for weight in _weights(row.tolist())]
        else:
            kept = np.moveaxis(np.broadcast_to(where, x.shape), axis, -1).reshape(rows.shape)
            flat = []
            for row, keep in zip(rows, kept, strict=True):
                weights = objects([arb(0)] * keys, (keys,))
                if keep.any():
                    weights[keep] = _weights(row[keep].tolist())
                else:
                    weights[:] = self._empty_row(keys)
                flat += weights.tolist()
        entries = np.moveaxis(objects(flat, moved.shape), -1, axis)
        return Balls(entries.shape, entries=entries)

    def _empty_row(self, keys: int) -> arb:
        if self.empty_row == "mean":
            return 1 / arb(keys)
        return arb(0) if self.empty_row == "zeros" else arb.nan()


def _elementwise(entries: Any) -> Balls:
    array = np.asarray(entries, dtype=object)
    return Balls(array.shape, entries=array)


def _positions(shape: tuple[int, ...], lead: tuple[int, ...]) -> list[int]:
    """Which matrix of a value of `shape` belongs to each index of the broadcast leading axes."""
    own = shape[:-2]
    numbers = np.arange(int(np.prod(own, dtype=np.int64))).reshape(own)
    positions: list[int] = np.broadcast_to(numbers, lead).ravel().tolist()
    return positions


def _weights(scores: list[arb]) -> list[arb]:
    """Softmax of one row.

    Arb's exponents are unbounded, so no shift is needed until the scores exceed about 2**prec;
    then the middle of the largest one, an exact number, is subtracted.
    """
    exponentials = list(map(arb.exp, scores))
    total = sum(exponentials, arb(0))
    if scores and not (total.is_finite() and total > 0):
        top = max(score.mid() for score in scores)
        exponentials = [(score - top).exp() for score in scores]
        total = sum(exponentials, arb(0))
    inverse = 1 / total
    return list(map(inverse.__mul__, exponentials))
