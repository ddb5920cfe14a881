"""The equations of a spec text, and their evaluation over an algebra.

A parsed program is evaluated over algebras: objects with one method per operation, whose values
may be shapes, balls, error bounds or operation counts. Nothing about attention is written twice.
Declared axes are the trailing ones; further leading axes are batch axes and broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvac.spec.parsing import parse
from qkvac.spec.scalar import Scalar
from qkvac.spec.syntax import (
    ELEMENTWISE,
    Equation,
    Expr,
    Number,
    Op,
    Program,
    Ref,
    SpecError,
    Tensor,
    is_scalar,
    rank_of,
    walk,
)

__all__ = [
    "Equation",
    "Expr",
    "Fold",
    "Masks",
    "Number",
    "Op",
    "Program",
    "Ref",
    "SpecError",
    "Tensor",
    "evaluate",
    "fold",
    "parse",
    "walk",
]


class Masks:
    """What all numeric algebras share: a mask is a plain boolean array, True keeps."""

    def causal(self, length: int, keys: int, alignment: str = "top-left") -> np.ndarray:
        """[L, S]: query i keeps key j iff j ≤ i, or j ≤ i + S − L when bottom-right."""
        offset = keys - length if alignment == "bottom-right" else 0
        return np.tri(length, keys, offset, dtype=bool)

    def finite(self, mask: Any) -> np.ndarray:
        """Where an additive mask is not −inf; `mask` is the algebra's value of an exact input."""
        return np.asarray(np.isfinite(self.center(mask)))

    def conjunction(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(left & right)

    def center(self, value: Any) -> np.ndarray:
        """A float64 array that shows which entries of `value` are finite."""
        raise NotImplementedError


Fold = Callable[[Expr, Mapping[str, Any]], Any]


def fold(expression: Expr, sizes: Mapping[str, Any]) -> Scalar:
    """The exact value of a scalar expression; `sizes` binds axis names and parameters."""
    if isinstance(expression, Ref):
        return Scalar.of(sizes[expression.name])
    if isinstance(expression, Number):
        return Scalar(expression.value)
    args = [fold(arg, sizes) for arg in expression.args]
    if expression.name == "sqrt":
        return args[0].sqrt()
    if expression.name == "negate":
        return -args[0]
    if expression.name == "multiply":
        return args[0] * args[1]
    if expression.name == "divide":
        return args[0] / args[1]
    if expression.name == "add":
        return args[0] + args[1]
    if expression.name == "subtract":
        return args[0] - args[1]
    raise SpecError(f"{expression.name} is not an operation on scalars")


def evaluate(
    program: Program,
    algebra: Any,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    *,
    fold: Fold = fold,
) -> dict[str, Any]:
    """The algebra's value of every equation's target, in the order of the text.

    `inputs` binds the declared inputs to values of the algebra, `sizes` the axis names and scalar
    parameters to numbers. Axes are handed to the algebra as negative numbers, so that leading
    batch axes need no care there.
    """
    values: dict[str, Any] = {tensor.name: inputs[tensor.name] for tensor in program.inputs}
    ranks = {tensor.name: tensor.rank for tensor in program.inputs}
    results = dict[str, Any]()
    for equation in program.equations:
        evaluator = _Evaluator(algebra, values, ranks, sizes, fold)
        value, _ = evaluator.tensor(equation.expression)
        name = equation.target.name
        results[name] = algebra.report(name, value)
        # A part is noted, and goes on as it was computed.
        values[name] = value if equation.part else results[name]
        ranks[name] = equation.target.rank
    return results


@dataclass(frozen=True)
class _Evaluator:
    algebra: Any
    values: Mapping[str, Any]
    ranks: Mapping[str, int]
    sizes: Mapping[str, Any]
    fold: Fold

    def tensor(self, expression: Expr) -> tuple[Any, int]:
        """Value and number of declared axes of a tensor-valued expression."""
        if isinstance(expression, Ref):
            return self.values[expression.name], self.ranks[expression.name]
        assert isinstance(expression, Op), "a number is a scalar"
        name, args, algebra = expression.name, expression.args, self.algebra
        rank = rank_of(expression, self.ranks, frozenset(self.sizes))
        if name in ("multiply", "divide", "add", "subtract"):
            scalar = [is_scalar(arg, self.values) for arg in args]
            if any(scalar):
                return self.with_scalar(name, args, scalar), rank
        if name in ELEMENTWISE:
            return getattr(algebra, name)(*self.aligned(args, keep=0)), rank
        if name == "matmul":
            return algebra.matmul(*self.aligned(args, keep=2)), rank
        if name == "softmax":
            x, inner = self.tensor(args[0])
            where = self.lifted(args[1], inner, keep=0) if len(args) > 1 else None
            return algebra.softmax(x, self.axis(expression, inner), where), rank
        if name == "sum":
            x, inner = self.tensor(args[0])
            return algebra.sum(x, self.axis(expression, inner)), rank
        if name == "sum_to":
            x, inner = self.tensor(args[0])
            missing = inner - rank
            # Batch axes are those that a declaration leaves out, so `like` is brought to its rank.
            total = algebra.sum_to(x, self.lifted(args[1], inner, keep=0))
            return (algebra.drop(total, missing - inner, missing) if missing > 0 else total), rank
        if name == "causal":
            return algebra.causal(*(self.size(arg) for arg in args)), rank
        if name in ("split", "repeat", "head"):
            if name == "head":
                x, inner = self.tensor(args[0])
                return algebra.head(x, self.size(args[1]), -inner), rank
            return getattr(algebra, name)(self.tensor(args[0])[0], self.size(args[1])), rank
        # transpose, negate, merge, finite, take, scatter_add, pad: tensors throughout
        return getattr(algebra, name)(*(self.tensor(arg)[0] for arg in args)), rank

    def with_scalar(self, name: str, args: tuple[Expr, ...], scalar: list[bool]) -> Any:
        """Tensor ∘ scalar or scalar ∘ tensor, for the four arithmetic operations."""
        x, _ = self.tensor(args[1] if scalar[0] else args[0])
        s = self.fold(args[0] if scalar[0] else args[1], self.sizes)
        if name == "multiply":
            return self.algebra.scale(x, s)
        if name == "divide":
            return self.algebra.scale(x, Scalar.of(1) / s if isinstance(s, Scalar) else s)
        if name == "subtract":
            return (
                self.algebra.shift(self.algebra.negate(x), s)
                if scalar[0]
                else self.algebra.shift(x, -s)
            )
        return self.algebra.shift(x, s)

    def axis(self, expression: Op, rank: int) -> int:
        assert expression.axis is not None
        return expression.axis - rank

    def size(self, expression: Expr) -> Any:
        value = self.fold(expression, self.sizes)
        return int(value.rational()) if isinstance(value, Scalar) else value

    def aligned(self, args: tuple[Expr, ...], keep: int) -> list[Any]:
        """Operands with singleton axes inserted where their numbers of declared axes differ."""
        ranks = [rank_of(arg, self.ranks, frozenset(self.sizes)) for arg in args]
        return [self.lifted(arg, max(ranks), keep) for arg in args]

    def lifted(self, expression: Expr, rank: int, keep: int) -> Any:
        """The value with `rank` declared axes; new ones stand before the last `keep` (0: all)."""
        value, own = self.tensor(expression)
        if own >= rank:
            return value
        return self.algebra.lift(value, -(keep or own), rank - own)
