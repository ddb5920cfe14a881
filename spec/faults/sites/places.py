"""Places: what a rule of rewriting replaces, given the roles that tensors play."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from qkvac.spec.faults.sites.roles import PROJECTIONS, Roles, is_product, projection, softmax
from qkvac.spec.grammar.syntax import Equation, Expr, Op, walk

Place = Callable[[str, Equation, Roles], Expr]
"""A rule's text, an equation and the roles → the equation's new right-hand side, or the old one.

Raises KeyError where the text uses a name that the program does not bind.
"""


def mapped(expression: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """`expression` with `change` made at the outermost nodes for which it is not None."""
    changed = change(expression)
    if changed is not None:
        return changed
    if isinstance(expression, Op):
        args = tuple(mapped(argument, change) for argument in expression.args)
        return replace(expression, args=args)
    return expression


def _scaled(words: str, equation: Equation, roles: Roles) -> Expr:
    if not roles.scores or equation.target.name != roles.weights:
        return equation.expression
    scores = roles.bound["S"]

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.name in ("divide", "multiply") and node.args[0] == scores:
            return roles.quote(words, Y=node)
        return roles.quote(words, Y=node) if node == scores else None

    return mapped(equation.expression, change)


def _whole(role: str) -> Place:
    """The whole expression of the equation with a role."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        name = getattr(roles, role)
        if not name or equation.target.name != name:
            return equation.expression
        return roles.quote(words, Y=equation.expression)

    return place


def _in_softmax(position: int, of: str = "") -> Place:
    """The argument or the mask of the softmax, or the part of it that a letter is bound to."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        found = softmax(equation.expression)
        if equation.target.name != roles.weights or found is None or len(found.args) <= position:
            return equation.expression
        old = found.args[position]
        wanted = roles.bound[of] if of else old
        new = mapped(old, lambda node: roles.quote(words, Y=node) if node == wanted else None)
        args = (*found.args[:position], new, *found.args[position + 1 :])
        return replace(found, args=args)

    return place


def _context(words: str, equation: Equation, roles: Roles) -> Expr:
    if equation.target.name != roles.context:
        return equation.expression

    def change(node: Expr) -> Expr | None:
        return roles.quote(words, Y=node) if is_product(node, roles.bound["A"]) else None

    return mapped(equation.expression, change)


def _project(*parts: str) -> Place:
    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        part = next((p for p in parts if roles.projections.get(p) == equation.target.name), None)
        if part is None:
            return equation.expression
        product = projection(equation.expression)
        more: dict[str, Expr] = {"own": product.args[1]} if product is not None else {}

        def change(node: Expr) -> Expr | None:
            return roles.quote(words, Y=node, **more) if node == product else None

        return mapped(equation.expression, change)

    return place


def _products(words: str, equation: Equation, roles: Roles) -> Expr:
    def change(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.name == "matmul":
            left, right = (mapped(argument, change) for argument in node.args)
            return roles.quote(words, l=left, r=right)
        return None

    return mapped(equation.expression, change)


def _sum(part: str = "") -> Place:
    """The whole of an equation that is a sum: with a bias (of one part), or with positions."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        expression = equation.expression
        parts = [name for name, own in roles.projections.items() if own == equation.target.name]
        own = part in parts if part else bool(parts) or _looks_up(expression)
        if own and isinstance(expression, Op) and expression.name == "add":
            return roles.quote(words, l=expression.args[0], r=expression.args[1])
        return expression

    return place


def _lookup(words: str, equation: Equation, roles: Roles) -> Expr:
    """The whole of an equation that looks tokens up, and adds positions."""
    expression = equation.expression
    if not isinstance(expression, Op) or expression.name != "add" or not _looks_up(expression):
        return expression
    return roles.quote(words, Y=expression, l=expression.args[0], r=expression.args[1])


def _looks_up(expression: Expr) -> bool:
    return any(isinstance(node, Op) and node.name == "take" for node in walk(expression))


def _calls(name: str, within: str = "") -> Place:
    """Every call of a function, or those in the equation with a role."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        if within and equation.target.name != getattr(roles, within):
            return equation.expression

        def change(node: Expr) -> Expr | None:
            if isinstance(node, Op) and node.name == name:
                more = dict(zip(("l", "r"), node.args, strict=False))
                return roles.quote(words, Y=node, **more)
            return None

        return mapped(equation.expression, change)

    return place


PLACES: Final[Mapping[str, Place]] = {
    "scaled": _scaled,
    "softmax": _whole("weights"),
    "argument": _in_softmax(0),
    "mask": _in_softmax(1),
    "given": _in_softmax(1, "G"),
    "causal": _in_softmax(1, "U"),
    "scores": _whole("scores"),
    "context": _context,
    "output": _whole("output"),
    **{part: _project(part) for part in PROJECTIONS},
    "projection": _project(*PROJECTIONS),
    "product": _products,
    "sum": _sum(),
    **{f"{part}-sum": _sum(part) for part in PROJECTIONS},
    "lookup": _lookup,
    "split": _calls("split"),
    "merge": _calls("merge"),
    "repeat": _calls("repeat"),
    "key-repeat": _calls("repeat", "scores"),
    "value-repeat": _calls("repeat", "context"),
}
