"""Arb balls through python-flint: rigorous by construction, at any working precision.

A value keeps whichever form its last operation produced: an exact float64 array, one `arb_mat`
per leading index, or a flat list of `arb`. The others are made when an operation asks,
because packing and unpacking cost as much as a matrix product.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from typing import Any, Final

import numpy as np
from flint import arb, arb_mat, ctx

from qkvac.spec.grammar.rearrangements import Array, Rearrangement, Rearrangements
from qkvac.spec.grammar.scalar import Scalar

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
        flat: list[arb] | None = None,
        matrices: list[arb_mat] | None = None,
    ) -> None:
        self.shape = shape
        self.exact = exact
        self._flat = flat
        self._matrices = matrices

    @classmethod
    def of(cls, entries: Any) -> Balls:
        """From an object array of `arb`."""
        array = np.asarray(entries, dtype=object)
        return cls(array.shape, flat=array.ravel().tolist())

    @property
    def flat(self) -> list[arb]:
        """The entries in C order."""
        if self._flat is None:
            if self.exact is not None:
                self._flat = list(map(arb, self.exact.ravel().tolist()))
            else:
                assert self._matrices is not None
                self._flat = [entry for matrix in self._matrices for entry in matrix.entries()]
        return self._flat

    @property
    def entries(self) -> Array:
        """A new object array of `arb`."""
        return objects(self.flat, self.shape)

    @property
    def matrices(self) -> list[arb_mat]:
        """The trailing two axes as matrices, one for each index of the leading axes, C order."""
        if self._matrices is None:
            rows, columns = self.shape[-2:]
            flat = self.flat if self.exact is None else self.exact.ravel().tolist()
            size = rows * columns
            starts = range(0, math.prod(self.shape[:-2]) * size, size) if size else ()
            self._matrices = [arb_mat(rows, columns, flat[i : i + size]) for i in starts]
            if not size:
                self._matrices = [arb_mat(rows, columns)] * math.prod(self.shape[:-2])
        return self._matrices

    @property
    def packed(self) -> bool:
        """Whether the matrices exist already, so that a matrix operation is the cheap one."""
        return self._matrices is not None

    def rearranged(self, function: Rearrangement) -> Balls:
        if self.exact is not None:
            exact = function(self.exact)
            return Balls(exact.shape, exact=exact)
        return Balls.of(function(self.entries))


def objects(flat: list[Any], shape: tuple[int, ...]) -> Array:
    """An object array; NumPy is not asked to look into the objects."""
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


_ZERO: Final = arb(0)


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
        return Balls.of(x.entries + y.entries)

    def subtract(self, x: Balls, y: Balls) -> Balls:
        return Balls.of(x.entries - y.entries)

    def multiply(self, x: Balls, y: Balls) -> Balls:
        return Balls.of(x.entries * y.entries)

    def negate(self, x: Balls) -> Balls:
        return Balls.of(-x.entries)

    def scale(self, x: Balls, s: Scalar) -> Balls:
        factor = s.arb()
        if x.packed:
            return Balls(x.shape, matrices=[matrix * factor for matrix in x.matrices])
        return Balls.of(x.entries * factor)

    def shift(self, x: Balls, s: Scalar) -> Balls:
        return Balls.of(x.entries + s.arb())

    def sum(self, x: Balls, axis: int) -> Balls:
        total = np.add.reduce(x.entries, axis=axis, keepdims=True, initial=arb(0))
        return Balls.of(total)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if dtype.kind != "O":
            return super().zeros(shape, dtype)
        return objects([_ZERO] * math.prod(shape), shape)

    def softmax(self, x: Balls, axis: int, where: Array | None) -> Balls:
        """Exponentials over their sum, row by row; masked entries are exactly 0."""
        if axis != -1:
            moved = x.rearranged(lambda a: np.moveaxis(a, axis, -1))
            kept = None if where is None else np.moveaxis(np.broadcast_to(where, x.shape), axis, -1)
            return self.softmax(moved, -1, kept).rearranged(lambda a: np.moveaxis(a, -1, axis))
        keys, scores, flat = x.shape[-1], x.flat, list[arb]()
        rows = [scores[i : i + keys] for i in range(0, len(scores), max(keys, 1))]
        if where is None:
            for row in rows:
                flat += _weights(row)
            return Balls(x.shape, flat=flat)
        masks = np.broadcast_to(where, x.shape).reshape(len(rows), keys).tolist()
        for row, mask in zip(rows, masks, strict=True):
            if any(mask):
                weights = iter(_weights(list(compress(row, mask))))
                flat += [next(weights) if keep else _ZERO for keep in mask]
            else:
                flat += [self._empty_row(keys)] * keys
        return Balls(x.shape, flat=flat)

    def sigmoid(self, x: Balls) -> Balls:
        """Of any size, as Arb's exponents are unbounded."""
        return Balls(x.shape, flat=[1 / (1 + (-entry).exp()) for entry in x.flat])

    def tanh(self, x: Balls) -> Balls:
        return Balls(x.shape, flat=[entry.tanh() for entry in x.flat])

    def _empty_row(self, keys: int) -> arb:
        if self.empty_row == "mean":
            return 1 / arb(keys)
        return _ZERO if self.empty_row == "zeros" else arb.nan()


def _positions(shape: tuple[int, ...], lead: tuple[int, ...]) -> list[int]:
    """Which matrix of a value of `shape` belongs to each index of the broadcast leading axes."""
    own = shape[:-2]
    numbers = np.arange(math.prod(own)).reshape(own)
    positions: list[int] = np.broadcast_to(numbers, lead).ravel().tolist()
    return positions


def _weights(scores: list[arb]) -> list[arb]:
    """Softmax of one row.

    Arb's exponents are unbounded, so no shift is needed until the scores exceed about 2**prec;
    then the middle of the largest one, an exact number, is subtracted.
    """
    exponentials = list(map(arb.exp, scores))
    total = sum(exponentials, _ZERO)
    if scores and not (total.is_finite() and total > 0):
        top = max(score.mid() for score in scores)
        exponentials = [(score - top).exp() for score in scores]
        total = sum(exponentials, _ZERO)
    inverse = 1 / total
    return list(map(inverse.__mul__, exponentials))
