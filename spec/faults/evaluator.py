"""The evaluator of faulty programs, in NumPy: a machine, its shapes and its rounding bounds.

A machine computes a program in a dtype, as a plain implementation would: operations in the dtype,
or in float32 where that is wider, results of equations rounded to be stored. Besides the grammar
it knows the operations of `operations.mistakes`. `Bounds` extends the rounding interpretation to
those of them that are functions of real numbers, so that a faulty formula, too, is known to
within a bound; of poor arithmetic there is none, only the machine's own result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.rounding import OpenSum, Rounding
from qkvac.spec.faults.operations import low_precision
from qkvac.spec.faults.operations.gradient_mistakes import SUMS
from qkvac.spec.faults.operations.mistakes import BY_RANK, MISTAKES, Array
from qkvac.spec.formats import dtype
from qkvac.spec.grammar.equations import evaluate
from qkvac.spec.grammar.rearrangements import Rearrangements
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.grammar.syntax import Program
from qkvac.spec.symbolic import shapes
from qkvac.spec.symbolic.shapes import Shape, Shapes


class Machine(Rearrangements):
    """The algebra of arrays in a dtype."""

    def __init__(self, name: str, conventions: Mapping[str, str] | None = None) -> None:
        super().__init__(conventions)
        self.stored = dtype(name)
        self.inner = np.promote_types(self.stored, np.float32)

    def report(self, name: str, x: Array) -> Array:
        return x.astype(self.stored)

    def center(self, x: Array) -> Array:
        return x.astype(np.float64)

    def constant(self, array: Array) -> Array:
        return self.wide(array)

    def wide(self, x: Array) -> Array:
        return x if x.dtype.kind in "biu" else x.astype(self.inner, copy=False)

    def matmul(self, x: Array, y: Array) -> Array:
        return np.asarray(self.wide(x) @ self.wide(y))

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(self.wide(x) + self.wide(y))

    def subtract(self, x: Array, y: Array) -> Array:
        return np.asarray(self.wide(x) - self.wide(y))

    def multiply(self, x: Array, y: Array) -> Array:
        return np.asarray(self.wide(x) * self.wide(y))

    def negate(self, x: Array) -> Array:
        return -x

    def scale(self, x: Array, s: Scalar) -> Array:
        return np.asarray(self.wide(x) * self.inner.type(float(s)))

    def shift(self, x: Array, s: Scalar) -> Array:
        return np.asarray(self.wide(x) + self.inner.type(float(s)))

    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(self.wide(x).sum(axis, keepdims=True))

    def softmax(self, x: Array, axis: int, where: Array | None) -> Array:
        moved = np.swapaxes(self.wide(x), axis, -1)
        mask = where if where is None or axis == -1 else np.swapaxes(where, axis, -1)
        weights = low_precision.softmax(moved, mask)
        if mask is not None:
            empty = ~np.broadcast_to(mask, weights.shape).any(-1, keepdims=True)
            weights = np.where(empty, np.zeros((), weights.dtype), weights)
        return np.swapaxes(weights, axis, -1)

    def sigmoid(self, x: Array) -> Array:
        wide = self.wide(x)
        return np.asarray(1 / (1 + np.exp(-wide)))

    def tanh(self, x: Array) -> Array:
        return np.asarray(np.tanh(self.wide(x)))

    def __getattr__(self, name: str) -> Callable[..., Array]:
        """An operation that only faulty equations use."""
        if name not in MISTAKES:
            raise AttributeError(name)
        function = MISTAKES[name].function
        return lambda *operands: function(*map(self.wide, operands))


class FaultyShapes(Shapes):
    """Shapes, with the operations of faulty equations."""

    def __getattr__(self, name: str) -> Callable[..., Shape]:
        if name not in MISTAKES:
            raise AttributeError(name)
        kind = MISTAKES[name].kind
        if kind == "poor product":
            return self.matmul
        if kind == "placed":
            return lambda x, *others: x
        if kind.endswith("sum"):
            return lambda x, *others: others[-1]
        return self.take if kind == "lookup" else self.unmoved

    def unmoved(self, x: Shape, *others: Shape) -> Shape:
        for other in others:
            if self._elementwise(x, other) != x:
                raise shapes.ShapeError(f"a mask {other} does not broadcast to {x}")
        return x


class Bounds(Rounding):
    """Rounding bounds of faulty formulas; raises AttributeError for poor arithmetic."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        mistake = MISTAKES.get(name)
        if mistake is None or mistake.kind.startswith("poor"):
            raise AttributeError(name)
        function = mistake.function
        if mistake.kind == "sum":
            right = getattr(self, SUMS[name][1])
            return lambda *operands: self.summed_otherwise(function, right(*operands), *operands)
        if mistake.kind == "mask":
            return lambda *operands: function(*map(self.plain, operands))
        if mistake.kind == "smooth":
            rule = _RULES.get(name[:-2] if name[:-2] in BY_RANK else name, _as_softmax)
            return lambda x, *masks: self.smooth(rule, function, x, *masks)
        return lambda x, *others: (
            function(x, *others)
            if isinstance(x, np.ndarray)
            else x.rearranged(lambda array: function(array, *others))
        )

    def plain(self, x: Any) -> Array:
        """A mask or an index, or the values of an additive mask."""
        return x if isinstance(x, np.ndarray) else self.center(x)

    def summed_otherwise(self, function: Callable[..., Array], total: Any, *operands: Any) -> Any:
        """Some of the terms of a sum, or a share of it: no further off than all of them."""
        unit = max(self.arithmetic.u_e, self.arithmetic.u_a)
        value = function(operands[0].value, *map(self.plain, operands[1:]))
        off = self.held(total, self.u_held) + 2 * unit * np.abs(value) + 2 * self.floor
        return OpenSum(value, np.abs(value) + off, off, grain=unit)

    def smooth(self, rule: Rule, function: Callable[..., Array], x: OpenSum, *masks: Any) -> Any:
        a = self.arithmetic
        error = np.broadcast_to(np.asarray(self.held(x, self.u_held)), x.shape)
        value = function(x.value, *masks)
        unit = max(a.u_e, a.u_a)
        off = rule(x.value, error, value, unit) + 2 * self.floor
        return OpenSum(value, np.abs(value) + off, off, grain=a.u_e)


Rule = Callable[[Array, Array, Array, float], Array]
"""Arguments, their errors, values and unit roundoff → errors of the values."""


def _exponents(x: Array, error: Array, unit: float) -> Array:
    """Relative error of e^(x − max x) in terms of the row, first order and generous."""
    depth = np.abs(x - low_precision.row_maximum(x))
    theta = 2 * np.max(error, axis=-1, keepdims=True) + error + 3 * unit * depth + 8 * unit
    return np.asarray(np.expm1(np.minimum(theta, 600.0)))


def _as_exponential(x: Array, error: Array, value: Array, unit: float) -> Array:
    return np.abs(value) * _exponents(x, error, unit)


def _as_softmax(x: Array, error: Array, value: Array, unit: float) -> Array:
    """Weights of a row: twice the error of an exponential, and that of the sum."""
    n = x.shape[-1] + 16
    worst = np.max(error, axis=(-1, -2), keepdims=True) + np.zeros_like(error)
    return np.asarray(np.abs(value) * (2.5 * _exponents(x, worst, unit) + 2 * n * unit))


def _over_columns(x: Array, error: Array, value: Array, unit: float) -> Array:
    relative = _exponents(x, error, unit)
    worst = np.max(relative, axis=-2, keepdims=True)
    return np.asarray(np.abs(value) * (relative + worst + (x.shape[-2] + 4) * unit) * 1.5)


def _of_all(x: Array, error: Array, value: Array, unit: float) -> Array:
    flat = (*x.shape[:-2], 1, x.shape[-2] * x.shape[-1])
    found = _as_softmax(x.reshape(flat), error.reshape(flat), value.reshape(flat), unit)
    return found.reshape(x.shape)


def _of_samples(x: Array, error: Array, value: Array, unit: float) -> Array:
    worst = np.max(error, initial=0.0) + np.zeros_like(error)
    count = x.shape[0] * x.shape[-1] + 16
    top = np.max(low_precision.row_maximum(x), axis=0, keepdims=True, initial=-np.inf)
    theta = 3 * worst + 3 * unit * np.abs(x - top) + 8 * unit
    relative = np.expm1(np.minimum(theta, 600.0))
    return np.asarray(np.abs(value) * (2.5 * relative + 2 * count * unit))


def _kept(x: Array, error: Array, value: Array, unit: float) -> Array:
    """Entries that are kept or replaced by constants."""
    return error


def _moved_by_constant(x: Array, error: Array, value: Array, unit: float) -> Array:
    return np.asarray(error + 2 * unit * np.abs(value))


def _mean(axis: int) -> Rule:
    def rule(x: Array, error: Array, value: Array, unit: float) -> Array:
        size = (np.abs(x) + error).mean(axis=axis, keepdims=True)
        off = error.mean(axis=axis, keepdims=True) + (x.shape[axis] + 1) * unit * size
        return np.broadcast_to(off, x.shape)

    return rule


def _shares(x: Array, error: Array, value: Array, unit: float) -> Array:
    total = np.abs(x.sum(axis=-1, keepdims=True))
    size = np.abs(x).sum(axis=-1, keepdims=True)
    off = error.sum(axis=-1, keepdims=True) + x.shape[-1] * unit * size
    left = total - off
    grown = (error + np.abs(value) * off) / left + 3 * unit * np.abs(value)
    return np.where(left > 0, grown, np.inf)


def _sigmoid(x: Array, error: Array, value: Array, unit: float) -> Array:
    return np.asarray(value * np.expm1(np.minimum(error, 600)) + 8 * unit * value * (1 + np.abs(x)))


def _best_only(x: Array, error: Array, value: Array, unit: float) -> Array:
    reach = np.sort(x - error, axis=-1)[..., -1:]
    return np.broadcast_to(((x + error >= reach).sum(-1, keepdims=True) > 1) * 1.0, x.shape)


def _logarithms(x: Array, error: Array, value: Array, unit: float) -> Array:
    worst = np.max(error, axis=-1, keepdims=True)
    depth = np.abs(x - low_precision.row_maximum(x)) + np.abs(value)
    return np.asarray(error + 2 * worst + unit * (3 * depth + x.shape[-1] + 12))


def _cap(x: Array, error: Array, value: Array, unit: float) -> Array:
    return error + 12 * unit * np.abs(value)


def _penalised(x: Array, error: Array, value: Array, unit: float) -> Array:
    return np.asarray(error + 4 * unit * (np.abs(x) + np.abs(value - x)))


def _unit(x: Array, error: Array, value: Array, unit: float) -> Array:
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    off = np.sqrt((error * error).sum(axis=-1, keepdims=True))
    left = length - off
    grown = (error + np.abs(value) * off) / left + (x.shape[-1] + 8) * unit * np.abs(value)
    return np.where(left > 0, grown, np.inf)


_RULES: Mapping[str, Rule] = {
    "exponential": _as_exponential,
    "by_count": _as_exponential,
    "over_columns": _over_columns,
    "softmax_of_all": _of_all,
    "shares": _shares,
    "sigmoids": _sigmoid,
    "best_only": _best_only,
    "logarithms": _logarithms,
    "cap": _cap,
    "penalised": _penalised,
    "unit": _unit,
    **dict.fromkeys(("fill_100", "fill_1e4", "fill_1e9", "fill_lowest", "floored"), _kept),
    **dict.fromkeys(("empty_undefined", "empty_first", "beside_empty"), _kept),
    "masked_undefined": _kept,
    **dict.fromkeys(
        ("lowered_1e4", "lowered_1e9", "infinity_times", "empty_uniform"), _moved_by_constant
    ),
    "mean_of_heads": _mean(-3),
    "mean_of_samples": _mean(0),
    "softmax_of_samples": _of_samples,
}


def is_poor(operation: str) -> bool:
    """Whether an operation stands for poor arithmetic, which has no rounding bounds."""
    return MISTAKES[operation].kind.startswith("poor")


def lifted(array: Array, rank: int) -> Array:
    """An array with its declared number of axes at least: masks may come with fewer."""
    return array.reshape(*(1,) * (rank - array.ndim), *array.shape)


def compute(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, Any],
    name: str,
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """Every equation's target, as a machine of dtype `name` computes it.

    `conventions` as in `Rearrangements`.
    """
    with np.errstate(all="ignore"):
        kept = {tensor.name: lifted(inputs[tensor.name], tensor.rank) for tensor in program.inputs}
        return evaluate(program, Machine(name, conventions), kept, sizes)


def bounds(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, Any],
    arithmetic: Arithmetic,
    inherited: Mapping[str, int],
) -> dict[str, Array]:
    """As `rounding.bounds`, for faulty formulas."""
    algebra = Bounds(arithmetic)
    with np.errstate(all="ignore"):
        values = {
            tensor.name: algebra.operand(
                lifted(inputs[tensor.name], tensor.rank), inherited.get(tensor.name, 0)
            )
            if tensor.kind == "real"
            else lifted(np.asarray(inputs[tensor.name]), tensor.rank)
            for tensor in program.inputs
        }
        evaluate(program, algebra, values, sizes)
    return algebra.bounds
