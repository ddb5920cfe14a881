"""Mistakes in the sums of gradients: over a batch, over shared heads, over a token's occurrences.

Each takes what is to be summed, and last what the sum is the gradient of, whose shape it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from qkvac.spec.faults.operations import low_precision

Array = np.ndarray[Any, Any]


def _apart(x: Array, like: Any, tiled: bool = False) -> tuple[Array, tuple[int, ...]]:
    """x with an axis for each part of an axis that is summed, and those axes.

    Heads that share one are consecutive; `tiled` takes every so-manyth instead.
    """
    lead = x.ndim - len(like.shape)
    split, over = list(x.shape[:lead]), list(range(lead))
    for axis, (have, want) in enumerate(zip(x.shape[lead:], like.shape, strict=True)):
        each = have // want if want else 1
        first = tiled and axis == len(like.shape) - 3
        over.append(len(split) + (not first))
        split += [each, want] if first else [want, each]
    return x.reshape(split), tuple(over)


def tiled_to(x: Array, like: Any) -> Array:
    """The sum over heads as if a head's group were its number modulo the groups."""
    apart, over = _apart(x, like, tiled=True)
    return np.asarray(apart.sum(over)).reshape(like.shape)


def mean_to(x: Array, like: Any) -> Array:
    apart, over = _apart(x, like)
    count = int(np.prod([apart.shape[axis] for axis in over]))
    total = np.asarray(apart.sum(over)).reshape(like.shape)
    return np.asarray(total / x.dtype.type(max(count, 1)))


def _picked(place: int) -> Callable[[Array, Any], Array]:
    """One of the terms instead of the sum."""

    def to(x: Array, like: Any) -> Array:
        apart, over = _apart(x, like)
        if not x.size:
            return np.zeros(like.shape, x.dtype)
        index = tuple(place if axis in over else slice(None) for axis in range(apart.ndim))
        return apart[index].reshape(like.shape)

    return to


first_to = _picked(0)
last_to = _picked(-1)


def sum_to_in_bfloat16(x: Array, like: Any) -> Array:
    """The sum, added up in bfloat16."""
    apart, over = _apart(x, like)
    rest = [axis for axis in range(apart.ndim) if axis not in over]
    rows = apart.transpose(*over, *rest).reshape(-1, *like.shape)
    total = np.zeros(like.shape, x.dtype)
    for row in rows:
        total = low_precision.brain(total + row)
    return total


# --- rows of tables ------------------------------------------------------------------------------


def _table(x: Array, like: Any) -> Array:
    return np.zeros(like.shape, x.dtype)


def scatter_last(x: Array, index: Array, like: Any) -> Array:
    """A row gets the gradient of the last place where its token stands."""
    table = _table(x, like)
    for token, row in zip(index.ravel(), x.reshape(-1, x.shape[-1]), strict=True):
        table[token] = row
    return table


def scatter_first(x: Array, index: Array, like: Any) -> Array:
    """A row gets the gradient of the first place where its token stands."""
    return scatter_last(x.reshape(-1, x.shape[-1])[::-1], index.ravel()[::-1], like)


def _added(x: Array, index: Array, like: Any) -> Array:
    table = _table(x, like)
    np.add.at(table, index, x)
    return table


def scatter_mean(x: Array, index: Array, like: Any) -> Array:
    """A row's gradient divided by how often its token occurs."""
    counts = np.bincount(index.ravel(), minlength=like.shape[0])[:, None]
    return np.asarray(_added(x, index, like) / np.maximum(counts, 1).astype(x.dtype))


def scatter_unpadded(x: Array, index: Array, like: Any) -> Array:
    """Token 0 is taken for padding, and its row gets no gradient."""
    table = _added(x, index, like)
    table[:1] = 0
    return table


def scatter_in_bfloat16(x: Array, index: Array, like: Any) -> Array:
    """Rows added up in bfloat16."""
    table = _table(x, like)
    for token, row in zip(index.ravel(), x.reshape(-1, x.shape[-1]), strict=True):
        table[token] = low_precision.brain(table[token] + row)
    return table


def pad_first(x: Array, like: Any) -> Array:
    """The gradient of positions in the first sample alone."""
    rows = x.reshape(-1, *x.shape[-2:])[0] if x.size else np.zeros(x.shape[-2:], x.dtype)
    missing = like.shape[0] - rows.shape[0]
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), x.dtype)])


# --- gradients of masked scores ------------------------------------------------------------------


def masked_undefined(x: Array, mask: Array) -> Array:
    """0 times infinity where a key is masked, which is NaN."""
    return np.where(mask, x, x.dtype.type(np.nan))


SUMS: Final[Mapping[str, tuple[Callable[..., Array], str]]] = {
    "tiled_to": (tiled_to, "sum_to"),
    "mean_to": (mean_to, "sum_to"),
    "first_to": (first_to, "sum_to"),
    "last_to": (last_to, "sum_to"),
    "scatter_last": (scatter_last, "scatter_add"),
    "scatter_first": (scatter_first, "scatter_add"),
    "scatter_mean": (scatter_mean, "scatter_add"),
    "scatter_unpadded": (scatter_unpadded, "scatter_add"),
    "pad_first": (pad_first, "pad"),
}
"""Name → the function, and the operation of the grammar in whose place it stands."""

POOR: Final[Mapping[str, Callable[..., Array]]] = {
    "sum_to_in_bfloat16": sum_to_in_bfloat16,
    "scatter_in_bfloat16": scatter_in_bfloat16,
}
