"""The fault catalogue: ways to get attention wrong, derived from the declared equations.

A fault is a rewriting of equations (`wrong_formulas`, `poor_arithmetic`) or a misbehaving function
around the right ones (`misbehaviour`). It names no case and no profile: `program` says what
becomes of a profile's equations, where that is anything at all. The catalogue tests the suite,
since every fault must be caught, and diagnoses ports, since a fault that reproduces a port's
output is probably what the port does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

from qkvac.spec import faulty, misbehaviour, poor_arithmetic, shapes, wrong_formulas
from qkvac.spec.attention import PROFILES
from qkvac.spec.faulty import FaultyShapes
from qkvac.spec.kills import CAUGHT_BY
from qkvac.spec.misbehaviour import Array, Function, Habit
from qkvac.spec.rewriting import Rewrite, derived, rewritten
from qkvac.spec.syntax import Program

Kind = Literal["formula", "arithmetic", "behaviour"]
Fit = Literal["always", "square", "never"]

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

    @property
    def about(self) -> str:
        """The fault in a sentence."""
        verb = "A function that" if self.kind == "behaviour" else "Attention computed with"
        return f"{verb} {self.what}."

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Checks that must catch it, such as "A L": a quantity or check, and a clause or status."""
        return CAUGHT_BY.get(self.name, ())

    @property
    def structural(self) -> bool:
        return self.kind == "formula"

    def program(self, declared: Program) -> Program | None:
        """The faulty equations; None where the fault has no place in the declared ones."""
        return _rewritten(declared, self.rules) if self.rules else declared

    def fit(self, profile: str, variant: str | None = None) -> Fit:
        """Whether the faulty equations have the declared shapes: for all sizes, or equal ones."""
        program = self.program(PROFILES[profile].program(variant))
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
            name = next(iter(inputs.values())).dtype.name
            return faulty.compute(program, inputs, given, name)

        return self.wrap(plain) if self.wrap is not None else plain


@cache
def _rewritten(declared: Program, rules: tuple[Rewrite, ...]) -> Program | None:
    return rewritten(declared, rules)


def _of_formula(entry: wrong_formulas.Formula) -> Fault:
    common = Fault(entry.name, "formula", entry.what, entry.rules, None)
    common = replace(common, also_known_as=entry.also_known_as)
    if isinstance(entry, poor_arithmetic.Poor):
        return replace(common, kind="arithmetic", dtype=entry.dtype)
    return replace(common, dtype=IN_FLOAT64.get(entry.name, "float32"))


def _of_habit(entry: Habit) -> Fault:
    return Fault(
        *(entry.name, "behaviour", entry.what),
        wrap=entry.wrap,
        dtype=entry.dtype,
        also_known_as=entry.also_known_as,
    )


IN_FLOAT64: Final[Mapping[str, str]] = dict.fromkeys(("scale-epsilon", "scale-float32"), "float64")
"""Wrong formulas that differ from the right one by a rounding error of float32."""

FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        *map(_of_formula, wrong_formulas.FORMULAS),
        *map(_of_formula, poor_arithmetic.ARITHMETIC),
        *map(_of_habit, misbehaviour.HABITS),
    )
}
"""The catalogue, by name, in the order in which it is listed."""
