"""What a spec text consists of: expressions, declared tensors, equations, programs.

All are frozen values. Derivations (faults, adjoints) rewrite them; algebras evaluate them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

Kind = Literal["real", "mask", "index"]


class SpecError(ValueError):
    """A spec text, or a case's claim, that is wrong in itself."""


@dataclass(frozen=True)
class Ref:
    """A tensor, an axis size or a scalar parameter, by name."""

    name: str


@dataclass(frozen=True)
class Number:
    value: Fraction


@dataclass(frozen=True)
class Op:
    """An operation of the grammar: `args` are expressions, `axis` counts declared axes."""

    name: str
    args: tuple[Expr, ...]
    axis: int | None = None


Expr = Ref | Number | Op


@dataclass(frozen=True)
class Tensor:
    """A declared tensor: `axes` are scalar expressions over axis names, outermost first."""

    name: str
    axes: tuple[Expr, ...]
    kind: Kind = "real"

    @property
    def rank(self) -> int:
        return len(self.axes)


@dataclass(frozen=True)
class Equation:
    target: Tensor
    expression: Expr
    text: str
    line: int
    part: bool = False
    """Whether this only names a part of an expression: nothing is stored, reported or judged."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Names that the right-hand side refers to, in order of appearance."""
        nodes = walk(self.expression)
        return tuple(dict.fromkeys(node.name for node in nodes if isinstance(node, Ref)))


@dataclass(frozen=True)
class Program:
    """A parsed spec text."""

    inputs: tuple[Tensor, ...]
    parameters: tuple[str, ...]
    equations: tuple[Equation, ...]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every declared tensor by name: the inputs, then the targets."""
        targets = (equation.target for equation in self.equations)
        return {tensor.name: tensor for tensor in (*self.inputs, *targets)}

    @property
    def axis_names(self) -> tuple[str, ...]:
        axes = (axis for tensor in self.tensors.values() for axis in tensor.axes)
        return tuple(dict.fromkeys(n.name for a in axes for n in walk(a) if isinstance(n, Ref)))

    def equation(self, name: str) -> Equation:
        """The equation that defines `name`; raises KeyError for an input."""
        for equation in self.equations:
            if equation.target.name == name:
                return equation
        raise KeyError(name)

    def restricted(self, given: frozenset[str], wanted: str) -> Program:
        """The equations that compute `wanted` when the tensors in `given` are inputs.

        This is how clause L re-evaluates an equation on a backend's own operands.
        """
        needed, pending, inputs = set[str](), [wanted], dict[str, Tensor]()
        tensors, own = self.tensors, {tensor.name for tensor in self.inputs}
        while pending:
            name = pending.pop()
            if name in needed:
                continue
            needed.add(name)
            for operand in self.equation(name).operands:
                if operand in given or operand in own:
                    inputs[operand] = tensors[operand]
                elif operand in tensors:
                    pending.append(operand)
        return Program(
            tuple(tensor for name, tensor in tensors.items() if name in inputs),
            self.parameters,
            tuple(equation for equation in self.equations if equation.target.name in needed),
        )


def walk(expression: Expr) -> Iterator[Expr]:
    """`expression` and everything below it, depth first."""
    yield expression
    if isinstance(expression, Op):
        for argument in expression.args:
            yield from walk(argument)


ELEMENTWISE: Final = ("add", "subtract", "multiply", "conjunction")


def is_scalar(expression: Expr, tensors: Mapping[str, Any]) -> bool:
    """Whether the expression is built from axis names, parameters and numbers alone."""
    if isinstance(expression, Ref):
        return expression.name not in tensors
    if isinstance(expression, Number):
        return True
    return expression.name != "causal" and all(is_scalar(arg, tensors) for arg in expression.args)


def _takes_scalars(expression: Op) -> list[bool]:
    """For each operand of a function, whether it is a scalar."""
    if expression.name in ("sqrt", "causal"):
        return [True] * len(expression.args)
    if expression.name in ("split", "repeat", "head"):
        return [False, True]
    return [False] * len(expression.args)


def rank_of(expression: Expr, ranks: Mapping[str, int], scalars: set[str] | frozenset[str]) -> int:
    """Number of declared axes of an expression (0 for a scalar); raises SpecError if ill-formed."""
    if isinstance(expression, Ref):
        if expression.name not in ranks and expression.name not in scalars:
            raise SpecError(f"{expression.name} is used before it is defined")
        return ranks.get(expression.name, 0)
    if isinstance(expression, Number):
        return 0
    name, args = expression.name, [rank_of(arg, ranks, scalars) for arg in expression.args]
    first = args[0]
    if name in ("add", "subtract", "multiply"):
        return max(args)
    if name == "divide":
        if args[1]:
            raise SpecError("only a scalar may stand below the bar of /")
        return first
    if name == "negate":
        return first
    for position, (rank, scalar) in enumerate(zip(args, _takes_scalars(expression), strict=True)):
        if scalar != (rank == 0):
            wanted = "a scalar" if scalar else "a tensor"
            raise SpecError(f"{name} takes {wanted} as operand {position + 1}")
    if name == "sqrt":
        return 0
    if name == "causal":
        return 2
    if name == "conjunction":
        return max(args)
    if name in ("matmul", "transpose") and min(args) < 2:
        raise SpecError(f"{name} needs operands with at least 2 declared axes")
    if name in ("softmax", "sum"):
        axis = expression.axis
        if axis is None or not 0 <= axis < first:
            raise SpecError(f"{name} over axis {axis} of a tensor with {first} declared axes")
        if name == "softmax" and max(args) > first:
            raise SpecError(f"a mask with {args[1]} declared axes for scores with {first}")
    if name == "take" and first != 2:
        raise SpecError(f"take needs a table with 2 declared axes, got {first}")
    needed = {"split": 2, "merge": 3, "repeat": 3}.get(name, 0)
    if first < needed:
        raise SpecError(f"{name} needs at least {needed} declared axes, got {first}")
    if name == "matmul":
        return max(args)
    if name == "split":
        return first + 1
    if name == "merge":
        return first - 1
    if name == "take":
        return args[1] + 1
    if name in ("sum_to", "scatter_add", "pad"):
        return args[-1]
    return first
