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

from qkvac.spec.grammar.algebra import Algebra
from qkvac.spec.grammar.axes import axes_of, is_scalar
from qkvac.spec.grammar.operation import Axes
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.parsing import parse
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.grammar.syntax import (
    Equation,
    Expr,
    Number,
    Op,
    Program,
    Ref,
    SpecError,
    Tensor,
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
    exact = operation(expression.name).exact
    if exact is None:
        raise SpecError(f"{expression.name} is not an operation on scalars")
    value: Scalar = exact(*(fold(argument, sizes) for argument in expression.args))
    return value


def evaluate(
    program: Program,
    algebra: Algebra,
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
    tensors = {tensor.name: tensor for tensor in program.inputs}
    values: dict[str, Any] = {name: inputs[name] for name in tensors}
    results = dict[str, Any]()
    evaluator = _Evaluator(algebra, values, tensors, sizes, fold)
    for equation in program.equations:
        name = equation.target.name
        value = evaluator.value(equation.expression)
        results[name] = algebra.report(name, value)
        # A part is noted, and goes on as it was computed.
        values[name] = value if equation.part else results[name]
        tensors[name] = equation.target
    return results


@dataclass(frozen=True)
class _Evaluator:
    """The values so far; implements `qkvac.spec.grammar.operation.Evaluation`."""

    algebra: Algebra
    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, Any]
    fold: Fold

    def value(self, node: Expr) -> Any:
        if isinstance(node, Ref):
            return self.values[node.name]
        assert isinstance(node, Op), "a number is a scalar"
        return operation(node.name).evaluate(self, node)

    def axes(self, node: Expr) -> Axes:
        return axes_of(node, self.tensors)

    def is_scalar(self, node: Expr) -> bool:
        return is_scalar(node, self.tensors)

    def scalar(self, node: Expr) -> Any:
        return self.fold(node, self.sizes)

    def reciprocal(self, node: Expr) -> Any:
        value = self.fold(node, self.sizes)
        return Scalar.of(1) / value if isinstance(value, Scalar) else value

    def size(self, node: Expr) -> Any:
        value = self.fold(node, self.sizes)
        return int(value.rational()) if isinstance(value, Scalar) else value

    def lifted(self, node: Expr, rank: int, keep: int = 0) -> Any:
        value, own = self.value(node), len(self.axes(node))
        if own == rank:
            return value
        return self.ask("lift", value, -(keep or own), rank - own)

    def ask(self, method: str, *operands: Any) -> Any:
        function = getattr(self.algebra, method, None)
        if function is None:
            kind = type(self.algebra).__name__
            raise SpecError(f"the algebra {kind} has no operation {method}")
        return function(*operands)
