"""Further inputs that the checks of clause M ask about, known before the first answer.

A function is simply called again. For a port that works on files, they are written beside the
case, as if they were cases of their own. So no further input depends on what a port declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

from qkvac.spec.case import Case

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class Move:
    """What a further call multiplies the inputs by, and what becomes of the results."""

    inputs: Mapping[str, float]
    results: Mapping[str, float] = field(default_factory=dict)


def _with_weights(biases: bool = False) -> dict[str, tuple[Move, ...]]:
    quarter = dict.fromkeys(("Wq", "Wk", "Wv"), 0.25)

    def moved(*pairs: tuple[str, float]) -> dict[str, float]:
        kinds = ("W", "b") if biases else ("W",)
        return {f"{kind}{name}": factor for name, factor in pairs for kind in kinds}

    return {
        "scaling": (
            Move({"X": 4.0, **quarter}),
            Move(
                moved(("q", 2.0), ("k", 0.5), ("v", 8.0)), {"Q": 2.0, "K": 0.5, "V": 8.0, "C": 8.0}
            ),
        ),
        "signs": (
            Move(moved(("q", -1.0), ("k", -1.0)), {"Q": -1.0, "K": -1.0}),
            Move(moved(("v", -1.0)), {"V": -1.0, "C": -1.0}),
        ),
    }


MOVES: Final[Mapping[str, Mapping[str, tuple[Move, ...]]]] = {
    "attention": _with_weights(),
    "causal_attention": _with_weights(),
    "attention_linear_layers": _with_weights(biases=True),
    "multi_head_attention": {
        "scaling": (
            Move({"X": 4.0, "Wq": 0.25, "Wk": 0.25, "Wv": 0.25}),
            Move(
                {"Wq": 2.0, "Wk": 0.5, "Wv": 8.0, "Wo": 0.25},
                {"Q": 2.0, "K": 0.5, "V": 8.0, "C": 8.0, "Y": 2.0},
            ),
        ),
        "signs": (
            Move({"Wq": -1.0, "Wk": -1.0}, {"Q": -1.0, "K": -1.0}),
            Move({"Wv": -1.0, "Wo": -1.0}, {"V": -1.0, "C": -1.0}),
        ),
    },
    "scaled_dot_product_attention": {
        "scaling": (Move({"Q": 2.0, "K": 0.5, "V": 8.0}, {"C": 8.0}),),
        "signs": (Move({"Q": -1.0, "K": -1.0}), Move({"V": -1.0}, {"C": -1.0})),
    },
    "dot_product_attention": {"signs": (Move({"X": -1.0}, {"C": -1.0}),)},
    "embedding": {
        "scaling": (Move({"E": 4.0, "P": 4.0}, {"X": 4.0}),),
        "signs": (Move({"E": -1.0, "P": -1.0}, {"X": -1.0}),),
    },
}
"""By profile and check: transformations that commute with every rounding. Without a scale there is
none for powers of two."""


def times(array: Array, factor: float) -> Array:
    """The array times a power of two, in its own dtype."""
    return array if factor == 1.0 else array * array.dtype.type(factor)


# --- additive changes ------------------------------------------------------------------------


def last_kept(case: Case) -> tuple[int, ...]:
    """The last keys that the calls of `future` leave as they are.

    Half of the queries see no later key if the triangle begins at the first key; where it ends at
    the last one, that takes another call.
    """
    queries, keys = (case.sizes.get(a, case.sizes.get("n", 0)) for a in ("L", "S"))
    half = min(queries, keys) // 2
    return tuple(sorted({half, half + max(keys - queries, 0)}))


def one_query(case: Case) -> int:
    """The query that `own-row` changes."""
    return case.sizes["L"] // 2


def last_sample(case: Case) -> tuple[int, ...]:
    """The index of the sample that `batch` changes."""
    return tuple(size - 1 for size in case.batch)


def order(count: int) -> Array:
    """Odd places, then even ones backwards: no reversal and no rotation; the last one moves."""
    return np.concatenate([np.arange(1, count, 2), np.arange(0, count, 2)[::-1]])


def _repeat(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    return [{}]


def _future(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    other = case.drawn(1).inputs(dtype)

    def changed(name: str, kept: int) -> Array:
        before = inputs[name][..., : kept + 1, :]
        return np.concatenate([before, other[name][..., kept + 1 :, :]], axis=-2)

    names = ("K", "V") if "K" in inputs else ("X",)
    return [{name: changed(name, kept) for name in names} for kept in last_kept(case)]


def _own_row(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    row, queries = one_query(case), inputs["Q"].copy()
    queries[..., row, :] = case.drawn(1).inputs(dtype)["Q"][..., row, :]
    return [{"Q": queries}]


def _batch(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    other, at = case.drawn(1).inputs(dtype), last_sample(case)
    changed = {}
    for name in inputs.keys() - case.declared.without_batch:
        changed[name] = inputs[name].copy()
        changed[name][at] = other[name][at]
    return [changed]


def _sensitivity(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    other = case.drawn(1).inputs(dtype)
    return [{name: other[name]} for name in inputs if name != "mask"]


def _permutation(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    names = ("K", "V") if "K" in inputs else ("X",)
    return [{n: inputs[n][..., order(inputs[n].shape[-2]), :].copy() for n in names}]


Changes = Callable[[Case, str, Inputs], list[Inputs]]

CHANGES: Final[Mapping[str, Changes]] = {
    "repeat": _repeat,
    "future": _future,
    "batch": _batch,
    "own-row": _own_row,
    "sensitivity": _sensitivity,
    "permutation": _permutation,
}
"""By check: the inputs that each further call replaces."""

IN_ADVANCE: Final = frozenset({*CHANGES, "scaling", "signs", "first-row"})
"""Checks that need the further calls alone, or none."""


def further(check: str, case: Case, dtype: str, inputs: Inputs) -> tuple[dict[str, Array], ...]:
    """The inputs of the further calls of a check, in order; none if it asks nothing in advance."""
    if check in CHANGES:
        return tuple({**inputs, **new} for new in CHANGES[check](case, dtype, inputs))
    return tuple(
        {name: times(array, move.inputs.get(name, 1.0)) for name, array in inputs.items()}
        for move in MOVES.get(case.profile, {}).get(check, ())
    )


def samples(case: Case) -> int:
    """How many samples a case's batch has; 1 without a batch."""
    return prod(case.batch)
