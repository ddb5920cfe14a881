"""The interpretation of degrees: what becomes of results where inputs are scaled by powers of two.

If every input X is multiplied by 2**k with its own degree k, a quantity of degree m comes out
multiplied by 2**m, and bit for bit so where nothing leaves the normal range. Signs are the same
with −1 for 2, where degrees count modulo 2. The degree of an expression is linear in those of the
inputs, and so is what they have to meet: terms of a sum have equal degrees, the argument of a
softmax has none. The moves that a program allows are solutions of these equations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from math import gcd, lcm
from typing import Final

from qkvac.spec.grammar.normal_form import normal
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.syntax import Equation, Expr, Op, Program, Ref, SpecError

Form = tuple[int, ...]
"""A degree as a sum of the inputs' degrees, so many times each."""
Degrees = Mapping[str, int]

FARTHEST: Final = 3
"""The largest degree of a move: nothing is multiplied or divided by more than 8."""
MOST: Final = 4
"""Moves of a program."""
DIRECTIONS: Final = 8
"""So many independent directions are combined; there are seldom more than five."""


class InhomogeneousError(SpecError):
    """Scaling the inputs so changes a quantity by no power of two."""


@dataclass(frozen=True)
class Condition:
    """Two degrees that have to be equal, and where."""

    equation: Equation
    node: Op
    left: Form
    right: Form


@dataclass(frozen=True)
class Homogeneity:
    """The degrees of a program's quantities, and what those of its inputs have to meet."""

    inputs: tuple[str, ...]
    forms: Mapping[str, Form]
    conditions: tuple[Condition, ...]
    signs: bool = False

    @classmethod
    @cache
    def of(cls, program: Program, *, signs: bool = False) -> Homogeneity:
        names = tuple(tensor.name for tensor in program.inputs if tensor.kind == "real")
        reading = _Reading(names, signs)
        forms = dict[str, Form]()
        for equation in program.equations:
            reading.equation = equation
            forms[equation.target.name] = reading.form(equation.expression)
            reading.known[equation.target.name] = forms[equation.target.name]
        return cls(names, forms, tuple(reading.conditions), signs)

    def value(self, form: Form, given: Degrees) -> int:
        total = sum(k * given.get(name, 0) for k, name in zip(form, self.inputs, strict=True))
        return total % 2 if self.signs else total

    def degrees(self, given: Degrees) -> dict[str, int]:
        """Degree of every target; raises InhomogeneousError, naming the equation."""
        for condition in self.conditions:
            left, right = (self.value(f, given) for f in (condition.left, condition.right))
            if left != right:
                name, text = condition.node.name, condition.equation.text
                rule = operation(name).signs if self.signs else operation(name).powers
                what = (
                    f"a sum of degrees {left} and {right}"
                    if rule == "sum"
                    else f"{name} of degree {left}"
                )
                raise InhomogeneousError(f"{text}: {what}")
        return {name: self.value(form, given) for name, form in self.forms.items()}

    def directions(self) -> tuple[Form, ...]:
        """A basis of all degrees of the inputs that meet the conditions."""
        rows = [
            [Fraction(x - y) for x, y in zip(c.left, c.right, strict=True)] for c in self.conditions
        ]
        return tuple(_basis(rows, len(self.inputs), 2 if self.signs else 0))


class _Reading:
    def __init__(self, inputs: Sequence[str], signs: bool) -> None:
        self.signs = signs
        self.nothing: Form = (0,) * len(inputs)
        self.known: dict[str, Form] = {
            name: tuple(int(other == name) for other in inputs) for name in inputs
        }
        self.conditions: list[Condition] = []
        self.equation: Equation

    def form(self, node: Expr) -> Form:
        """Scalars have the degree 0: they are not scaled."""
        if isinstance(node, Ref):
            return self.known.get(node.name, self.nothing)
        if not isinstance(node, Op):
            return self.nothing
        defined = operation(node.name)
        operands = [self.form(argument) for argument in node.args]
        kinds = [operand.kind for operand in defined.operands]
        reals = [k for k, kind in zip(operands, kinds, strict=False) if kind in ("tensor", "any")]
        rule = defined.signs if self.signs else defined.powers
        if rule == "product":
            return tuple(map(sum, zip(*reals, strict=True)))
        if rule in ("sum", "none"):
            for other in reals[1:] if rule == "sum" else reals:
                left, right = (reals[0], other) if rule == "sum" else (other, self.nothing)
                self.conditions.append(Condition(self.equation, node, left, right))
        return reals[0] if reals and rule != "none" else self.nothing


def degrees(program: Program, given: Degrees, *, signs: bool = False) -> dict[str, int]:
    """Degree of every equation's target; inputs that are not `given` have the degree 0.

    Raises InhomogeneousError, naming the equation, where there is none.
    """
    return Homogeneity.of(program, signs=signs).degrees(given)


@dataclass(frozen=True)
class Move:
    """Degrees of inputs, and those of results that follow; those of 0 are left out."""

    inputs: Degrees
    results: Degrees


@cache
def moves(program: Program, *, signs: bool = False) -> tuple[Move, ...]:
    """A few ways to scale the inputs of a program, or to turn their signs.

    The first one moves as few results as it can, and many inputs; the second one as many results as
    it can. Further ones move what has gone in one direction alone, or not at all. There are none
    for a program that has no degrees.
    """
    left = list(_possible(normal(program), signs))
    ways = set[tuple[str, bool]]()

    def new(move: Move) -> int:
        return len(_ways(move) - ways)

    chosen = list[Move]()
    for prefer in (
        lambda move: (-len(move.results), len(move.inputs)),
        lambda move: (len(move.results), new(move), _far(move)),
        *(MOST - 2) * (lambda move: (new(move), _far(move)),),
    ):
        candidates = [m for m in left if new(m) or (m.results.keys() and len(chosen) == 1)]
        candidates = [move for move in candidates if move not in chosen]
        if candidates:
            chosen.append(max(candidates, key=prefer))
            ways |= _ways(chosen[-1])
    named = {equation.target.name for equation in program.equations}
    return tuple(
        Move(move.inputs, {n: k for n, k in move.results.items() if n in named}) for move in chosen
    )


def _possible(program: Program, signs: bool) -> Iterator[Move]:
    """Combinations of the directions in which a program can be moved, as far as may be."""
    found = Homogeneity.of(program, signs=signs)
    directions = found.directions()[:DIRECTIONS]
    for chosen in product((0, 1) if signs else (1, 0, -1), repeat=len(directions)):
        sums = [
            sum(c * d[i] for c, d in zip(chosen, directions, strict=True))
            for i in range(len(found.inputs))
        ]
        sums = [k % 2 for k in sums] if signs else sums
        if not any(sums):
            continue
        given = dict(zip(found.inputs, sums, strict=True))
        reached = found.degrees(given)
        largest = max(map(abs, (*given.values(), *reached.values())))
        step = 1 if signs else gcd(*sums)
        often = 1 if signs else FARTHEST * step // largest
        if often:
            yield Move(
                *({n: k // step * often for n, k in part.items() if k} for part in (given, reached))
            )


def _ways(move: Move) -> set[tuple[str, bool]]:
    """Which inputs go up, and which down."""
    return {(name, k > 0) for name, k in move.inputs.items()}


def _far(move: Move) -> int:
    return sum(map(abs, move.inputs.values()))


def _basis(rows: list[list[Fraction]], width: int, modulus: int) -> Iterator[Form]:
    """Whole-number solutions of homogeneous equations, by elimination; modulo 2, or of numbers."""
    reduced, pivots = list[list[Fraction]](), list[int]()
    for column in reversed(range(width)):
        if modulus:
            rows = [[Fraction(int(x) % modulus) for x in row] for row in rows]
        pivot = next((row for row in rows if row[column]), None)
        if pivot is None:
            continue
        pivot = [x / pivot[column] for x in pivot]
        rows = [_less(row, pivot, column) for row in rows]
        rows = [row for row in rows if any(row)]
        reduced = [_less(row, pivot, column) for row in reduced] + [pivot]
        pivots.append(column)
    for free in (column for column in range(width) if column not in pivots):
        solution = [Fraction(int(column == free)) for column in range(width)]
        for pivot, column in zip(reduced, pivots, strict=True):
            solution[column] = -pivot[free]
        whole = lcm(*(x.denominator for x in solution))
        yield tuple(int(x * whole) % modulus if modulus else int(x * whole) for x in solution)


def _less(row: list[Fraction], pivot: list[Fraction], column: int) -> list[Fraction]:
    """The row with as much of the pivot taken away as leaves nothing in a column."""
    return [x - row[column] * y for x, y in zip(row, pivot, strict=True)]
