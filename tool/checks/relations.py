"""Further inputs that the checks of clause M ask about, known before the first answer.

A function is simply called again. For a port that works on files, they are written beside the
case, as if they were cases of their own. So no further input depends on what a port declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from qkvac.spec.cases.case import Case
from qkvac.spec.grammar.syntax import Tensor
from qkvac.spec.registry import remembered
from qkvac.spec.symbolic import homogeneity
from qkvac.spec.symbolic.copies import copies
from qkvac.spec.symbolic.homogeneity import Move
from qkvac.spec.symbolic.influence import blank, influenced
from qkvac.spec.symbolic.structure import orderless, places, rows, sequences, triangles

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]


def moves(check: str, case: Case) -> tuple[Move, ...]:
    """What the further calls of `scaling` and `signs` multiply inputs and results by."""
    return homogeneity.moves(case.program, signs=check == "signs")


def factors(check: str, degrees: Mapping[str, int]) -> Mapping[str, float]:
    """Powers of two, or −1."""
    return {name: -1.0 if check == "signs" else 2.0**k for name, k in degrees.items()}


def times(array: Array, factor: float) -> Array:
    """The array times a power of two, in its own dtype."""
    return array if factor == 1.0 else array * array.dtype.type(factor)


# --- additive changes ------------------------------------------------------------------------


@dataclass(frozen=True)
class Disturbance:
    """Other rows in all inputs that have any along an axis; what all samples share stays."""

    axis: str
    rows: Array
    """Which ones, as booleans."""
    what: str

    def changed(self, case: Case, inputs: Inputs) -> dict[str, Array]:
        """Which entries of which inputs are others."""
        found = {}
        for name, at in rows(case.declared, case.program)[self.axis].items():
            found[name] = np.zeros(inputs[name].shape, bool)
            for place in at:
                found[name] |= self.rows.reshape(-1, *(1,) * (-place - 1))
        return found

    def applied(self, case: Case, dtype: str, inputs: Inputs) -> dict[str, Array]:
        """The inputs that change."""
        other = case.drawn(1).inputs(dtype)
        return {
            name: np.where(which, other[name], inputs[name])
            for name, which in self.changed(case, inputs).items()
        }

    def influenced(
        self, case: Case, inputs: Inputs, conventions: Mapping[str, str] | None = None
    ) -> Mapping[str, Array]:
        """For each quantity, which entries may change with them."""
        changed = self.changed(case, inputs)
        return influenced(case.program, inputs, case.bindings, changed, conventions)


def last_kept(queries: int, keys: int) -> tuple[int, ...]:
    """The last keys that the calls of `future` leave as they are.

    Half of the queries see no later key if the triangle begins at the first key; where it ends at
    the last one, that takes another call.
    """
    half = min(queries, keys) // 2
    return tuple(sorted({half, half + max(keys - queries, 0)}))


@remembered
def later_tokens(case: Case) -> tuple[Disturbance, ...]:
    """What `future` changes: the later keys of every causal triangle; none if all queries see it.

    There are tokens on both sides of the last one that is kept.
    """
    return tuple(
        disturbance
        for queries, keys in triangles(case.program)
        if keys in rows(case.declared, case.program) and _least(case, (queries, keys)) > 2
        for kept in last_kept(case.sizes[queries], case.sizes[keys])
        for after in [np.arange(case.sizes[keys]) > kept]
        for disturbance in [Disturbance(keys, after, f"other tokens after {kept}")]
        if not _results(disturbance, case).all()
    )


@remembered
def own_rows(case: Case) -> tuple[Disturbance, ...]:
    """What `own-row` changes: a row along each axis of the result in which no other depends on it.

    Those are queries, not keys.
    """
    found = []
    for axis in rows(case.declared, case.program):
        at = places(case.program.tensors[case.declared.last], (axis,))
        if len(at) != 1 or case.sizes[axis] < 2 or not _least(case, case.sizes):
            continue
        row = case.sizes[axis] // 2
        own = np.arange(case.sizes[axis]) == row
        disturbance = Disturbance(axis, own, f"other numbers at {axis} = {row}")
        reached = np.moveaxis(_results(disturbance, case), at[0], 0)
        if reached[row].any() and not reached[~own].any():
            found.append(disturbance)
    return tuple(found)


@remembered
def copied(case: Case, alignment: str = "top-left") -> tuple[str, ...]:
    """Quantities that the first query of a triangle gets as they are, whatever the numbers.

    Under another causal alignment than the text's the first query may see several keys, or none.
    """
    if 0 in (*case.sizes.values(), *case.batch):
        return ()
    program, sizes = case.program, case.bindings
    given = case.inputs(case.dtypes[0]) if case.masked else blank(program, sizes)
    inputs = {
        name: array if name in case.declared.masks else array + 2 * (array.dtype.kind == "f")
        for name, array in given.items()
    }
    conventions = {"causal_alignment": alignment}
    shapes = influenced(program, inputs, sizes, {}, conventions)
    outputs = {name: np.full(array.shape, 2.0) for name, array in shapes.items()}
    found = copies(program, inputs, sizes, outputs, {}, conventions)
    queries = [axis for axis, _ in triangles(program)]
    return tuple(
        name
        for name in case.quantities
        if name in found
        if any(found[name].known.take(0, p).any() for p in places(program.tensors[name], queries))
    )


def _results(disturbance: Disturbance, case: Case) -> Array:
    """Which entries of the last quantity change, in one sample and if masks keep all."""
    return disturbance.influenced(case, blank(case.program, case.bindings))[case.declared.last]


def _least(case: Case, axes: Iterable[str]) -> int:
    return min((case.sizes[axis] for axis in axes), default=0)


def shortest(case: Case) -> int:
    """Tokens of the shortest sequence."""
    return _least(case, sequences(case.declared, case.program))


@dataclass(frozen=True)
class Permutation:
    """Another order along an axis that has none, which may have several names."""

    axes: frozenset[str]
    size: int

    def applied(self, tensor: Tensor, array: Array, *, back: bool = False) -> Array:
        """The array in the other order; `back` is the inverse. Where it broadcasts, it stays."""
        chosen = np.argsort(order(self.size)) if back else order(self.size)
        for place in places(tensor, self.axes):
            if array.ndim >= -place and array.shape[place] > 1:
                array = np.take(array, chosen, place)
        return array

    def __str__(self) -> str:
        return f"another order along {' and '.join(sorted(self.axes))}"


@remembered
def permutations(case: Case) -> tuple[Permutation, ...]:
    """The orders that mean nothing: of keys, of queries, of all tokens, of heads."""
    own = rows(case.declared, case.program).keys()
    return tuple(
        Permutation(axes, _least(case, axes))
        for axes in orderless(case.program)
        if axes & own and _least(case, axes) > 1
    )


def last_sample(case: Case) -> tuple[int, ...]:
    """The index of the sample that `batch` changes."""
    return tuple(size - 1 for size in case.batch)


def order(count: int) -> Array:
    """Odd places, then even ones backwards: no reversal and no rotation; the last one moves."""
    return np.concatenate([np.arange(1, count, 2), np.arange(0, count, 2)[::-1]])


def _repeat(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    return [{}]


def _future(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    return [disturbance.applied(case, dtype, inputs) for disturbance in later_tokens(case)]


def _own_row(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    return [disturbance.applied(case, dtype, inputs) for disturbance in own_rows(case)]


def _batch(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    other, at = case.drawn(1).inputs(dtype), last_sample(case)
    changed = {}
    for name in inputs.keys() - case.declared.without_batch:
        changed[name] = inputs[name].copy()
        changed[name][at] = other[name][at]
    return [changed]


def _sensitivity(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    other = case.drawn(1).inputs(dtype)
    return [{name: other[name]} for name in inputs if name not in case.declared.masks]


def _permutation(case: Case, dtype: str, inputs: Inputs) -> list[Inputs]:
    given = [tensor for tensor in case.program.inputs if tensor.name in inputs]
    return [
        {tensor.name: permutation.applied(tensor, inputs[tensor.name]) for tensor in given}
        for permutation in permutations(case)
    ]


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

MOVING: Final = ("scaling", "signs")
"""Checks that commute with every rounding."""

IN_ADVANCE: Final = frozenset({*CHANGES, *MOVING, "first-row"})
"""Checks that need the further calls alone, or none."""


def further(check: str, case: Case, dtype: str, inputs: Inputs) -> tuple[dict[str, Array], ...]:
    """The inputs of the further calls of a check, in order; none if it asks nothing in advance."""
    if check in CHANGES:
        return tuple({**inputs, **new} for new in CHANGES[check](case, dtype, inputs))
    if check not in MOVING:
        return ()
    return tuple(
        {name: times(array, factor.get(name, 1.0)) for name, array in inputs.items()}
        for move in moves(check, case)
        for factor in [factors(check, move.inputs)]
    )


def samples(case: Case) -> int:
    """How many samples a case's batch has; 1 without a batch."""
    return prod(case.batch)
