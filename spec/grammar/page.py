"""What printers write on: an expression in one medium, bracketed where it must be."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, Final

from qkvac.spec.grammar.axes import axes_of, is_scalar
from qkvac.spec.grammar.operation import SUM, Medium
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.syntax import Expr, Number, Ref, Tensor

NOTHING: Final[Mapping[str, Tensor]] = MappingProxyType({})


class Page:
    """Expressions over `tensors` in one medium; implements `qkvac.spec.grammar.operation.Page`."""

    medium: ClassVar[Medium] = "text"

    def __init__(self, tensors: Mapping[str, Tensor] = NOTHING) -> None:
        self.tensors = tensors

    def of(self, node: Expr, level: int = SUM) -> str:
        """`node`, in brackets if it binds less tightly than `level`."""
        if isinstance(node, Ref):
            return self.name(node.name)
        if isinstance(node, Number):
            return self.number(node.value)
        defined = operation(node.name)
        written = defined.printer(self.medium)(node, self)
        return written if defined.binds(self.medium) >= level else self.bracketed(written)

    def name(self, name: str) -> str:
        return name

    def number(self, value: Fraction) -> str:
        return decimal(value)

    def bracketed(self, inner: str) -> str:
        return f"({inner})"

    def is_scalar(self, node: Expr) -> bool:
        return is_scalar(node, self.tensors)

    def rank(self, node: Expr) -> int:
        return len(axes_of(node, self.tensors))


def decimal(value: Fraction) -> str:
    """A literal that parses to the same fraction; numbers of the grammar are finite decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    whole = str(int(value * 10**digits)).rjust(digits + 1, "0")
    return f"{whole[:-digits]}.{whole[-digits:]}"
