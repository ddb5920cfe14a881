"""Roles: which tensor plays which part in a program, and the names that rules of rewriting use.

A rule of the fault catalogue does not say `Q` or `mask`: it speaks of the factors of the scores, of
the softmax's argument, of the mask that was given. `Roles.of` finds them by where they stand, and
binds the letters that `qkvac.spec.faults.rewriting` lists.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Final, TypeGuard

import numpy as np

from qkvac.spec.faults.operations.mistakes import BY_RANK
from qkvac.spec.faults.sites import gradient_roles
from qkvac.spec.formats import dtype
from qkvac.spec.grammar.axes import axes_of, is_scalar
from qkvac.spec.grammar.parsing import BINARY
from qkvac.spec.grammar.syntax import Equation, Expr, Number, Op, Program, Ref, SpecError, walk

Bindings = Mapping[str, Expr]
PROJECTIONS: Final = ("query", "key", "value")


def _nearest(name: str) -> Callable[[float, float], float]:
    return lambda scale, default: float(np.float32(scale).astype(dtype(name)))


DERIVED: Final[Mapping[str, Callable[[float, float], float]]] = {
    "scale_with_whole_root": lambda scale, default: 1.0 / max(1, int(1.0 / scale)),
    "scale_with_epsilon": lambda scale, default: 1.0 / (1.0 / scale + 1e-6),
    "scale_in_bfloat16": _nearest("bfloat16"),
    "scale_in_float32": _nearest("float32"),
    "scale_unless_one": lambda scale, default: default if scale == 1.0 else scale,
    "scale_unless_zero": lambda scale, default: scale or default,
}
"""Scalar parameters of faulty programs, as functions of the scale factor and of 1/√width."""


@dataclass(frozen=True)
class Roles:
    """The parts that tensors of a program play; those that it has."""

    scores: str
    weights: str
    context: str
    output: str
    """The equation that projects the merged heads."""
    projections: Mapping[str, str]
    """Part ("query", "key", "value") → the equation that computes it."""
    axes: Mapping[str, int]
    """"keys", "queries" and "heads": axes of the weights."""
    rank: int
    """Declared axes of queries, keys, values and weights, or of tokens."""
    bound: Bindings
    gradients: Mapping[str, str] = field(default_factory=dict)
    """Part → the equation that computes its gradient (see `gradient_roles`)."""
    backward: frozenset[str] = frozenset()
    """Targets of all equations that compute gradients."""

    @classmethod
    @cache
    def of(cls, program: Program) -> Roles:
        """The roles, as far as the program has them."""
        weights = next((e for e in program.equations if _weighs_keys(e, program)), None)
        if weights is None:
            found = cls("", "", "", "", {}, {}, 1, _of_tables(program))
        else:
            found = _Search(program, weights).roles()
        return found.with_gradients(program)

    @property
    def names(self) -> Mapping[str, str]:
        """What is called Q or dX in words → its name in the program; no two share one."""
        bound, forward = self.bound, {"Ω": self.scores, "A": self.weights, "C": self.context}
        found = {**forward, "Y": self.output, "P": tensor_in(bound.get("p"))}
        for word, letter in (("X", "x"), ("Q", "q"), ("K", "k"), ("V", "v"), ("E", "E")):
            found[word] = tensor_in(bound.get(letter))
        actual = list(found.values())
        return {word: name for word, name in found.items() if name and actual.count(name) == 1}

    def with_gradients(self, program: Program) -> Roles:
        """These roles, and those of the cotangents that the program has."""
        backward = gradient_roles.backward(program)
        if not backward:
            return self
        parts = gradient_roles.parts(
            program, self.bound, self.projections, self.scores, self.context
        )
        bound = {**self.bound, **gradient_roles.letters(program, parts)}
        return replace(self, bound=bound, gradients=parts, backward=backward)

    def quote(self, words: str, **more: Expr) -> Expr:
        """The expression that a rule's text stands for; raises KeyError for an unbound name."""
        node = ast.parse(words, mode="eval").body
        return _Quotation({**self.bound, **more}, self.axes, self.rank).expression(node)

    def has(self, names: str) -> bool:
        """Whether all these names are bound, and those after a "!" are not."""
        return all(
            (name.removeprefix("!") in self.bound) != name.startswith("!") for name in names.split()
        )


class _Search:
    """Where the parts of attention stand in a program, starting from its softmax."""

    def __init__(self, program: Program, weights: Equation) -> None:
        self.program = program
        self.targets = {e.target.name: e for e in program.equations}
        self.weights = weights
        found = softmax(weights.expression)
        assert found is not None
        assert found.axis is not None
        self.softmax, self.keys = found, found.axis
        self.argument = found.args[0]
        self.scores = _first_of(self.argument, self.targets)

    def roles(self) -> Roles:
        bound = {"S": Ref(self.scores), "Z": self.argument, "A": Ref(self.weights.target.name)}
        bound |= self.masks() | self.scale() | self.sizes() | self.factors()
        context = self.context(bound)
        output = self.output(context, bound)
        projections = self.projections(bound)
        bound |= self.widths(bound, projections)
        if "s" in bound and "f" in bound:
            bound |= {name: Ref(name) for name in DERIVED}
        axes = {"keys": self.keys, "queries": self.keys - 1, "heads": self.keys - 2}
        axes = {name: axis for name, axis in axes.items() if axis >= 0}
        names = (self.scores, self.weights.target.name, context, output)
        rank = self.weights.target.rank
        return Roles(*names, projections, axes, rank, bound)

    def masks(self) -> dict[str, Expr]:
        """The mask, its parts, and what an additive one adds to the scores."""
        argument, bound = self.argument, dict[str, Expr]()
        bound["D"] = argument
        inputs = {tensor.name for tensor in self.program.inputs}
        if isinstance(argument, Op) and argument.name == "add":
            left, right = argument.args
            if isinstance(right, Ref) and right.name in inputs:
                bound["D"], bound["B"] = left, right
        if len(self.softmax.args) > 1:
            bound["M"] = bound["W"] = self.softmax.args[1]
            for node in conjuncts(bound["M"]):
                bound["U" if isinstance(node, Op) and node.name == "causal" else "G"] = node
        return bound

    def scale(self) -> dict[str, Expr]:
        factor = _scale(self.argument, self.scores)
        if factor is None or not is_scalar(factor, self.program.tensors):
            return {}
        roots = [n.args[0] for n in walk(factor) if isinstance(n, Op) and n.name == "sqrt"]
        bound: dict[str, Expr] = {"s": factor, **({"c": roots[0]} if roots else {})}
        if isinstance(factor, Ref) and factor.name in self.program.parameters:
            bound["P"] = factor
        return bound

    def sizes(self) -> dict[str, Expr]:
        queries, keys = self.weights.target.axes[-2:]
        bound: dict[str, Expr] = {"n": keys, "T": Op("causal", (queries, keys))}
        if queries != keys:
            bound["R"] = bound["T"]
        if self.weights.target.rank > 2:
            bound["H"] = self.weights.target.axes[-3]
        return bound

    def factors(self) -> dict[str, Expr]:
        product = self.targets[self.scores].expression
        bound = dict[str, Expr]()
        if isinstance(product, Op) and product.name == "matmul":
            left, right = product.args
            bound["q"] = left
            if isinstance(right, Op) and right.name == "transpose":
                bound["k"] = right.args[0]
        return bound

    def context(self, bound: dict[str, Expr]) -> str:
        found = ""
        for equation in self.program.equations:
            for node in walk(equation.expression):
                if is_product(node, bound["A"]):
                    found, bound["v"] = equation.target.name, node.args[1]
        return found

    def output(self, context: str, bound: dict[str, Expr]) -> str:
        """The equation that multiplies the context with weights, if there is one."""
        for equation in self.program.equations:
            if context and is_product(equation.expression, Ref(context)):
                bound["z"], bound["o"] = equation.expression.args
                bound["y"] = equation.target.axes[-1]
                return equation.target.name
        return ""

    def projections(self, bound: dict[str, Expr]) -> dict[str, str]:
        found = dict[str, str]()
        for part, key in zip(PROJECTIONS, ("q", "k", "v"), strict=True):
            name = _first_of(bound.get(key), self.targets)
            if not name:
                continue
            found[part] = name
            expression = self.targets[name].expression
            place = projection(expression)
            if place is not None:
                bound["x"], bound[f"w{key}"] = place.args
            if isinstance(expression, Op) and expression.name == "add":
                bound[f"b{key}"] = expression.args[1]
        return found

    def widths(self, bound: Bindings, projections: Mapping[str, str]) -> dict[str, Expr]:
        """Widths of tokens, of queries and values in a head, and of all heads together."""
        found = dict[str, Expr]()
        for letter, key in (("f", "q"), ("u", "v")):
            if key in bound:
                found[letter] = self.width(bound[key])
        if found.get("u") == found.get("f"):
            found.pop("u", None)
        if "query" in projections:
            found["e"] = self.targets[projections["query"]].target.axes[-1]
        elif "H" in bound and "f" in found:
            found["e"] = Op("multiply", (bound["H"], found["f"]))
        if isinstance(bound.get("x"), Ref):
            found["d"] = self.width(bound["x"])
        return found

    def width(self, expression: Expr) -> Expr:
        """The last axis of a tensor, of its repeated heads, or of the heads it is split into."""
        if isinstance(expression, Op) and expression.name == "split":
            return Op("divide", (self.width(expression.args[0]), expression.args[1]))
        if isinstance(expression, Op) and expression.name == "repeat":
            return self.width(expression.args[0])
        return axes_of(expression, self.program.tensors)[-1]


def _of_tables(program: Program) -> Bindings:
    """Names in a program that looks tokens up: the tables, the tokens, and the width."""
    bound = dict[str, Expr]()
    for equation in program.equations:
        for node in walk(equation.expression):
            if isinstance(node, Op) and node.name == "take":
                bound["E"], bound["i"] = node.args
                bound["d"] = equation.target.axes[-1]
            elif isinstance(node, Op) and node.name == "first":
                bound["p"], bound["n"] = node.args
    return bound


def conjuncts(mask: Expr) -> Iterator[Expr]:
    """The masks that are joined by &."""
    if isinstance(mask, Op) and mask.name == "conjunction":
        for argument in mask.args:
            yield from conjuncts(argument)
    else:
        yield mask


def is_product(node: Expr, left: Expr) -> TypeGuard[Op]:
    """Whether a node is a matrix product with this left factor."""
    return isinstance(node, Op) and node.name == "matmul" and node.args[0] == left


def softmax(expression: Expr) -> Op | None:
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


def _first_of(expression: Expr | None, targets: Mapping[str, Equation]) -> str:
    """The first of some tensors that an expression refers to; "" if there is none."""
    nodes = walk(expression) if expression is not None else iter(())
    return next((n.name for n in nodes if isinstance(n, Ref) and n.name in targets), "")


def tensor_in(expression: Expr | None) -> str:
    """The tensor that an expression moves about or repeats; "" if it computes anything."""
    while isinstance(expression, Op) and expression.name in _MOVING:
        expression = expression.args[0]
    return expression.name if isinstance(expression, Ref) else ""


_MOVING: Final = ("transpose", "split", "merge", "repeat", "first", "take")


def _weighs_keys(equation: Equation, program: Program) -> bool:
    """Whether an equation is the softmax of a matrix of scores that an equation computes.

    Of several, the first has the part of the weights; no rule touches the others.
    """
    found = softmax(equation.expression)
    targets = {e.target.name: e for e in program.equations}
    return found is not None and equation.target.rank > 1 and bool(_first_of(found, targets))


def projection(expression: Expr) -> Op | None:
    """The product with a weight, a bias aside."""
    for node in walk(expression):
        if isinstance(node, Op) and node.name == "matmul":
            return node
    return None


class _Quotation:
    """Python syntax to expressions, with names replaced by what they are bound to."""

    def __init__(self, bound: Bindings, axes: Mapping[str, int], rank: int) -> None:
        self.bound = bound
        self.axes = axes
        self.rank = rank

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
            if isinstance(argument, ast.Name) and argument.id in ("keys", "queries", "heads"):
                axis = self.axes[argument.id]
            elif isinstance(argument, ast.Constant) and name in ("softmax", "sum"):
                axis = int(str(argument.value))
            elif isinstance(argument, ast.Name) and argument.id == "W":
                args += [self.bound["W"]] if "W" in self.bound else []
            else:
                args.append(self.expression(argument))
        own = f"{name}_{self.rank}" if name in BY_RANK else name
        return Op(own, tuple(args), axis)
