"""Influence: which entries of the results can change where some entries of the inputs do.

An interpretation of the text by where numbers come from, whatever they are. An entry behind a mask
is exactly 0, and what is multiplied by it does not matter. So a causal triangle keeps later tokens
away from earlier queries, in however many softmaxes and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvac.spec.grammar.equations import evaluate, fold
from qkvac.spec.grammar.rearrangements import Rearrangements
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.grammar.syntax import Program

Array = np.ndarray[Any, Any]


def influenced(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int | Scalar],
    changed: Mapping[str, Array],
    conventions: Mapping[str, str] | None = None,
) -> Mapping[str, Array]:
    """For each quantity booleans of its shape: whether an entry may have another value.

    `changed` has booleans of the shapes of those inputs that change, by name.
    """
    algebra = Influence(conventions)
    given = {
        tensor.name: inputs[tensor.name]
        if tensor.kind == "mask"
        else algebra.given(inputs[tensor.name], changed.get(tensor.name))
        for tensor in program.inputs
    }
    return {name: x.changed for name, x in evaluate(program, algebra, given, sizes).items()}


def blank(program: Program, sizes: Mapping[str, int | Scalar]) -> Mapping[str, Array]:
    """Inputs of one sample that say nothing: zeros, and masks that keep all."""
    kinds = {"real": np.zeros, "mask": np.ones, "index": np.zeros}
    types = {"real": np.float64, "mask": bool, "index": int}
    return {
        tensor.name: kinds[tensor.kind](
            tuple(int(fold(axis, sizes).rational()) for axis in tensor.axes), types[tensor.kind]
        )
        for tensor in program.inputs
    }


@dataclass(frozen=True)
class Marked:
    """Which entries may change, which are 0 in any case, and of inputs, what they are."""

    changed: Array
    zero: Array
    value: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.changed.shape
        return shape

    def rearranged(self, function: Callable[[Array], Array]) -> Marked:
        value = None if self.value is None else function(self.value)
        return Marked(function(self.changed), function(self.zero), value)


class Influence(Rearrangements):
    """The algebra of marked entries."""

    def given(self, array: Array, changed: Array | None = None) -> Marked:
        unchanged = np.zeros(array.shape, bool)
        return Marked(unchanged if changed is None else changed, unchanged, array)

    def constant(self, array: Array) -> Marked:
        return Marked(np.zeros(array.shape, bool), array == 0)

    def center(self, x: Marked) -> Array:
        return np.zeros(x.shape) if x.value is None else x.value.astype(np.float64)

    def matmul(self, x: Marked, y: Marked) -> Marked:
        changed = _any(x.changed, ~y.zero) | _any(~x.zero, y.changed)
        return Marked(changed, ~_any(~x.zero, ~y.zero))

    def add(self, x: Marked, y: Marked) -> Marked:
        return Marked(x.changed | y.changed, x.zero & y.zero)

    def subtract(self, x: Marked, y: Marked) -> Marked:
        return self.add(x, y)

    def multiply(self, x: Marked, y: Marked) -> Marked:
        return Marked((x.changed & ~y.zero) | (y.changed & ~x.zero), x.zero | y.zero)

    def negate(self, x: Marked) -> Marked:
        return Marked(x.changed, x.zero)

    def scale(self, x: Marked, s: Scalar) -> Marked:
        return Marked(x.changed, x.zero)

    def shift(self, x: Marked, s: Scalar) -> Marked:
        return Marked(x.changed, np.zeros(x.shape, bool))

    def sum(self, x: Marked, axis: int) -> Marked:
        changed, zero = x.changed.any(axis, keepdims=True), x.zero.all(axis, keepdims=True)
        return Marked(np.asarray(changed), np.asarray(zero))

    def softmax(self, x: Marked, axis: int, where: Array | None) -> Marked:
        kept = np.broadcast_to(True if where is None else where, x.shape)
        row = (x.changed & kept).any(axis, keepdims=True)
        empty = np.broadcast_to(~kept.any(axis, keepdims=True), x.shape)
        # The mean is one of values that are not looked at. Zeros, or NaN, let nothing through.
        weighty = empty if self.empty_row == "mean" else np.zeros(x.shape, bool)
        return Marked(row & kept, ~kept & ~weighty)

    def tanh(self, x: Marked) -> Marked:
        return Marked(x.changed, x.zero)

    def take(self, table: Any, index: Any) -> Any:
        """Rows of a table, which change where the index does."""
        found = super().take(table, index.value)
        return Marked(found.changed | index.changed[..., None], found.zero)

    def scatter_add(self, x: Any, index: Any, like: Any) -> Any:
        found = super().scatter_add(x, index.value, like)
        return Marked(found.changed | bool(index.changed.any()), found.zero & ~index.changed.any())


def _any(x: Array, y: Array) -> Array:
    """The product of truth values: whether some k has x[i, k] and y[k, j]."""
    return np.asarray(x.astype(np.float32) @ y.astype(np.float32) > 0)
