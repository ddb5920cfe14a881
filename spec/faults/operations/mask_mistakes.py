"""Mistakes about masks: which keys are kept, what replaces a masked score, rows without keys.

A mask is a boolean array, True keeps, in any shape that broadcasts to [..., h, L, S]; it has the
declared number of axes at least. An additive mask is added to the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkvac.spec.faults.operations import low_precision

Array = np.ndarray[Any, Any]

# --- which keys are kept -----------------------------------------------------------------------


def leak(mask: Array) -> Array:
    """Each query also keeps the key after those that it may see."""
    shifted = np.zeros_like(mask)
    shifted[..., 1:] = mask[..., :-1]
    return mask | shifted


def tile_row(mask: Array, tile: int = 4) -> Array:
    """Queries in tiles of 4, and the mask of the first of each tile for all of them."""
    return mask[..., np.arange(mask.shape[-2]) // tile * tile, :]


def any_row(mask: Array) -> Array:
    """A key is kept for all queries if some query keeps it."""
    return np.broadcast_to(mask.any(axis=-2, keepdims=True), mask.shape)


def shifted_key(mask: Array) -> Array:
    return np.roll(mask, 1, axis=-1)


def along_queries(mask: Array, scores: Array) -> Array:
    """A mask of keys alone, laid along the queries."""
    if mask.shape[-2] != 1 or mask.shape[-1] == 1:
        return mask
    length = scores.shape[-2]
    rows = np.swapaxes(mask, -1, -2)[..., :length, :]
    missing = [*[(0, 0)] * (rows.ndim - 2), (0, length - rows.shape[-2]), (0, 0)]
    padded: Array = np.pad(rows, missing, constant_values=True)
    return padded


def samples_as_heads(mask: Array, scores: Array) -> Array:
    """A mask without an axis of heads, whose samples meet the axis of heads in broadcasting."""
    if scores.ndim < 4 or mask.ndim < scores.ndim or mask.shape[-3] != 1:
        return mask
    return np.swapaxes(mask, -3, -4)


def misplaced_samples(mask: Array, scores: Array) -> Array:
    """A mask without heads, read with an offset that counts heads as if it had them."""
    if scores.ndim < 4 or mask.ndim < 4 or mask.shape[-3] != 1:
        return mask
    samples, heads = mask.shape[-4], scores.shape[-3]
    place = np.arange(samples)[:, None] * heads + np.arange(heads)
    return np.asarray(np.take(mask[..., 0, :, :], place % samples, axis=-3))


def either(given: Array, causal: Array) -> Array:
    return given | causal


def everything(mask: Array) -> Array:
    return np.ones_like(mask)


def earlier(causal: Array) -> Array:
    """The causal mask of the query before."""
    return np.concatenate([np.zeros_like(causal[..., :1, :]), causal[..., :-1, :]], axis=-2)


def later(causal: Array) -> Array:
    """The query's own key and those after it."""
    return np.triu(np.ones(causal.shape, bool))


def bottom_right(causal: Array) -> Array:
    """The last query sees the last key."""
    length, keys = causal.shape[-2:]
    return np.tri(length, keys, keys - length, dtype=bool)


def after_past(causal: Array) -> Array:
    """Keys beyond the number of queries are a past that every query sees."""
    length, keys = causal.shape[-2:]
    return np.tri(length, keys, max(keys - length, 0), dtype=bool)


def decoding(causal: Array) -> Array:
    """A single query sees every key."""
    return np.ones_like(causal) if causal.shape[-2] == 1 else causal


# --- additive masks taken for boolean ones -------------------------------------------------------


def zero_keeps(mask: Array) -> Array:
    return np.asarray(mask == 0)


def nonzero_keeps(mask: Array) -> Array:
    return np.asarray(mask != 0)


def negative_drops(mask: Array) -> Array:
    return np.asarray(mask >= 0)


def lowest_drops(mask: Array) -> Array:
    """Below −60000 is taken for −∞; every format's lowest number is."""
    return np.asarray(mask > -6e4)


# --- scores of masked keys -----------------------------------------------------------------------


def zeroed(x: Array, mask: Array) -> Array:
    return np.where(mask, x, np.zeros((), x.dtype))


def fill(constant: float) -> Callable[[Array, Array], Array]:
    """Masked scores replaced by a constant; −inf stands for the lowest number of the dtype."""

    def filled(x: Array, mask: Array) -> Array:
        lowest = np.finfo(x.dtype).min
        return np.where(mask, x, x.dtype.type(constant) if np.isfinite(constant) else lowest)

    return filled


def lower(by: float) -> Callable[[Array, Array], Array]:
    """A constant subtracted from masked scores."""
    return lambda x, mask: np.where(mask, x, x - x.dtype.type(by))


def floored(mask: Array) -> Array:
    """An additive mask that drops nothing: −1e4 at least."""
    return np.asarray(np.maximum(mask, mask.dtype.type(-1e4)))


def infinity_times(x: Array, mask: Array) -> Array:
    """(1 − mask) · −∞ added, which is NaN where a key is kept."""
    added: Array = np.where(mask, np.nan, -np.inf).astype(x.dtype) + x
    return added


def maximum_of_all(x: Array, mask: Array) -> Array:
    """A softmax whose maximum is taken over masked keys, too."""
    return low_precision.softmax(x, mask, maximum=lambda _: low_precision.row_maximum(x))


# --- rows without keys ---------------------------------------------------------------------------


def _empty(weights: Array, mask: Array) -> Array:
    return np.asarray(~np.broadcast_to(mask, weights.shape).any(axis=-1, keepdims=True))


def empty_undefined(weights: Array, mask: Array) -> Array:
    return np.where(_empty(weights, mask), weights.dtype.type(np.nan), weights)


def empty_uniform(weights: Array, mask: Array) -> Array:
    uniform = weights.dtype.type(1 / max(weights.shape[-1], 1))
    return np.where(_empty(weights, mask), uniform, weights)


def empty_first(weights: Array, mask: Array) -> Array:
    """A query without keys attends to the first one."""
    first = (np.arange(weights.shape[-1]) == 0).astype(weights.dtype)
    return np.where(_empty(weights, mask), first, weights)


def beside_empty(weights: Array, mask: Array) -> Array:
    """The query after one without keys gets no keys either."""
    empty = np.roll(_empty(weights, mask), 1, axis=-2)
    return np.where(empty, np.zeros((), weights.dtype), weights)
