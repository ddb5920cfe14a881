"""Mutants: every first-order change of a profile's equations, as a fault.

The catalogue's rules speak of roles, such as the scaled scores; a text of one's own may have none
of them. Its mutants need no roles: they are made from the tree, one for each change of one
equation (`changes`), and named by the equation that results: `V = X @ Wk`. A changed
equation of a profile is carried through the adjoint into its gradients; adjoint equations are
changed themselves. A change counts if the result is an equation of the declared shape, for all
sizes or where all axes are equal, and is not the same in another way of writing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from qkvac.spec.faults.carrying import differentiated, origin
from qkvac.spec.faults.catalogue import SQUARE, Fault, Fit
from qkvac.spec.faults.changes import Scene, changes
from qkvac.spec.faults.evaluator import FaultyShapes
from qkvac.spec.faults.operations.mistakes import MISTAKES
from qkvac.spec.grammar import printing
from qkvac.spec.grammar.consistency import ordered
from qkvac.spec.grammar.equality import Form, form
from qkvac.spec.grammar.equations import evaluate
from qkvac.spec.grammar.syntax import Equation, Expr, Op, Program, Ref, SpecError, Tensor, walk
from qkvac.spec.profile import Profile
from qkvac.spec.symbolic.shapes import Axis, Shape, ShapeError, fold


@dataclass(frozen=True)
class Change:
    """A change of one equation, by which it is found again in another text of the profile."""

    target: str
    label: str
    place: int
    """Which of the places in the equation that the label fits."""


@dataclass(frozen=True)
class Mutant(Fault):
    """A program in which one equation is another one."""

    change: Change = Change("", "", 0)

    @property
    def about(self) -> str:
        made = "gradients" if self.of_gradients else "results"
        return f"A function whose {made} are computed with {self.what}."

    def said(self, program: Program) -> str:
        """The equation, which has the program's own names."""
        return self.what

    def program(self, declared: Program) -> Program | None:
        """The faulty equations; None where these have none that the change could be made to."""
        found = (_backward if self.of_gradients else _forward)(declared).get(self.change)
        if found is None:
            return None
        forward = origin(declared)
        if forward is None or self.of_gradients:
            return _with(declared, found)
        return differentiated(forward, _with(forward.program, found))


def mutants(declared: Program) -> tuple[Mutant, ...]:
    """The mutants of a declared program, in the order of its equations."""
    every = ((_forward(declared), False), (_backward(declared), True))
    return tuple(_mutant(*item, backward) for found, backward in every for item in found.items())


def mutants_of(profile: Profile) -> Mapping[Mutant, str]:
    """The mutants of all texts of a profile, and the first variant in which each has a place."""
    found: dict[Mutant, str] = {}
    seen = set[tuple[Change | str, bool]]()
    for variant in profile.texts:
        for mutant in mutants(profile.program(variant)):
            keys = {(key, mutant.of_gradients) for key in (mutant.change, mutant.what)}
            if not keys & seen:
                found[mutant] = variant
            seen |= keys
    return found


def _mutant(change: Change, equation: Equation, backward: bool) -> Mutant:
    name = f"{change.target}: {change.label}" + (f" ({change.place + 1})" if change.place else "")
    what = f"{change.target} = {printing.expression(equation.expression)}"
    return Mutant(name, "formula", what, of_gradients=backward, change=change)


Changed = Mapping[Change, Equation]


def _forward(declared: Program) -> Changed:
    forward = origin(declared)
    return _changed(declared if forward is None else forward.program)


def _backward(declared: Program) -> Changed:
    """Changes of what gradients are computed by: adjoint equations, and what these compute anew."""
    forward = origin(declared)
    if forward is None:
        return {}
    own = forward.program.tensors
    adjoint = [e for e in declared.equations if not e.part and e.target.name not in own]
    used = {name for equation in adjoint for name in equation.operands}
    targets = used.union(equation.target.name for equation in adjoint)
    return {c: e for c, e in _changed(declared).items() if c.target in targets}


@cache
def _changed(program: Program) -> Changed:
    """All changes of all equations."""
    found: dict[Change, Equation] = {}
    tensors = program.inputs
    scalars = tuple(dict.fromkeys((*program.axis_names, *program.parameters)))
    for equation in program.equations:
        found |= _of_equation(equation.target, equation.expression, Scene(tensors, scalars))
        tensors = (*tensors, equation.target)
    return found


@cache
def _of_equation(target: Tensor, declared: Expr, scene: Scene) -> Changed:
    """The changes of one equation that make another one of it."""
    written: dict[Form, tuple[Change, Expr, str]] = {}
    labels = Counter[str]()
    for label, new in changes(declared, scene):
        change = Change(target.name, label, labels[label])
        labels[label] += 1
        text = printing.expression(new)
        own = form(new)
        if own not in written or len(text) < len(written[own][-1]):
            written[own] = change, new, text
    written.pop(form(declared), None)
    found: dict[Change, Equation] = {}
    for change, new, text in written.values():
        equation = Equation(target, new, f"{printing.declaration(target)} = {text}", 0)
        fit = _fit(equation, scene)
        if fit == "always" or (fit == "square" and not _alike(declared, new, scene)):
            found[change] = equation
    return found


def _fit(equation: Equation, scene: Scene) -> Fit:
    """Whether an equation has the declared shape: for all sizes, or where all axes are equal."""
    operands = tuple(scene.known[n] for n in equation.operands if n in scene.known)
    alone = Program(operands, scene.scalars, (equation,))
    nodes = walk(equation.expression)
    foreign = any(isinstance(node, Op) and node.name in MISTAKES for node in nodes)
    try:
        ordered(alone, as_declared=not foreign)
    except SpecError:
        return "never"
    axes = {name: Axis.symbol(name) for name in scene.scalars}
    for fit, sizes in _SIZES:
        bound = axes if sizes is None else dict.fromkeys(axes, sizes)
        given = {t.name: _shape(t, bound) for t in (*operands, equation.target)}
        try:
            (found,) = evaluate(alone, FaultyShapes(), given, bound, fold=fold).values()
        except ShapeError:
            continue
        if found == given[equation.target.name]:
            return fit
    return "never"


_SIZES: Final[tuple[tuple[Fit, Axis | None], ...]] = (
    ("always", None),
    ("square", Axis.size(SQUARE)),
)


def _shape(tensor: Tensor, bound: Mapping[str, Axis]) -> Shape:
    return Shape(tuple(fold(axis, bound) for axis in tensor.axes))


def _alike(declared: Expr, new: Expr, scene: Scene) -> bool:
    """Whether expressions are the same where all axes are equal."""
    one, other = (form(_of_equal_axes(node, scene)) for node in (declared, new))
    return bool(one == other)


def _of_equal_axes(node: Expr, scene: Scene) -> Expr:
    if isinstance(node, Op):
        return replace(node, args=tuple(_of_equal_axes(arg, scene) for arg in node.args))
    return Ref("") if isinstance(node, Ref) and node.name in scene.scalars else node


def _with(program: Program, changed: Equation) -> Program:
    """The program with one of its equations replaced."""
    name = changed.target.name
    return replace(
        program,
        equations=tuple(
            replace(changed, line=e.line) if e.target.name == name else e for e in program.equations
        ),
    )
