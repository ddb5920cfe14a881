"""Mistakes that take the wrong head, sample, row or table entry; nothing is computed here.

Arrays carry their declared axes last; what stands before them are batch axes, of which the first
one counts samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# --- heads: [..., h, n, e] -------------------------------------------------------------------


def unswapped(x: Array) -> Array:
    """Heads [h, n, e] as a reshape alone would have made them of [n, h·e]."""
    *_, h, n, e = x.shape
    return np.swapaxes(x, -2, -3).reshape(*x.shape[:-3], h, n, e)


def unswapped_back(x: Array) -> Array:
    """Heads that merge into what a reshape alone would have made of [h, n, e]."""
    *_, h, n, e = x.shape
    return np.swapaxes(x.reshape(*x.shape[:-3], n, h, e), -2, -3)


def reversed_heads(x: Array) -> Array:
    return x[..., ::-1, :, :]


def first_head(x: Array) -> Array:
    return np.broadcast_to(x[..., :1, :, :], x.shape)


def next_head(x: Array) -> Array:
    return np.roll(x, -1, axis=-3)


def only_first_head(x: Array) -> Array:
    """All heads but the first are zero."""
    kept = np.arange(x.shape[-3])[:, None, None] == 0
    return np.where(kept, x, np.zeros((), x.dtype))


def interleaved(x: Array) -> Array:
    """Heads [h, n, e] of which head i has columns i, i + h, … instead of consecutive ones."""
    *lead, h, n, e = x.shape
    merged = np.swapaxes(x, -2, -3).reshape(*lead, n, e, h)
    return np.moveaxis(merged, -1, -3)


def uninterleaved(x: Array) -> Array:
    """Heads that merge into columns in turn: the first of every head, the second, …"""
    *lead, h, n, e = x.shape
    columns = np.moveaxis(x, -3, -1).reshape(*lead, n, h, e)
    return np.swapaxes(columns, -2, -3)


def mean_of_heads(x: Array) -> Array:
    return np.broadcast_to(x.mean(axis=-3, keepdims=True), x.shape) if x.size else x


def _group(choose: Callable[[Array, int, int], Array]) -> Callable[..., Array]:
    """Repeated key/value heads [h, S, e] in another order; `grouped` is [g, S, e]."""

    def regroup(repeated: Array, grouped: Any) -> Array:
        heads, groups = repeated.shape[-3], grouped.shape[-3]
        each = heads // groups if groups else 0
        order = choose(np.arange(heads), groups, each)
        return np.take(repeated, order, axis=-3)

    return regroup


tiled_groups = _group(lambda head, groups, each: head % groups * each)
"""Head i reads key/value head i mod g, as a tile would have it."""
reversed_groups = _group(lambda head, groups, each: (groups - 1 - head // each) * each)
next_group = _group(lambda head, groups, each: (head // each + 1) % groups * each)


def fused(block: int) -> Callable[[Array, Array, Array], Array]:
    """A third of [q|k|v] stored head by head that is read as three blocks; heads [h, d, e]."""

    def read(query: Array, key: Array, value: Array) -> Array:
        parts, heads = (query, key, value), query.shape[-3]
        places = [divmod(block * heads + head, 3) for head in range(heads)]
        return np.stack([parts[which][..., head, :, :] for head, which in places], axis=-3)

    return read


# --- samples -----------------------------------------------------------------------------------


def of_samples(change: Callable[[Array], Array]) -> Callable[[int], Callable[[Array], Array]]:
    """A change of the first axis, for tensors of a rank; without a batch there is none."""

    def for_rank(rank: int) -> Callable[[Array], Array]:
        def changed(x: Array) -> Array:
            return change(x) if x.ndim > rank else x

        return changed

    return for_rank


def first_sample(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape)


def next_sample(x: Array) -> Array:
    return np.roll(x, -1, axis=0)


def reversed_samples(x: Array) -> Array:
    return x[::-1]


def only_first_sample(x: Array) -> Array:
    """Zeros for all samples but the first."""
    kept = np.zeros_like(x)
    kept[:1] = x[:1]
    return kept


def mean_of_samples(x: Array) -> Array:
    return np.broadcast_to(x.mean(axis=0, keepdims=True), x.shape) if len(x) else x


# --- rows, columns and sizes -------------------------------------------------------------------


def first_row(x: Array) -> Array:
    return np.broadcast_to(x[..., :1, :], x.shape)


def only_first_row(x: Array) -> Array:
    """All rows but the first are zero."""
    kept = np.arange(x.shape[-2])[:, None] == 0
    return np.where(kept, x, np.zeros((), x.dtype))


def next_row(x: Array) -> Array:
    return np.roll(x, -1, axis=-2)


def previous_row(x: Array) -> Array:
    return np.roll(x, 1, axis=-2)


def reversed_columns(x: Array) -> Array:
    return x[..., ::-1]


def reversed_rows(x: Array) -> Array:
    return x[..., ::-1, :]


def reread(x: Array) -> Array:
    """The same numbers in memory, rows and columns taken for each other."""
    return np.swapaxes(x, -1, -2).reshape(x.shape)


def column_maximum(x: Array) -> Array:
    return np.broadcast_to(x.max(axis=-2, keepdims=True, initial=-np.inf), x.shape)


def rows_cut(context: Array, weights: Any) -> Array:
    """Rows beyond the number of keys are zero."""
    kept = np.arange(context.shape[-2])[:, None] < weights.shape[-1]
    return np.where(kept, context, np.zeros((), context.dtype))


def columns_cut(context: Array, queries: Any) -> Array:
    """Columns beyond the width of the queries are zero."""
    kept = np.arange(context.shape[-1]) < queries.shape[-1]
    return np.where(kept, context, np.zeros((), context.dtype))


# --- tables and tokens -------------------------------------------------------------------------


def cyclic(table: Array, index: Array) -> Array:
    """Rows of the table, indices beyond its end counted from the start again."""
    return np.asarray(table[index % max(len(table), 1)])


def bucketed(table: Array, index: Array) -> Array:
    """Tokens share the first half of the table."""
    return np.asarray(table[index % max(len(table) // 2, 1)])


def last_for_rare(table: Array, index: Array) -> Array:
    """Tokens of the table's second half all read its last row."""
    return np.asarray(table[np.where(index < len(table) // 2, index, len(table) - 1)])


def padding_zeroed(table: Array, index: Array) -> Array:
    """Token 0 is taken for padding."""
    return np.where((index == 0)[..., None], np.zeros((), table.dtype), table[index])


def first_occurrence(index: Array) -> Array:
    """For each token, where it occurs first in its sequence."""
    same = index[..., :, None] == index[..., None, :]
    return np.asarray(same.argmax(axis=-1)) if index.shape[-1] else index


def in_order(index: Array) -> Array:
    """The tokens, sorted."""
    return np.sort(index, axis=-1)
