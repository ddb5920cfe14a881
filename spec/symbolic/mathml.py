"""The MathML interpretation: equations as browsers typeset them, with nothing to load.

It brackets as the plain text does; products of tensors entry by entry are written with ⊙, so that
they cannot be taken for matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import ClassVar, Final

from qkvac.spec.grammar.operation import Medium, mathml_brackets, mathml_sign
from qkvac.spec.grammar.page import Page
from qkvac.spec.grammar.syntax import Program, Tensor

SPACES: Final = {"real": "ℝ", "index": "ℕ", "mask": "𝔹"}


@dataclass(frozen=True)
class Row:
    """A line of typeset equations; each field is a `math` element, `right` "" for an input."""

    target: str
    right: str
    space: str
    """ℝ, 𝔹 (true or false) or ℕ, to the power of the tensor's axes."""


class _MathML(Page):
    medium: ClassVar[Medium] = "mathml"

    def name(self, name: str) -> str:
        return _symbol(name)

    def number(self, value: Fraction) -> str:
        return f"<mn>{super().number(value)}</mn>"

    def bracketed(self, inner: str) -> str:
        return f"<mrow>{mathml_brackets(inner)}</mrow>"


def rows(program: Program) -> tuple[Row, ...]:
    """The inputs, then the equations, one line each."""
    page = _MathML(program.tensors)
    given = (Row(_math(_symbol(t.name)), "", _math(_space(t, page))) for t in program.inputs)
    defined = (
        Row(
            _math(_symbol(e.target.name)),
            _math(page.of(e.expression)),
            _math(_space(e.target, page)),
        )
        for e in program.equations
    )
    return (*given, *defined)


def _math(inner: str) -> str:
    return f"<math>{inner}</math>"


def _symbol(name: str) -> str:
    if name[0] == "d" and len(name) > 1:
        return f'<mrow><mi mathvariant="normal">d</mi>{_symbol(name[1:])}</mrow>'
    if len(name) == 2:
        return f"<msub>{_identifier(name[0])}{_identifier(name[1])}</msub>"
    return _identifier(name)


def _identifier(name: str) -> str:
    """A single letter is set in italics, a word upright: that is what `mi` does."""
    upright = ' mathvariant="normal"' if name == "Ω" else ""
    return f"<mi{upright}>{escape(name)}</mi>"


def _space(tensor: Tensor, page: Page) -> str:
    sizes = mathml_sign("×").join(map(page.of, tensor.axes))
    return f"<msup><mi>{SPACES[tensor.kind]}</mi><mrow>{sizes}</mrow></msup>"
