"""What a spec text consists of: expressions, declared tensors, equations, programs.

All are frozen values. Derivations (faults, adjoints) rewrite them; algebras evaluate them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

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
