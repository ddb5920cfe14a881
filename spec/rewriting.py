"""Rewriting: from declared equations to faulty ones, by rules that name places and not profiles.

A rule replaces what stands at one place of a program, found by its role and not by its name: the
scaled scores, the softmax, the product that makes scores or context, a projection, the mask. What
is put there is a text in the syntax of the grammar and the operations of `qkvac.spec.mistakes`,
over these names (a rule whose text uses an unbound one does not apply):

    S, s    the unscaled scores, and the factor they are multiplied by
    Z, M    the softmax's argument, and its mask; W is M too, but may be absent
    T       the causal mask, whether declared or not
    A, v    the attention weights, and what they are multiplied with
    q, k    the factors of the scores; Y is the declared expression itself
    x, wq, wk, wv, own   the projected tensor, the three weights, and that of the projection
    c, d, n, e           width under the root, width of tokens, number of keys, width in all

and the derived parameters below.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, TypeGuard

import numpy as np

from qkvac.spec import text
from qkvac.spec.equations import fold
from qkvac.spec.formats import dtype
from qkvac.spec.mistakes import MISTAKES
from qkvac.spec.parsing import BINARY
from qkvac.spec.syntax import Equation, Expr, Number, Op, Program, Ref, SpecError, walk

Bindings = Mapping[str, Expr]
PROJECTIONS: Final = ("query", "key", "value")


def _nearest(name: str) -> Callable[[float], float]:
    return lambda scale: float(np.float32(scale).astype(dtype(name)))


DERIVED: Final[Mapping[str, Callable[[float], float]]] = {
    "scale_with_whole_root": lambda scale: 1.0 / max(1, int(1.0 / scale)),
    "scale_with_epsilon": lambda scale: 1.0 / (1.0 / scale + 1e-6),
    "scale_in_bfloat16": _nearest("bfloat16"),
    "scale_in_float32": _nearest("float32"),
}
"""Scalar parameters of faulty programs, as functions of the declared scale factor."""


def derived(declared: Program, faulty: Program, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """`sizes` and the values of the derived parameters that a faulty program uses."""
    names = [name for name in faulty.parameters if name in DERIVED]
    if not names:
        return dict(sizes)
    scale = float(fold(Roles.of(declared).bound["s"], sizes))
    return {**sizes, **{name: DERIVED[name](scale) for name in names}}


@dataclass(frozen=True)
class Rewrite:
    """Put `text` at every `place` of a program.

    Places: scaled, softmax, masked (a softmax with a mask), mask, scores, context, query,
    key, value, projection (all three), product (every matrix product, l and r being its factors),
    sum (l + r), split, merge and repeat (of l).
    """

    place: str
    text: str

    def apply(self, program: Program, roles: Roles) -> Program | None:
        """The faulty program, None where the rule has no place in it or changes nothing."""
        changed, equations = False, list[Equation]()
        for equation in program.equations:
            try:
                expression = _PLACES[self.place](self.text, equation, roles)
            except KeyError:
                return None
            changed |= expression != equation.expression
            equations.append(_restated(equation, expression))
        if not changed:
            return None
        used = {n.name for e in equations for n in walk(e.expression) if isinstance(n, Ref)}
        derived = tuple(name for name in DERIVED if name in used - set(program.parameters))
        parameters = (*program.parameters, *derived)
        return replace(program, parameters=parameters, equations=tuple(equations))


def rewritten(program: Program, rules: tuple[Rewrite, ...]) -> Program | None:
    """All rules applied; None unless each of them finds its place.

    Their texts mean the declared program, not what an earlier rule has made of it.
    """
    roles, found = Roles.of(program), program
    for rule in rules:
        changed = rule.apply(found, roles)
        if changed is None:
            return None
        found = changed
    return found


def _restated(equation: Equation, expression: Expr) -> Equation:
    shown = f"{text.declaration(equation.target)} = {text.expression(expression)}"
    return replace(equation, expression=expression, text=shown)


@dataclass(frozen=True)
class Roles:
    """Which tensor plays which part in a program, and the names that a rule's text may use."""

    scores: str = ""
    weights: str = ""
    context: str = ""
    projections: Mapping[str, str] = ()  # type: ignore[assignment]
    """Part ("query", "key", "value") → the equation that computes it."""
    axes: Mapping[str, int] = ()  # type: ignore[assignment]
    """"keys" and "queries": axes of the weights."""
    bound: Bindings = ()  # type: ignore[assignment]

    @classmethod
    def of(cls, program: Program) -> Roles:
        """The roles, as far as the program has them; without a softmax there are none."""
        targets = {e.target.name: e for e in program.equations}
        weights = next((e for e in program.equations if _softmax(e.expression)), None)
        if weights is None:
            return cls(projections={}, axes={}, bound={})
        softmax = _softmax(weights.expression)
        assert softmax is not None
        assert softmax.axis is not None
        argument = softmax.args[0]
        scores = next(n.name for n in walk(argument) if isinstance(n, Ref) and n.name in targets)
        bound: dict[str, Expr] = {"S": Ref(scores), "Z": argument, "A": Ref(weights.target.name)}
        if len(softmax.args) > 1:
            bound["M"] = bound["W"] = softmax.args[1]
        factor = _scale(argument, scores)
        if factor is not None:
            bound["s"] = factor
            roots = [n.args[0] for n in walk(factor) if isinstance(n, Op) and n.name == "sqrt"]
            bound |= {"c": roots[0]} if roots else {}
            bound |= {name: Ref(name) for name in DERIVED}
        queries, bound["n"] = weights.target.axes[-2:]
        bound["T"] = Op("causal", (queries, bound["n"]))
        product = targets[scores].expression
        if isinstance(product, Op) and product.name == "matmul":
            left, right = product.args
            bound["q"] = left
            if isinstance(right, Op) and right.name == "transpose":
                bound["k"] = right.args[0]
        context, multiplied = "", None
        for equation in program.equations:
            for node in walk(equation.expression):
                if _is_product(node, bound["A"]):
                    context, multiplied = equation.target.name, node.args[1]
        if multiplied is not None:
            bound["v"] = multiplied
        projections = dict[str, str]()
        for part, key in zip(PROJECTIONS, ("q", "k", "v"), strict=True):
            name = _tensor(bound.get(key), targets)
            if name is not None:
                projections[part] = name
                place = _projection(targets[name].expression)
                if place is not None:
                    bound["x"], bound[f"w{key}"] = place.args
        if "query" in projections:
            bound["e"] = targets[projections["query"]].target.axes[-1]
        if isinstance(bound.get("x"), Ref):
            bound["d"] = program.tensors[text.expression(bound["x"])].axes[-1]
        axes = {"keys": softmax.axis, "queries": softmax.axis - 1}
        return cls(scores, weights.target.name, context, projections, axes, bound)

    def quote(self, words: str, **more: Expr) -> Expr:
        """The expression that a rule's text stands for; raises KeyError for an unbound name."""
        node = ast.parse(words, mode="eval").body
        return _Quotation({**self.bound, **more}, self.axes).expression(node)


def _is_product(node: Expr, left: Expr) -> TypeGuard[Op]:
    """Whether a node is a matrix product with this left factor."""
    return isinstance(node, Op) and node.name == "matmul" and node.args[0] == left


def _softmax(expression: Expr) -> Op | None:
    return expression if isinstance(expression, Op) and expression.name == "softmax" else None


def _scale(argument: Expr, scores: str) -> Expr | None:
    """The factor of the scores inside a softmax's argument."""
    for node in walk(argument):
        if isinstance(node, Op) and node.args[0] == Ref(scores):
            if node.name == "divide":
                return Op("divide", (Number(Fraction(1)), node.args[1]))
            if node.name == "multiply":
                return node.args[1]
    return None


def _tensor(expression: Expr | None, targets: Mapping[str, Equation]) -> str | None:
    nodes = walk(expression) if expression is not None else iter(())
    return next((n.name for n in nodes if isinstance(n, Ref) and n.name in targets), None)


def _projection(expression: Expr) -> Op | None:
    """The product with a weight, a bias aside."""
    for node in walk(expression):
        if isinstance(node, Op) and node.name == "matmul":
            return node
    return None


class _Quotation:
    """Python syntax to expressions, with names replaced by what they are bound to."""

    def __init__(self, bound: Bindings, axes: Mapping[str, int]) -> None:
        self.bound = bound
        self.axes = axes

    def expression(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Name):
            return self.bound[node.id]
        if isinstance(node, ast.Constant):
            return Number(Fraction(str(node.value)))
        if isinstance(node, ast.BinOp):
            operands = (self.expression(node.left), self.expression(node.right))
            return Op(BINARY[type(node.op)], operands)
        if isinstance(node, ast.UnaryOp):
            return Op("negate", (self.expression(node.operand),))
        if isinstance(node, ast.Attribute):
            return Op("transpose", (self.expression(node.value),))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.call(node, node.func.id)
        raise SpecError(f"{ast.unparse(node)!r} is no text of a rule")

    def call(self, node: ast.Call, name: str) -> Op:
        axis, args = None, list[Expr]()
        for argument in node.args:
            if isinstance(argument, ast.Name) and argument.id in ("keys", "queries"):
                axis = self.axes[argument.id]
            elif isinstance(argument, ast.Constant) and name in ("softmax", "sum"):
                axis = int(str(argument.value))
            elif isinstance(argument, ast.Name) and argument.id == "W":
                args += [self.bound["W"]] if "W" in self.bound else []
            else:
                args.append(self.expression(argument))
        return Op(name, tuple(args), axis)


# --- places --------------------------------------------------------------------------------


def _mapped(expression: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """`expression` with `change` made at the outermost nodes for which it is not None."""
    changed = change(expression)
    if changed is not None:
        return changed
    if isinstance(expression, Op):
        args = tuple(_mapped(argument, change) for argument in expression.args)
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

    return _mapped(equation.expression, change)


def _at(role: str) -> Callable[[str, Equation, Roles], Expr]:
    """The whole expression of the equation with a role."""

    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        name = getattr(roles, role) if role in ("scores", "weights") else ""
        if not name or equation.target.name != name:
            return equation.expression
        return roles.quote(words, Y=equation.expression)

    return place


def _mask(words: str, equation: Equation, roles: Roles) -> Expr:
    softmax = _softmax(equation.expression)
    if softmax is None or len(softmax.args) < 2:
        return equation.expression
    mask = roles.quote(words)
    return replace(softmax, args=(softmax.args[0], mask))


def _context(words: str, equation: Equation, roles: Roles) -> Expr:
    if equation.target.name != roles.context:
        return equation.expression

    def change(node: Expr) -> Expr | None:
        return roles.quote(words, Y=node) if _is_product(node, roles.bound["A"]) else None

    return _mapped(equation.expression, change)


def _project(*parts: str) -> Callable[[str, Equation, Roles], Expr]:
    def place(words: str, equation: Equation, roles: Roles) -> Expr:
        part = next((p for p in parts if roles.projections.get(p) == equation.target.name), None)
        if part is None:
            return equation.expression
        product = _projection(equation.expression)
        more: dict[str, Expr] = {"own": product.args[1]} if product is not None else {}

        def change(node: Expr) -> Expr | None:
            return roles.quote(words, Y=node, **more) if node == product else None

        return _mapped(equation.expression, change)

    return place


def _products(words: str, equation: Equation, roles: Roles) -> Expr:
    def change(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.name == "matmul":
            left, right = (_mapped(argument, change) for argument in node.args)
            return roles.quote(words, l=left, r=right)
        return None

    return _mapped(equation.expression, change)


def _sum(words: str, equation: Equation, roles: Roles) -> Expr:
    """The whole of an equation that is a sum: a bias, or an embedding with positions."""
    expression = equation.expression
    if isinstance(expression, Op) and expression.name == "add":
        return roles.quote(words, l=expression.args[0], r=expression.args[1])
    return expression


def _heads(words: str, equation: Equation, roles: Roles) -> Expr:
    return _calls("split", words, equation, roles)


def _calls(name: str, words: str, equation: Equation, roles: Roles) -> Expr:
    def change(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.name == name:
            more = dict(zip(("l", "r"), node.args, strict=False))
            return roles.quote(words, Y=node, **more)
        return None

    return _mapped(equation.expression, change)


_PLACES: Final[Mapping[str, Callable[[str, Equation, Roles], Expr]]] = {
    "scaled": _scaled,
    "softmax": _at("weights"),
    "mask": _mask,
    "masked": lambda text, e, r: _at("weights")(text, e, r) if "M" in r.bound else e.expression,
    "scores": _at("scores"),
    "context": _context,
    **{part: _project(part) for part in PROJECTIONS},
    "projection": _project(*PROJECTIONS),
    "product": _products,
    "sum": _sum,
    "split": _heads,
    "merge": lambda *a: _calls("merge", *a),
    "repeat": lambda *a: _calls("repeat", *a),
}


def operations(program: Program) -> Iterator[str]:
    """Names of the operations outside the grammar that a faulty program uses."""
    for equation in program.equations:
        for node in walk(equation.expression):
            if isinstance(node, Op) and node.name in MISTAKES:
                yield node.name
