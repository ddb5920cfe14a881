"""The normal form of a program: products and nonlinear calls inside an expression get names.

Who computes `softmax(Q @ K.T / sqrt(c), axis=1) * 2` holds the product and the weights, although
the text names neither. The normal form does: each is an equation of its own, a *part*. A part is
seen where that matters (it may overflow, its own value is in the derivative), but it is neither a
quantity that anybody reports nor one that is rounded to be stored: sums go on open through it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import cache
from itertools import chain, count

from qkvac.spec.grammar.axes import axes_of, is_scalar
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.printing import declaration, expression
from qkvac.spec.grammar.syntax import Equation, Expr, Op, Program, Ref, Tensor, walk


@cache
def normal(program: Program, products: bool = True) -> Program:
    """The program with its parts named; the nonlinear calls alone, without `products`.

    A program that has nothing to name is returned as it is.
    """
    return _Naming(program, products).named()


def fresh(name: str, taken: Set[str]) -> str:
    """`name`, or the first of name2, name3, … that is not taken."""
    numbered = (f"{name}{i}" for i in count(2))
    return next(n for n in chain((name,), numbered) if n not in taken)


def logits(program: Program) -> frozenset[str]:
    """Names of the tensors that the arguments of softmaxes refer to."""
    tensors = program.tensors
    return frozenset(
        part.name
        for equation in program.equations
        for node in walk(equation.expression)
        if isinstance(node, Op) and node.name == "softmax"
        for part in walk(node.args[0])
        if isinstance(part, Ref) and part.name in tensors
    )


class _Naming:
    def __init__(self, program: Program, products: bool) -> None:
        self.program = program
        self.products = products
        self.tensors = dict(program.tensors)
        names = (*self.tensors, *program.axis_names, *program.parameters)
        # A part has a cotangent as well, whose name must be free.
        self.taken = {*names, *(f"d{name}" for name in self.tensors)}
        self.equations: list[Equation] = []

    def named(self) -> Program:
        for equation in self.program.equations:
            stated = self.below(equation.expression, equation)
            changed = stated != equation.expression
            self.equations.append(replace(equation, expression=stated) if changed else equation)
        if len(self.equations) == len(self.program.equations):
            return self.program
        return replace(self.program, equations=tuple(self.equations))

    def below(self, node: Expr, equation: Equation) -> Expr:
        """`node` with the parts below it named."""
        if not isinstance(node, Op) or is_scalar(node, self.tensors):
            return node
        args = tuple(self.part(argument, equation) for argument in node.args)
        return node if args == node.args else replace(node, args=args)

    def part(self, node: Expr, equation: Equation) -> Expr:
        node = self.below(node, equation)
        if not (isinstance(node, Op) and self.is_part(node)):
            return node
        target = Tensor(self.free(equation.target.name), axes_of(node, self.tensors))
        self.tensors[target.name] = target
        text = f"{declaration(target)} = {expression(node)}"
        self.equations.append(Equation(target, node, text, equation.line, part=True))
        return Ref(target.name)

    def is_part(self, node: Op) -> bool:
        defined = operation(node.name)
        if self.products and defined.is_product:
            return not any(is_scalar(argument, self.tensors) for argument in node.args)
        return defined.is_nonlinear

    def free(self, whole: str) -> str:
        """A1, A2, … for the parts of A; Q1p1, … for those of Q1."""
        stem = f"{whole}p" if whole[-1].isdigit() else whole
        names = (f"{stem}{i}" for i in count(1))
        name = next(n for n in names if not {n, f"d{n}"} & self.taken)
        self.taken |= {name, f"d{name}"}
        return name
