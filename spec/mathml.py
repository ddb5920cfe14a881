"""The MathML interpretation: equations as browsers typeset them, with nothing to load.

It brackets as the plain text does; products of tensors entry by entry are written with ⊙, so that
they cannot be taken for matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from qkvac.spec.equations import Expr, Number, Op, Program, Ref, Tensor
from qkvac.spec.notation import ATOM, SYMBOLS, UNARY, decimal
from qkvac.spec.syntax import is_scalar

SIGNS: Final = {"add": "+", "subtract": "\u2212", "conjunction": "\u2227", "matmul": "\u2062"}
"""Matrix products carry the invisible sign, which is read out and not seen."""

SPACES: Final = {"real": "ℝ", "index": "ℕ", "mask": "𝔹"}


@dataclass(frozen=True)
class Row:
    """A line of typeset equations; each field is a `math` element, `right` "" for an input."""

    target: str
    right: str
    space: str
    """ℝ, 𝔹 (true or false) or ℕ, to the power of the tensor's axes."""


def rows(program: Program) -> tuple[Row, ...]:
    """The inputs, then the equations, one line each."""
    tensors = program.tensors
    given = (Row(_math(_symbol(t.name)), "", _math(_space(t, tensors))) for t in program.inputs)
    defined = (
        Row(
            _math(_symbol(e.target.name)),
            _math(_node(e.expression, tensors)[0]),
            _math(_space(e.target, tensors)),
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


def _sign(sign: str) -> str:
    return f"<mo>{sign}</mo>"


def _brackets(inner: str) -> str:
    """Brackets grow with fractions alone; fonts make those around a single line too tall."""
    grow = "" if "<mfrac>" in inner else ' stretchy="false"'
    return f"<mo{grow}>(</mo>{inner}<mo{grow}>)</mo>"


def _space(tensor: Tensor, tensors: Mapping[str, Tensor]) -> str:
    sizes = _sign("×").join(_node(axis, tensors)[0] for axis in tensor.axes)
    return f"<msup><mi>{SPACES[tensor.kind]}</mi><mrow>{sizes}</mrow></msup>"


def _node(node: Expr, tensors: Mapping[str, Tensor]) -> tuple[str, int]:
    """The element and how tightly it binds."""
    if isinstance(node, Ref):
        return _symbol(node.name), ATOM
    if isinstance(node, Number):
        return f"<mn>{decimal(node.value)}</mn>", ATOM
    name, args = node.name, node.args
    if name == "divide":
        above, below = (_node(argument, tensors)[0] for argument in args)
        return f"<mfrac>{above}{below}</mfrac>", ATOM
    if name in SYMBOLS:
        level = SYMBOLS[name][1]
        left = _bracketed(args[0], level, tensors)
        right = _bracketed(args[1], level + 1, tensors)
        return f"<mrow>{left}{_infix(node, tensors)}{right}</mrow>", level
    if name == "negate":
        return f"<mrow>{_sign(SIGNS['subtract'])}{_bracketed(args[0], UNARY, tensors)}</mrow>", (
            UNARY
        )
    if name == "transpose":
        return f"<msup>{_bracketed(args[0], ATOM, tensors)}{_sign('⊤')}</msup>", ATOM
    if name == "sqrt":
        return f"<msqrt>{_node(args[0], tensors)[0]}</msqrt>", ATOM
    return _call(node, tensors), ATOM


def _infix(node: Op, tensors: Mapping[str, Tensor]) -> str:
    if node.name == "multiply":
        scaled = any(is_scalar(argument, tensors) for argument in node.args)
        return _sign("⋅" if scaled else "⊙")
    space = '<mspace width="0.15em"/>' if node.name == "matmul" else ""
    return f"{_sign(SIGNS[node.name])}{space}"


def _call(node: Op, tensors: Mapping[str, Tensor]) -> str:
    """A function; the axis is its index, and what a softmax keeps stands after a bar."""
    name = f"<mi>{escape(node.name.replace('_', ' '))}</mi>"
    if node.axis is not None:
        name = f"<msub>{name}<mn>{node.axis}</mn></msub>"
    between = _sign("|" if node.axis is not None else ",")
    inner = between.join(_node(argument, tensors)[0] for argument in node.args)
    return f"<mrow>{name}{_sign(chr(0x2061))}{_brackets(inner)}</mrow>"


def _bracketed(node: Expr, level: int, tensors: Mapping[str, Tensor]) -> str:
    element, own = _node(node, tensors)
    if own >= level:
        return element
    return f"<mrow>{_brackets(element)}</mrow>"
