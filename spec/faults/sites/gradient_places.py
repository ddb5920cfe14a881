"""Places in the equations of gradients: what a rule of rewriting replaces there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from qkvac.spec.faults.sites.gradient_roles import LETTERS
from qkvac.spec.faults.sites.places import Place, mapped
from qkvac.spec.faults.sites.roles import Roles
from qkvac.spec.grammar.syntax import Equation, Expr, Op, Ref

Match = Callable[[Expr, Roles], bool]

WEIGHTS: Final = tuple(f"{part}-weights" for part in LETTERS)
BIASES: Final = tuple(f"{part}-bias" for part in LETTERS)
PARAMETERS: Final = (*WEIGHTS, *BIASES, "output-weights")


def _whole(*parts: str) -> Place:
    """The right-hand sides of the gradients of some parts; `own` is what has that gradient."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        name = equation.target.name
        if name not in {roles.gradients.get(part) for part in parts}:
            return equation.expression
        own = Ref(name.removeprefix("d"))
        return roles.quote(words, Y=equation.expression, own=own)

    return place


def _nodes(match: Match, *parts: str) -> Place:
    """Every outermost node that matches, in the gradients of some parts or in all of them."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        name = equation.target.name
        wanted = {roles.gradients.get(part) for part in parts} if parts else roles.backward
        if name not in wanted:
            return equation.expression

        def change(node: Expr) -> Expr | None:
            if not match(node, roles):
                return None
            args = node.args if isinstance(node, Op) else ()
            return roles.quote(words, Y=node, **dict(zip(("l", "r", "t"), args, strict=False)))

        return mapped(equation.expression, change)

    return place


def _is(letter: str) -> Match:
    return lambda node, roles: node == roles.bound.get(letter)


def _called(name: str) -> Match:
    return lambda node, roles: isinstance(node, Op) and node.name == name


def _by(letter: str, transposed: bool = False) -> Match:
    """Products with this left factor, or its transpose."""

    def match(node: Expr, roles: Roles) -> bool:
        left = roles.bound.get(letter)
        if left is None or not isinstance(node, Op) or node.name != "matmul":
            return False
        return node.args[0] == (Op("transpose", (left,)) if transposed else left)

    return match


def _shared_heads(node: Expr, roles: Roles) -> bool:
    """A sum over the query heads that share a key or value head."""
    if not isinstance(node, Op) or node.name != "sum_to":
        return False
    shared = (roles.bound.get("k"), roles.bound.get("v"))
    return any(
        isinstance(x, Op) and x.name == "repeat" and x.args[0] == node.args[1] for x in shared
    )


PLACES: Final[Mapping[str, Place]] = {
    "cotangent": _nodes(_is("dY")),
    "cotangent-heads": _nodes(_is("g")),
    "logits-gradient": _whole("logits"),
    "scores-gradient": _whole("scores"),
    "weights-gradient": _whole("weights"),
    "query-gradient": _nodes(_by("dO")),
    "key-gradient": _nodes(_by("dO", transposed=True)),
    "value-gradient": _nodes(_by("A", transposed=True)),
    **{f"{part}-path": _nodes(_by(f"d{letter}"), "tokens") for part, letter in LETTERS.items()},
    "tokens-gradient": _whole("tokens"),
    **{
        f"{part}-weights-source": _nodes(_is(f"d{letter}"), f"{part}-weights")
        for part, letter in LETTERS.items()
    },
    **{
        f"{part}-bias-source": _nodes(_is(f"d{letter}"), f"{part}-bias")
        for part, letter in LETTERS.items()
    },
    **{f"{part}-gradient": _whole(part) for part in (*PARAMETERS, "mask")},
    "context-gradient": _whole("context"),
    "parameter-gradients": _whole(*PARAMETERS),
    "bias-gradients": _whole(*BIASES),
    "mask-source": _nodes(_is("dZ"), "mask"),
    "parameter-sums": _nodes(_called("sum_to"), *PARAMETERS),
    "mask-sum": _nodes(_called("sum_to"), "mask"),
    "group-sums": _nodes(_shared_heads),
    "backward-product": _nodes(_called("matmul")),
    "parameter-products": _nodes(_called("matmul"), *PARAMETERS),
    "backward-merge": _nodes(_called("merge")),
    "token-table-gradient": _whole("token-table"),
    "position-table-gradient": _whole("position-table"),
    "scatter": _nodes(_called("scatter_add")),
    "pad": _nodes(_called("pad")),
}
