"""The notation: tensors, expressions and programs in the grammar's own syntax.

What the parser reads is what this writes, up to spaces and brackets that are not needed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from qkvac.spec.syntax import Expr, Number, Program, Ref, Tensor

SUM, PRODUCT, UNARY, ATOM = range(4)
"""How tightly an expression binds."""

SYMBOLS: Final = {"add": ("+", SUM), "subtract": ("-", SUM), "conjunction": ("&", SUM)} | {
    "matmul": ("@", PRODUCT),
    "multiply": ("*", PRODUCT),
    "divide": ("/", PRODUCT),
}


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
    return _plain(node)[0]


def _plain(node: Expr) -> tuple[str, int]:
    if isinstance(node, Ref):
        return node.name, ATOM
    if isinstance(node, Number):
        return decimal(node.value), ATOM
    name, args = node.name, node.args
    if name in SYMBOLS:
        symbol, level = SYMBOLS[name]
        left, right = _bracketed(args[0], level), _bracketed(args[1], level + 1)
        return f"{left} {symbol} {right}", level
    if name == "negate":
        return f"-{_bracketed(args[0], UNARY)}", UNARY
    if name == "transpose":
        return f"{_bracketed(args[0], ATOM)}.T", ATOM
    parts = [expression(argument) for argument in args]
    if node.axis is not None:
        parts.insert(1, f"axis={node.axis}")
        parts[2:] = [f"where={part}" for part in parts[2:]]
    return f"{name}({', '.join(parts)})", ATOM


def _bracketed(node: Expr, level: int) -> str:
    text, own = _plain(node)
    return text if own >= level else f"({text})"


def decimal(value: Fraction) -> str:
    """A literal that parses to the same fraction; numbers of the grammar are finite decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    whole = str(int(value * 10**digits)).rjust(digits + 1, "0")
    return f"{whole[:-digits]}.{whole[-digits:]}"
