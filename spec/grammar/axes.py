"""The axes of an expression, as scalar expressions over axis names.

What a derivation introduces (a part of an expression, a cotangent) is so declared as if somebody
had written it down.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qkvac.spec.grammar.operation import Axes
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.rules import ONE
from qkvac.spec.grammar.syntax import Expr, Number, Op, Program, Ref, SpecError, Tensor, walk


def axes_of(
    expression: Expr, tensors: Mapping[str, Tensor], scalars: Collection[str] | None = None
) -> Axes:
    """Declared axes of an expression, outermost first; none for a scalar.

    `scalars` are the other names that it may refer to, any by default. Raises SpecError for an
    ill-formed expression.
    """
    if isinstance(expression, Number):
        return ()
    if isinstance(expression, Ref):
        if expression.name in tensors:
            return tensors[expression.name].axes
        if scalars is not None and expression.name not in scalars:
            raise SpecError(f"{expression.name} is used before it is defined")
        return ()
    operands = [axes_of(argument, tensors, scalars) for argument in expression.args]
    return operation(expression.name).axes(expression, operands)


def is_scalar(expression: Expr, tensors: Mapping[str, Any]) -> bool:
    """Whether the expression is built from axis names, parameters and numbers alone."""
    if isinstance(expression, Ref):
        return expression.name not in tensors
    if isinstance(expression, Number):
        return True
    exact = operation(expression.name).exact is not None
    return exact and all(is_scalar(argument, tensors) for argument in expression.args)


def is_broadcast(own: Axes, result: Axes) -> bool:
    """Whether a tensor with axes `own` is repeated along some axis of `result`."""
    if len(own) < len(result):
        return True
    return any(left == ONE != right for left, right in zip(own, result, strict=False))


def positive_axes(program: Program) -> frozenset[str]:
    """Names of axes that must not be 0: they stand under a root, below a bar, or count heads."""
    expressions = [e.expression for e in program.equations]
    expressions += [axis for tensor in program.tensors.values() for axis in tensor.axes]
    found = set[str]()
    for node in (node for expression in expressions for node in walk(expression)):
        if isinstance(node, Op) and node.name in ("sqrt", "divide", "split"):
            below = node.args[0] if node.name == "sqrt" else node.args[1]
            found.update(part.name for part in walk(below) if isinstance(part, Ref))
    return frozenset(found & set(program.axis_names))
