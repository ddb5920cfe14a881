"""The axes of an expression, as scalar expressions over axis names.

Where `syntax.rank_of` counts axes, this names them: what a derivation introduces (a part of an
expression, a cotangent) can be declared as if somebody had written it down.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from qkvac.spec.syntax import Expr, Number, Op, Program, Ref, Tensor, is_scalar, walk

Axes = tuple[Expr, ...]

ONE: Final = Number(Fraction(1))


def axes_of(expression: Expr, tensors: Mapping[str, Tensor]) -> Axes:
    """Declared axes of a well-formed expression, outermost first; none for a scalar."""
    if isinstance(expression, Ref) and expression.name in tensors:
        return tensors[expression.name].axes
    if not isinstance(expression, Op) or is_scalar(expression, tensors):
        return ()
    args = expression.args
    axes = [axes_of(argument, tensors) for argument in args]
    first = axes[0]
    match expression.name:
        case "add" | "subtract" | "multiply" | "conjunction":
            return broadcast(*axes)
        case "matmul":
            left, right = axes
            return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
        case "transpose":
            return (*first[:-2], first[-1], first[-2])
        case "sum":
            assert expression.axis is not None
            return (*first[: expression.axis], ONE, *first[expression.axis + 1 :])
        case "split":
            return (*first[:-2], args[1], first[-2], _divided(first[-1], args[1]))
        case "merge":
            return (*first[:-3], first[-2], _multiplied(first[-3], first[-1]))
        case "repeat":
            return (*first[:-3], args[1], *first[-2:])
        case "take":
            return (*axes[1], first[-1])
        case "head":
            return (args[1], *first[1:])
        case "sum_to" | "scatter_add" | "pad":
            return axes[-1]
        case "causal":
            return args
        case _:
            return first


def broadcast(x: Axes, y: Axes) -> Axes:
    """Axes of an elementwise result: the longer list, with what stands against a 1."""
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    lead = len(longer) - len(shorter)
    pairs = zip(longer[lead:], shorter, strict=True)
    return (*longer[:lead], *(right if left == ONE else left for left, right in pairs))


def is_broadcast(own: Axes, result: Axes) -> bool:
    """Whether a tensor with axes `own` is repeated along some axis of `result`."""
    if len(own) < len(result):
        return True
    return any(left == ONE != right for left, right in zip(own, result, strict=False))


def _divided(axis: Expr, by: Expr) -> Expr:
    if isinstance(axis, Op) and axis.name == "multiply" and by in axis.args:
        return axis.args[1 - axis.args.index(by)]
    return Op("divide", (axis, by))


def _multiplied(heads: Expr, width: Expr) -> Expr:
    if isinstance(width, Op) and width.name == "divide" and width.args[1] == heads:
        return width.args[0]
    return Op("multiply", (heads, width))


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
