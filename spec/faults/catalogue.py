"""The fault catalogue: ways to get attention wrong, derived from the declared equations.

A fault is a rewriting of equations (`wrong_formulas`, `poor_arithmetic`) or a misbehaving function
around the right ones (`misbehaviour`). It names no case and no profile: `program` says what
becomes of a profile's equations, where that is anything at all. Faults of gradients rewrite adjoint
equations and nothing else; what a wrong formula makes of gradients is its own adjoint.

The catalogue tests the suite, since every fault must be caught, and diagnoses ports, since a fault
that reproduces a port's output is probably what the port does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

from qkvac.spec.cases.case import Case
from qkvac.spec.faults import evaluator
from qkvac.spec.faults.carrying import carried, origin
from qkvac.spec.faults.evaluator import FaultyShapes
from qkvac.spec.faults.formulas import (
    attention,
    gradient_precision,
    gradients,
    heads,
    layers,
    masks,
    precision,
)
from qkvac.spec.faults.kills import CAUGHT_BY
from qkvac.spec.faults.operations.mistakes import BY_RANK
from qkvac.spec.faults.rewriting import Rewrite, Roles, derived, rewritten
from qkvac.spec.faults.side_effects import calls, memory
from qkvac.spec.faults.side_effects import gradients as gradient_habits
from qkvac.spec.faults.side_effects.calls import Array, Function, Habit
from qkvac.spec.grammar import printing
from qkvac.spec.grammar.adjoint import cotangent
from qkvac.spec.grammar.syntax import Op, Program, Ref
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts import clauses

Kind = Literal["formula", "arithmetic", "behaviour"]
Fit = Literal["always", "square", "never"]

_QUANTITY: Final = re.compile(r"\b(d?)([XQKVΩACYPE])(?![\w])")

_WIDTH: Final = re.compile(r"(?:(?<=[/√])|(?<=√\())[cdn](?!\w)")

SQUARE: Final = 4
"""A size for every axis at once; heads and groups divide it."""


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue."""

    name: str
    kind: Kind
    what: str
    """What it does, so that "C equals the result with …" reads well."""
    rules: tuple[Rewrite, ...] = ()
    wrap: Callable[[Function], Function] | None = None
    dtype: str = "float32"
    """The required dtype in which it is demonstrated; float64 where float32 cannot tell."""
    also_known_as: tuple[str, ...] = ()
    """Public reports of it, as owner/repository#number."""
    inputs: tuple[str, ...] = ()
    """Inputs without which it has no place."""
    of_gradients: bool = False
    """Whether it is about gradients alone, and has no place in a forward computation."""

    @property
    def about(self) -> str:
        """The fault in a sentence."""
        made = "Gradients" if self.of_gradients else "Attention"
        verb = "A function that" if self.kind == "behaviour" else f"{made} computed with"
        return f"{verb} {self.what}."

    @property
    def caught_by(self) -> tuple[str, ...]:
        """What must catch it, such as "A local": a quantity or check, and what that fails by."""
        pairs = (words.rsplit(" ", 1) for words in CAUGHT_BY.get(self.name, ()))
        return tuple(f"{where} {clauses.word(what)}" for where, what in pairs)

    @property
    def structural(self) -> bool:
        return self.kind == "formula"

    @property
    def of_batches(self) -> bool:
        """Whether it does nothing without leading axes."""
        return any(name in rule.text for rule in self.rules for name in BY_RANK)

    def concerns(self, case: Case) -> bool:
        """Whether it can be computed for a case, and may show there."""
        return bool(case.batch or not self.of_batches) and self.fits(case.program, case.bindings)

    def program(self, declared: Program) -> Program | None:
        """The faulty equations; None where the fault has no place in the declared ones."""
        if not set(self.inputs) <= {tensor.name for tensor in declared.inputs}:
            return None
        forward = origin(declared)
        if self.of_gradients and forward is None:
            return None
        if not self.rules:
            return declared
        if forward is None or self.of_gradients or self.kind == "arithmetic":
            return _rewritten(declared, self.rules)
        return carried(forward, self.rules)

    def said(self, program: Program) -> str:
        """`what` it does, with the names that quantities and widths have in a program."""
        roles = Roles.of(program)

        def quantity(found: re.Match[str]) -> str:
            gradient, word = found.groups()
            return f"{gradient}{roles.names.get(word, word)}"

        def width(found: re.Match[str]) -> str:
            size = roles.bound.get(found.group(), Ref(found.group()))
            shown = printing.expression(size).replace(" ", "")
            return f"({shown})" if isinstance(size, Op) else shown

        return _WIDTH.sub(width, _QUANTITY.sub(quantity, self.what))

    def fit(self, profile: str, variant: str | None = None) -> Fit:
        """Whether the faulty equations have the declared shapes: for all sizes, or equal ones."""
        program = self.program(known_profiles()[profile].program(variant))
        if program is None:
            return "never"
        names = (*program.axis_names, *program.parameters)
        for sizes, fit in ((None, "always"), (dict.fromkeys(names, SQUARE), "square")):
            try:
                shapes.check(program, sizes, algebra=FaultyShapes())
            except shapes.ShapeError:
                continue
            return "always" if fit == "always" else "square"
        return "never"

    def fits(self, declared: Program, sizes: Mapping[str, Any]) -> bool:
        """Whether the faulty equations can be computed for these sizes."""
        program = self.program(declared)
        if program is None:
            return False
        try:
            shapes.check(program, derived(declared, program, sizes), algebra=FaultyShapes())
        except (shapes.ShapeError, ZeroDivisionError):
            return False
        return True

    def function(self, declared: Program, sizes: Callable[[Any], Mapping[str, Any]]) -> Function:
        """The fault as a function from inputs to all quantities, in the dtype of the inputs.

        `sizes` gives the sizes of the axes for inputs.
        """
        program = self.program(declared)
        assert program is not None, f"{self.name} has no place here"

        def plain(inputs: Mapping[str, Array]) -> dict[str, Array]:
            given = derived(declared, program, sizes(inputs))
            return _returned(
                declared, evaluator.compute(program, inputs, given, _dtype_of(inputs)), inputs
            )

        return self.wrap(plain) if self.wrap is not None else plain

    def answering(self, case: Case) -> Function:
        """The fault as a function that is asked about a case, and the same with another mask.

        Where it has no place in the equations that the inputs call for, it is right.
        """

        def plain(inputs: Mapping[str, Array]) -> dict[str, Array]:
            declared = known_profiles()[case.profile].program(variant_for(case, inputs) or None)
            program = self.program(declared) or declared
            sizes = derived(declared, program, case.bindings)
            return _returned(
                declared, evaluator.compute(program, inputs, sizes, _dtype_of(inputs)), inputs
            )

        return self.wrap(plain) if self.wrap is not None else plain


def variant_for(case: Case, inputs: Mapping[str, Array]) -> str:
    """Which text of the case's profile inputs call for, with or without a mask of their own."""
    if "L" not in case.sizes:
        return case.variant
    mask = inputs.get("mask")
    kind = "" if mask is None else "boolean" if mask.dtype == bool else "additive"
    words = (kind, *(word for word in ("causal", "scale") if word in case.variant.split("-")))
    return "-".join(filter(None, words)) or "plain"


def _dtype_of(inputs: Mapping[str, Array]) -> str:
    """The dtype of the real inputs."""
    kinds = (array.dtype for array in inputs.values())
    return str(next(kind.name for kind in kinds if kind.kind not in "biu"))


def _returned(
    declared: Program, found: dict[str, Array], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """All quantities of a forward program; of gradients those that are asked for, in its order."""
    if origin(declared) is None:
        return found
    results = {cotangent(name): array.shape for name, array in inputs.items()}
    return {name: found[name].reshape(results[name]) for name in found if name in results}


@cache
def _rewritten(declared: Program, rules: tuple[Rewrite, ...]) -> Program | None:
    return rewritten(declared, rules)


def _of_formula(entry: attention.Formula) -> Fault:
    common = Fault(entry.name, "formula", entry.what, entry.rules, None)
    common = replace(common, also_known_as=entry.also_known_as)
    if isinstance(entry, precision.Poor):
        return replace(common, kind="arithmetic", dtype=entry.dtype)
    return replace(common, dtype=IN_FLOAT64.get(entry.name, "float32"))


def _about_gradients(fault: Fault) -> Fault:
    return replace(fault, of_gradients=True)


def _of_habit(entry: Habit) -> Fault:
    return Fault(
        *(entry.name, "behaviour", entry.what),
        wrap=entry.wrap,
        dtype=entry.dtype,
        inputs=entry.inputs,
        also_known_as=entry.also_known_as,
    )


IN_FLOAT64: Final[Mapping[str, str]] = dict.fromkeys(("scale-epsilon", "scale-float32"), "float64")
"""Wrong formulas that differ from the right one by a rounding error of float32."""

FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        *map(_of_formula, attention.FORMULAS),
        *map(_of_formula, masks.MASKS),
        *map(_of_formula, heads.HEADED),
        *map(_of_formula, layers.LAYERS),
        *map(_of_formula, precision.ARITHMETIC),
        *map(_of_habit, calls.HABITS),
        *map(_of_habit, memory.HABITS),
        *map(_about_gradients, map(_of_formula, gradients.GRADIENTS)),
        *map(_about_gradients, map(_of_formula, gradient_precision.NARROW)),
        *map(_about_gradients, map(_of_habit, gradient_habits.HABITS)),
    )
}
"""The catalogue, by name, in the order in which it is listed."""
