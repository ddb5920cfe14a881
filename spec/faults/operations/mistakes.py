"""Operations that only faulty equations use: what the closed grammar has no words for.

Each is a function of arrays, named as in the equations of the fault catalogue. Some only move or
mask entries and work in every algebra whose values are arrays; some have a rounding rule (see
`qkvac.spec.faults.evaluator`); those that stand for poor arithmetic can only be carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from qkvac.spec.faults.operations import (
    gradient_mistakes,
    low_precision,
    mask_mistakes,
    misindexing,
)
from qkvac.spec.formats import FORMATS

Array = np.ndarray[Any, Any]
Function = Callable[..., Array]


@dataclass(frozen=True)
class Mistake:
    """An operation that the grammar lacks."""

    function: Function
    kind: str
    """"mask", "moving" (of entries), "placed" (moved, by the shape of a second operand), "lookup"
    (in a table), "sum" (of the last operand's shape), "smooth" (with a rounding rule), "poor",
    "poor product" or "poor sum"."""


# --- smooth functions, given a rounding rule in `faulty` --------------------------------------


def exponential(x: Array, where: Array | None = None) -> Array:
    """e^(x − the row's maximum), which a softmax would now divide by its sum."""
    kept = low_precision.kept_scores(x, where)
    return np.asarray(np.exp(kept - low_precision.row_maximum(kept)))


def over_columns(x: Array, where: Array | None = None) -> Array:
    """The exponentials, divided by the sums of columns."""
    terms = exponential(x, where)
    return np.asarray(terms / terms.sum(axis=-2, keepdims=True))


def by_count(x: Array, where: Array | None = None) -> Array:
    """The exponentials, divided by the number of keys."""
    return np.asarray(exponential(x, where) / x.dtype.type(max(x.shape[-1], 1)))


def shares(x: Array, where: Array | None = None) -> Array:
    """Scores divided by their sum, without an exponential."""
    kept = x if where is None else mask_mistakes.zeroed(x, where)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def sigmoids(x: Array, where: Array | None = None) -> Array:
    return 1 / (1 + np.exp(-low_precision.kept_scores(x, where)))


def best_only(x: Array, where: Array | None = None) -> Array:
    kept = low_precision.kept_scores(x, where)
    return np.asarray((np.arange(x.shape[-1]) == kept.argmax(axis=-1)[..., None]).astype(x.dtype))


def logarithms(x: Array, where: Array | None = None) -> Array:
    """The logarithms of the weights."""
    kept = low_precision.kept_scores(x, where)
    shifted = kept - low_precision.row_maximum(kept)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def cap(x: Array) -> Array:
    """Scores kept within ±50 by a hyperbolic tangent."""
    return np.asarray(x.dtype.type(50) * np.tanh(x / x.dtype.type(50)))


def unit(x: Array) -> Array:
    """Rows of length 1."""
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True)))


def softmax_of_samples(x: Array, where: Array | None = None) -> Array:
    """Exponentials divided by their sum over the keys of all samples."""
    kept = low_precision.kept_scores(x, where)
    top = low_precision.row_maximum(kept).max(axis=0, keepdims=True, initial=-np.inf)
    terms = np.exp(kept - top)
    return np.asarray(terms / terms.sum(axis=(0, -1), keepdims=True))


# --- weights of more or fewer keys ------------------------------------------------------------


def padded(x: Array, where: Array | None = None) -> Array:
    """Keys are padded with zero scores to a multiple of 8, and the padding counts."""
    keys = x.shape[-1]
    edge = [*[(0, 0)] * (x.ndim - 1), (0, -keys % 8)]
    kept = None if where is None else np.pad(where, edge[-where.ndim :], constant_values=True)
    return low_precision.softmax(np.pad(x, edge), kept)[..., :keys]


def sink(x: Array, where: Array | None = None) -> Array:
    """One score of 0 more, whose weight nobody gets."""
    edge = [*[(0, 0)] * (x.ndim - 1), (0, 1)]
    kept = None if where is None else np.pad(where, edge[-where.ndim :], constant_values=True)
    return low_precision.softmax(np.pad(x, edge), kept)[..., :-1]


def tail_dropped(x: Array, where: Array | None = None, tile: int = 16) -> Array:
    """Keys beyond the last whole tile get no weight."""
    keys = x.shape[-1]
    keep = np.arange(keys) < (keys // tile * tile or keys)
    return low_precision.softmax(x, keep if where is None else where & keep)


def keys_cut(x: Array, where: Array | None = None) -> Array:
    """Keys beyond the number of queries get no weight."""
    keep = np.arange(x.shape[-1]) < x.shape[-2]
    return low_precision.softmax(x, keep if where is None else where & keep)


def _variant(**pieces: Any) -> Mistake:
    return Mistake(partial(low_precision.softmax, **pieces), "poor")


def _poor(function: Function, **options: Any) -> Mistake:
    return Mistake(partial(function, **options) if options else function, "poor")


def _product(function: Function, **options: Any) -> Mistake:
    return Mistake(partial(function, **options) if options else function, "poor product")


SAMPLES: Final[Mapping[str, tuple[Function, str]]] = {
    **{
        f.__name__: (f, "moving")
        for f in (
            *(misindexing.first_sample, misindexing.next_sample),
            *(misindexing.reversed_samples, misindexing.only_first_sample),
        )
    },
    "mean_of_samples": (misindexing.mean_of_samples, "smooth"),
    "softmax_of_samples": (softmax_of_samples, "smooth"),
}
"""Mistakes about batches, by the name that rules use: what they do to the axis of samples."""

BY_RANK: Final = frozenset(SAMPLES)
"""Names in rules to which the declared number of axes is appended: batch axes stand before them."""


def _for_rank(function: Function, kind: str, rank: int) -> Mistake:
    def changed(x: Array, *others: Array) -> Array:
        if x.ndim > rank:
            return function(x, *others)
        return low_precision.softmax(x, *others) if function is softmax_of_samples else x

    return Mistake(changed, kind)


MISTAKES: Final[Mapping[str, Mistake]] = {
    "invert": Mistake(np.logical_not, "mask"),
    **{
        f.__name__: Mistake(f, "mask")
        for f in (
            *(mask_mistakes.leak, mask_mistakes.tile_row, mask_mistakes.any_row),
            *(mask_mistakes.shifted_key, mask_mistakes.along_queries, mask_mistakes.either),
            *(mask_mistakes.samples_as_heads, mask_mistakes.misplaced_samples),
            *(mask_mistakes.everything, mask_mistakes.earlier, mask_mistakes.later),
            *(mask_mistakes.bottom_right, mask_mistakes.after_past, mask_mistakes.decoding),
            *(mask_mistakes.zero_keeps, mask_mistakes.nonzero_keeps),
            *(mask_mistakes.negative_drops, mask_mistakes.lowest_drops),
            *(misindexing.in_order, misindexing.first_occurrence),
        )
    },
    **{
        f.__name__: Mistake(f, "moving")
        for f in (
            *(misindexing.unswapped, misindexing.unswapped_back),
            *(misindexing.reversed_heads, misindexing.first_head, misindexing.next_head),
            *(misindexing.only_first_head, misindexing.interleaved),
            *(misindexing.uninterleaved, misindexing.first_row),
            *(misindexing.only_first_row, misindexing.next_row, misindexing.previous_row),
            *(misindexing.reversed_columns, misindexing.reversed_rows, misindexing.reread),
            *(misindexing.column_maximum, mask_mistakes.zeroed),
        )
    },
    **{
        f"{name}_{rank}": _for_rank(function, kind, rank)
        for name, (function, kind) in SAMPLES.items()
        for rank in (2, 3)
    },
    "first_sample_1": _for_rank(misindexing.first_sample, "mask", 1),
    "tiled_groups": Mistake(misindexing.tiled_groups, "placed"),
    "reversed_groups": Mistake(misindexing.reversed_groups, "placed"),
    "next_group": Mistake(misindexing.next_group, "placed"),
    "rows_cut": Mistake(misindexing.rows_cut, "placed"),
    "columns_cut": Mistake(misindexing.columns_cut, "placed"),
    **{
        f.__name__: Mistake(f, "lookup")
        for f in (
            *(misindexing.cyclic, misindexing.bucketed, misindexing.last_for_rare),
            *(misindexing.padding_zeroed,),
        )
    },
    **{f"fused_{block}": Mistake(misindexing.fused(block), "poor") for block in range(3)},
    **{name: Mistake(function, "sum") for name, (function, _) in gradient_mistakes.SUMS.items()},
    **{name: Mistake(function, "poor sum") for name, function in gradient_mistakes.POOR.items()},
    "masked_undefined": Mistake(gradient_mistakes.masked_undefined, "smooth"),
    "absolute": Mistake(np.abs, "moving"),
    "fill_100": Mistake(mask_mistakes.fill(-100), "smooth"),
    "fill_1e4": Mistake(mask_mistakes.fill(-1e4), "smooth"),
    "fill_1e9": Mistake(mask_mistakes.fill(-1e9), "smooth"),
    "fill_lowest": Mistake(mask_mistakes.fill(-np.inf), "smooth"),
    "lowered_1e4": Mistake(mask_mistakes.lower(1e4), "smooth"),
    "lowered_1e9": Mistake(mask_mistakes.lower(1e9), "smooth"),
    "maximum_of_all": Mistake(mask_mistakes.maximum_of_all, "poor"),
    **{
        f.__name__: Mistake(f, "smooth")
        for f in (
            *(mask_mistakes.floored, mask_mistakes.infinity_times, misindexing.mean_of_heads),
            *(mask_mistakes.empty_undefined, mask_mistakes.empty_uniform),
            *(mask_mistakes.empty_first, mask_mistakes.beside_empty),
        )
    },
    **{
        f.__name__: Mistake(f, "smooth")
        for f in (
            *(exponential, over_columns, by_count, shares, sigmoids, best_only, logarithms),
            *(cap, unit, sink, padded, tail_dropped, keys_cut),
        )
    },
    "penalised": Mistake(
        lambda x: x - x.dtype.type(2**-6) * _distance(x).astype(x.dtype), "smooth"
    ),
    "softmax_of_all": Mistake(
        lambda x, w=None: low_precision.softmax(
            low_precision.kept_scores(x, w).reshape(*x.shape[:-2], 1, x.shape[-2] * x.shape[-1])
        ).reshape(x.shape),
        "smooth",
    ),
    "tfloat32": _poor(low_precision.tfloat32),
    "bfloat16": _poor(low_precision.brain),
    "float16": _poor(low_precision.through, name="float16"),
    "float32": _poor(low_precision.through, name="float32"),
    "eight_bits": _poor(low_precision.eight_bits),
    "clipped": _poor(lambda x: np.clip(x, -30, 30)),
    "epsilon_12": _variant(normalise=partial(low_precision.normalised, epsilon=1e-12)),
    "sum_in_bfloat16": _product(low_precision.running, bits=FORMATS["bfloat16"].precision),
    "sum_in_float16": _product(low_precision.running, bits=FORMATS["float16"].precision),
    "product_in_float32": _product(low_precision.in_format, name="float32"),
    "pairs": _product(low_precision.pairs),
    "strassen": _product(low_precision.strassen),
    "tensor_tiles": _product(low_precision.tensor_tiles),
    "without_last_terms": _product(low_precision.without_last_terms),
    "without_last_rows": _product(low_precision.without_last_row),
    "no_maximum": _variant(maximum=lambda x: x.dtype.type(0)),
    "global_maximum": _variant(
        maximum=lambda x: np.max(low_precision.row_maximum(x), initial=-np.inf)
    ),
    "maximum_from_0": _variant(maximum=lambda x: np.maximum(low_precision.row_maximum(x), 0)),
    "maximum_of_first": _variant(maximum=low_precision.first_of_tile),
    "epsilon_6": _variant(normalise=partial(low_precision.normalised, epsilon=1e-6)),
    "epsilon_9": _variant(normalise=partial(low_precision.normalised, epsilon=1e-9)),
    "short_reciprocal": _variant(
        normalise=lambda e: e * low_precision.rounded(1 / e.sum(axis=-1, keepdims=True), 12)
    ),
    "sum_of_bfloat16": _variant(normalise=low_precision.by_narrow_sum),
    "cubic": _variant(exp=partial(low_precision.polynomial, degree=3)),
    "quintic": _variant(exp=partial(low_precision.polynomial, degree=5)),
    "exponent_field": _variant(exp=low_precision.exponent_field),
    "compounding": _variant(exp=low_precision.compounding),
    "clamped_20": _variant(exp=lambda z: np.exp(np.maximum(z, -20))),
    "clamped_80": _variant(exp=lambda z: np.exp(np.maximum(z, -80))),
    "thinned_6": _poor(
        lambda x, w=None: mask_mistakes.zeroed(a := low_precision.softmax(x, w), a >= 1e-6)
    ),
    "thinned_3": _poor(
        lambda x, w=None: mask_mistakes.zeroed(a := low_precision.softmax(x, w), a >= 1e-3)
    ),
    "thin": _poor(lambda a: mask_mistakes.zeroed(a, a >= 1e-3)),
    "softmax_in_float16": _poor(low_precision.in_precision, name="float16"),
    "softmax_in_bfloat16": _poor(low_precision.in_precision, name="bfloat16"),
    "softmax_in_float32": _poor(low_precision.in_precision, name="float32"),
    **{
        f"blocks_{name}": _product(low_precision.by_blocks, block=16, fault=fault)
        for name, fault in (
            *(("stale_context", "context"), ("stale_sum", "sum"), ("last_only", "last block only")),
            *(("own_maximum", "maximum"), ("early_division", "early division")),
        )
    },
}


def _distance(x: Array) -> Array:
    n, keys = x.shape[-2:]
    return np.asarray(np.abs(np.arange(n)[:, None] - np.arange(keys)))
