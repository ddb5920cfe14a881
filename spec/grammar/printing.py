"""The notation: tensors, expressions and programs in the grammar's own syntax.

What the parser reads is what this writes, up to spaces and brackets that are not needed.
"""

from __future__ import annotations

from typing import Final

from qkvac.spec.grammar.page import Page
from qkvac.spec.grammar.syntax import Expr, Program, Tensor

_PAGE: Final = Page()


def plain(program: Program) -> str:
    """The equations, one a line, each with the shape contract of its result."""
    lines = [declaration(tensor) for tensor in program.inputs]
    lines += program.parameters
    lines += [f"{declaration(e.target)} = {expression(e.expression)}" for e in program.equations]
    return "\n".join(lines)


def declaration(tensor: Tensor) -> str:
    """`X[n, d]`."""
    return f"{tensor.name}[{', '.join(expression(axis) for axis in tensor.axes)}]"


def expression(node: Expr) -> str:
    """The expression in the grammar's own syntax."""
    return _PAGE.of(node)
