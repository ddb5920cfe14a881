"""The text interpretation: a profile as plain text, as LaTeX and as JSON.

JSON holds the equations as trees, so that a program in any language can evaluate them without a
parser of its own; `from_json` reads them back into the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Final

from qkvac.spec.attention import SPEC_VERSION
from qkvac.spec.grammar.operation import Medium
from qkvac.spec.grammar.page import Page
from qkvac.spec.grammar.printing import declaration, expression, plain
from qkvac.spec.grammar.syntax import Equation, Expr, Number, Op, Program, Ref, SpecError, Tensor
from qkvac.spec.profile import Profile

__all__ = [
    "declaration",
    "expression",
    "latex",
    "plain",
    "program_from_json",
    "program_to_json",
    "to_json",
]


# --- LaTeX -----------------------------------------------------------------------------------

_GREEK: Final = {"Ω": r"\Omega"}


class _Latex(Page):
    medium: ClassVar[Medium] = "latex"

    def name(self, name: str) -> str:
        return _symbol(name)

    def bracketed(self, inner: str) -> str:
        return rf"\left({inner}\right)"


_PAGE: Final = _Latex()


def latex(program: Program) -> str:
    """An `aligned` block: each equation with the shape of its result."""
    rows = [
        rf"{_symbol(e.target.name)} &= {_PAGE.of(e.expression)} && \in {_space(e.target)}"
        for e in program.equations
    ]
    given = ",\\; ".join(
        rf"{_symbol(tensor.name)} \in {_space(tensor)}" for tensor in program.inputs
    )
    return "\n".join(
        [r"\begin{aligned}", f"& {given} \\\\", " \\\\\n".join(rows), r"\end{aligned}"]
    )


def _symbol(name: str) -> str:
    if name in _GREEK:
        return _GREEK[name]
    if name[0] == "d" and len(name) > 1:
        return rf"\mathrm{{d}}{_symbol(name[1:])}"
    if len(name) == 1:
        return name
    if len(name) == 2:
        return f"{name[0]}_{{{name[1]}}}"
    return rf"\mathrm{{{name}}}"


def _space(tensor: Tensor) -> str:
    sizes = r" \times ".join(_PAGE.of(axis) for axis in tensor.axes)
    spaces = {"real": r"\mathbb{R}", "mask": r"\{0, 1\}", "index": r"\mathbb{N}"}
    return f"{spaces[tensor.kind]}^{{{sizes}}}"


# --- JSON ------------------------------------------------------------------------------------


def to_json(profile: Profile) -> dict[str, Any]:
    """A profile as JSON: quantities, budget, and each variant as text and as trees."""
    budget = profile.budget
    return {
        "spec": SPEC_VERSION,
        "profile": profile.name,
        "about": profile.about,
        "quantities": list(profile.quantities),
        "optional": sorted(profile.intermediates),
        "budget": budget and {"products": budget.products, "transpositions": budget.transpositions},
        "variants": {
            name: {"text": plain(profile.program(name)), **program_to_json(profile.program(name))}
            for name in profile.texts
        },
    }


def program_to_json(program: Program) -> dict[str, Any]:
    """A program as trees: a name, a number as "p/q", or {operation: [operands], axis}."""
    return {
        "inputs": [_tensor(tensor) for tensor in program.inputs],
        "parameters": list(program.parameters),
        "equations": [
            {"target": _tensor(e.target), "is": _tree(e.expression)}
            | ({"part": True} if e.part else {})
            for e in program.equations
        ],
    }


def program_from_json(data: Mapping[str, Any]) -> Program:
    """The program that `program_to_json` wrote; raises SpecError for anything else."""
    try:
        inputs = tuple(_read_tensor(item) for item in data["inputs"])
        equations = []
        for line, item in enumerate(data["equations"], 1 + len(inputs) + len(data["parameters"])):
            target, right = _read_tensor(item["target"]), _read_tree(item["is"])
            text = f"{declaration(target)} = {expression(right)}"
            part = item.get("part", False)
            equations.append(Equation(target, right, text, line, part=part))
        return Program(inputs, tuple(data["parameters"]), tuple(equations))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"not a program in JSON: {error!r}") from None


def _tensor(tensor: Tensor) -> dict[str, Any]:
    axes = [_tree(axis) for axis in tensor.axes]
    return {"name": tensor.name, "axes": axes, "kind": tensor.kind}


def _read_tensor(data: Mapping[str, Any]) -> Tensor:
    return Tensor(data["name"], tuple(_read_tree(axis) for axis in data["axes"]), data["kind"])


def _tree(node: Expr) -> Any:
    if isinstance(node, Ref):
        return node.name
    if isinstance(node, Number):
        return {"number": str(node.value)}
    tree = {node.name: [_tree(argument) for argument in node.args]}
    return tree if node.axis is None else {**tree, "axis": node.axis}


def _read_tree(data: Any) -> Expr:
    if isinstance(data, str):
        return Ref(data)
    if "number" in data:
        return Number(Fraction(data["number"]))
    (name,) = data.keys() - {"axis"}
    return Op(name, tuple(_read_tree(argument) for argument in data[name]), data.get("axis"))
