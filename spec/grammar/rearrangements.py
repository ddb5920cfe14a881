"""What the numeric algebras of the oracle share: operations that move entries without arithmetic.

A value of such an algebra holds one or more arrays of one shape and offers
`rearranged(function)`, which applies a function of arrays to each of them. Masks and indices are
plain arrays. An algebra adds `matmul`, `sum`, `constant` and the elementwise operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from qkvac.spec.grammar.equations import Masks

Array = npt.NDArray[Any]
Rearrangement = Callable[[Array], Array]

DEFAULTS: Final[Mapping[str, str]] = {"empty_row": "zeros", "causal_alignment": "top-left"}


class Sums(Protocol):
    """The operations of an algebra that those of `Rearrangements` make use of."""

    def constant(self, array: Array, /) -> Any: ...
    def zeros(self, shape: tuple[int, ...], dtype: Any, /) -> Array: ...
    def matmul(self, x: Any, y: Any, /) -> Any: ...
    def sum(self, x: Any, axis: int, /) -> Any: ...
    def sum_to(self, x: Any, like: Any, /) -> Any: ...
    def softmax(self, x: Any, axis: int, where: Array | None, /) -> Any: ...


class Rearrangements(Masks):
    """Structural operations, for values with `.shape` and `.rearranged(function)`.

    `conventions` may choose `empty_row` (zeros, mean or NaN) and `causal_alignment` (top-left or
    bottom-right); the spec's own choice holds for what it leaves out.
    """

    def __init__(self, conventions: Mapping[str, str] | None = None) -> None:
        chosen = {**DEFAULTS, **(conventions or {})}
        self.empty_row = chosen["empty_row"]
        self.alignment = chosen["causal_alignment"]

    def constant(self, array: Array) -> Any:
        """The value of an array of exact numbers."""
        raise NotImplementedError

    def report(self, name: str, value: Any) -> Any:
        return value

    def causal(self, length: int, keys: int, alignment: str | None = None) -> Array:
        return super().causal(length, keys, alignment or self.alignment)

    def transpose(self, x: Any) -> Any:
        return _rearranged(x, lambda a: np.swapaxes(a, -1, -2))

    def split(self, x: Any, heads: int) -> Any:
        """[…, n, c] to [h, n, c/h]: a head takes consecutive columns."""

        def apart(a: Array) -> Array:
            *lead, rows, width = a.shape
            return np.swapaxes(a.reshape(*lead, rows, heads, width // heads), -2, -3)

        return _rearranged(x, apart)

    def merge(self, x: Any) -> Any:
        """[…, h, n, e] to [n, h·e], the inverse of `split`."""

        def together(a: Array) -> Array:
            *lead, heads, rows, width = a.shape
            return np.swapaxes(a, -2, -3).reshape(*lead, rows, heads * width)

        return _rearranged(x, together)

    def repeat(self, x: Any, heads: int) -> Any:
        """[…, g, S, e] to [h, S, e]: consecutive query heads share a key/value head."""
        return _rearranged(x, lambda a: np.repeat(a, heads // max(a.shape[-3], 1), axis=-3))

    def first(self, x: Any, count: int, axis: int) -> Any:
        """The first `count` entries along an axis."""
        return _rearranged(x, lambda a: np.take(a, range(count), axis=axis))

    def lift(self, x: Any, axis: int, count: int) -> Any:
        """Insert `count` axes of size 1 before the trailing axis `axis`."""

        def raised(a: Array) -> Array:
            at = a.ndim + axis
            return a.reshape(*a.shape[:at], *(1,) * count, *a.shape[at:])

        return _rearranged(x, raised)

    def drop(self, x: Any, axis: int, count: int) -> Any:
        """Remove `count` axes of size 1 before the trailing axis `axis`, as `lift` inserts them."""

        def lowered(a: Array) -> Array:
            at = a.ndim + axis
            return a.reshape(*a.shape[: at - count], *a.shape[at:])

        return _rearranged(x, lowered)

    def take(self, table: Any, index: Array) -> Any:
        """Row index[…] of table[…, t, d]; leading axes of the table belong to the index's."""

        def rows(a: Array) -> Array:
            after = (1,) * (index.ndim - (a.ndim - 2))
            grids = np.ix_(*(np.arange(size) for size in a.shape[:-2]))
            place = (*(grid.reshape(*grid.shape, *after) for grid in grids), index)
            taken: Array = a[place]
            return taken

        return _rearranged(table, rows)

    def scatter_add(self: Sums, x: Any, index: Array, like: Any) -> Any:
        """Σ of the rows x[…, d] that one index points to, for each row of the table `like`."""
        count, width = like.shape[-2:]
        selection = np.asarray(index).ravel() == np.arange(count)[:, None]
        rows = _rearranged(x, lambda a: a.reshape(-1, width))
        return self.matmul(self.constant(selection.astype(np.float64)), rows)

    def sum_to(self: Sums, x: Any, like: Any) -> Any:
        """Sum over the axes along which `like` was broadcast to the shape of x.

        So are heads (the axis −3) that share one of `like`: consecutive ones, as in `repeat`.
        """
        shape = like.shape
        if len(shape) >= 3 and 1 < shape[-3] < x.shape[-3]:
            *lead, heads, rows, width = x.shape
            grouped = (*lead, shape[-3], heads // shape[-3], rows, width)
            x = self.sum(_rearranged(x, lambda a: a.reshape(grouped)), -3)
            x = _rearranged(x, lambda a: a.reshape(*lead, shape[-3], rows, width))
        extra = len(x.shape) - len(shape)
        for axis in range(-len(x.shape), 0):
            broadcast = axis < -len(shape) or (shape[axis] == 1 and x.shape[axis] != 1)
            if broadcast:
                x = self.sum(x, axis)
        return _rearranged(x, lambda a: a.reshape(a.shape[extra:]))

    def pad(self: Sums, x: Any, like: Any) -> Any:
        """x with zeros appended to the first axis of `like`; batch axes of x are summed."""
        rank = len(like.shape)
        flat = self.sum_to(x, _Like(x.shape[-rank:]))

        def padded(a: Array) -> Array:
            missing = like.shape[0] - a.shape[0]
            return np.concatenate([a, self.zeros((missing, *a.shape[1:]), a.dtype)])

        return _rearranged(flat, padded)

    def sigmoid(self: Sums, x: Any) -> Any:
        """The first weight of a softmax over (x, 0)."""

        def beside(a: Array) -> Array:
            return np.stack([a, self.zeros(a.shape, a.dtype)], axis=-1)

        return _rearranged(self.softmax(_rearranged(x, beside), -1, None), lambda a: a[..., 0])

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.zeros(shape, dtype)


class _Like:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _rearranged(x: Any, function: Rearrangement) -> Any:
    return function(x) if isinstance(x, np.ndarray) else x.rearranged(function)
