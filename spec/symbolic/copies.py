"""Copies: entries of a result that are other numbers as they are.

A query that sees a single key has the weight 1 for it, whatever the score, and gets its values as
they are. So what is returned can be compared with what else is returned, or with an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvac.spec.grammar.equations import evaluate
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.rearrangements import Rearrangements
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.grammar.syntax import Op, Program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Known:
    """Values, which of them have to be just so, and how far off what they are copied from is."""

    value: Array
    known: Array
    room: Array

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.value.shape
        return shape

    @property
    def one(self) -> Array:
        """Where a value is exactly 1."""
        return np.asarray(self.known & (self.value == 1))

    @property
    def zero(self) -> Array:
        """Where a value is exactly 0."""
        return np.asarray(self.known & (self.value == 0))

    def rearranged(self, function: Callable[[Array], Array]) -> Known:
        return Known(function(self.value), function(self.known), function(self.room))


def copies(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int | Scalar],
    outputs: Mapping[str, Array],
    rooms: Mapping[str, Array],
    conventions: Mapping[str, str] | None = None,
) -> Mapping[str, Known]:
    """What the quantities have to be, given the inputs and what was returned.

    `rooms` says how far each of `outputs` may be off. A quantity that has no entry to be copied,
    other than 0, is left out; so are weights, whose ones and zeros are nobody's values.
    """
    algebra = Copies(outputs, rooms, conventions)
    given = {
        tensor.name: algebra.exact(inputs[tensor.name])
        if tensor.kind == "real"
        else inputs[tensor.name]
        for tensor in program.inputs
    }
    evaluate(program, algebra, given, sizes)
    nonlinear = {
        equation.target.name
        for equation in program.equations
        if isinstance(equation.expression, Op) and operation(equation.expression.name).is_nonlinear
    }
    return {name: value for name, value in algebra.found.items() if name not in nonlinear}


class Copies(Rearrangements):
    """The algebra of known values; a rounded one is unknown."""

    def __init__(
        self,
        outputs: Mapping[str, Array],
        rooms: Mapping[str, Array],
        conventions: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(conventions)
        self._outputs = outputs
        self._rooms = rooms
        self.found: dict[str, Known] = {}

    def exact(self, array: Array) -> Known:
        real = array.astype(np.float64)
        return Known(real, np.ones(real.shape, bool), np.zeros(real.shape))

    def constant(self, array: Array) -> Known:
        return self.exact(array)

    def center(self, x: Known) -> Array:
        return x.value

    def report(self, name: str, value: Known) -> Known:
        """What has to be just so stays; else what was returned is what later equations copy."""
        known = value.known & (value.value != 0)
        if known.any():
            self.found[name] = Known(value.value, known, value.room)
        if name not in self._outputs:
            return value
        told = self._outputs[name].astype(np.float64)
        return Known(
            np.where(value.known, value.value, told),
            np.ones(value.shape, bool),
            np.where(value.known, value.room, self._rooms.get(name, 0.0)),
        )

    def matmul(self, x: Known, y: Known) -> Known:
        """A sum of which one term alone is not 0, and has a factor 1."""
        terms = _product(~x.zero, ~y.zero)
        left, right = _only(x, x.one), _only(y, y.one)
        copied = _product(x.one, y.known & ~y.zero) + _product(x.known & ~x.zero, y.one)
        twice = _product(x.one, y.one)
        known = (terms == 0) | ((terms == 1) & (copied - twice == 1))
        value = left.value @ _only(y).value + _only(x).value @ right.value - twice
        room = left.value @ _only(y).room + _only(x).room @ right.value
        return _where(known, value, room)

    def add(self, x: Known, y: Known) -> Known:
        known = (x.known & y.zero) | (x.zero & y.known)
        return _where(known, _only(x).value + _only(y).value, _only(x).room + _only(y).room)

    def subtract(self, x: Known, y: Known) -> Known:
        return self.add(x, self.negate(y))

    def multiply(self, x: Known, y: Known) -> Known:
        known = x.zero | y.zero | (x.one & y.known) | (x.known & y.one)
        room = np.where(x.one, _only(y).room, _only(x).room)
        return _where(known, _only(x).value * _only(y).value, room)

    def negate(self, x: Known) -> Known:
        return Known(-x.value, x.known, x.room)

    def scale(self, x: Known, s: Scalar) -> Known:
        return x if float(s) == 1 else _where(x.zero, x.value, x.room)

    def shift(self, x: Known, s: Scalar) -> Known:
        return x if float(s) == 0 else _nothing(x.shape)

    def sum(self, x: Known, axis: int) -> Known:
        terms = (~x.zero).sum(axis, keepdims=True)
        known = (terms == 0) | ((terms == 1) & (x.known | x.zero).all(axis, keepdims=True))
        parts = (_only(x).value.sum(axis, keepdims=True), _only(x).room.sum(axis, keepdims=True))
        return _where(known, *parts)

    def softmax(self, x: Known, axis: int, where: Array | None) -> Known:
        """The weight 1 where one key alone is kept, and 0 behind a mask."""
        kept = np.broadcast_to(True if where is None else where, x.shape)
        count = np.broadcast_to(kept.sum(axis, keepdims=True), x.shape)
        nothing = (count == 0) & (self.empty_row != "zeros")
        known = (count == 1) | (~kept & ~nothing)
        return _where(known, kept & (count == 1), np.zeros(x.shape))

    def tanh(self, x: Known) -> Known:
        """0 of 0; else rounded."""
        return _where(x.zero, x.value, x.room)


def _nothing(shape: tuple[int, ...]) -> Known:
    return Known(np.zeros(shape), np.zeros(shape, bool), np.zeros(shape))


def _where(known: Array, value: Array, room: Array) -> Known:
    """Values where they are known, and 0 elsewhere."""
    return Known(np.where(known, value, 0.0), known, np.where(known, room, 0.0))


def _only(x: Known, which: Array | None = None) -> Known:
    known = x.known if which is None else which
    return _where(known, x.value, x.room)


def _product(x: Array, y: Array) -> Array:
    return x.astype(np.float64) @ y.astype(np.float64)
