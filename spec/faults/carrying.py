"""Wrong formulas carried through the adjoint: the gradients of a function that is wrong itself.

A framework differentiates what it is given. Who divides scores by c has gradients that are right
for that formula, so they are the adjoint of the faulty equations, not faulty adjoint equations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from qkvac.spec.faults.rewriting import Rewrite, rewritten
from qkvac.spec.grammar import printing
from qkvac.spec.grammar.adjoint import adjoint, cotangent
from qkvac.spec.grammar.syntax import Equation, Number, Op, Program, Ref, SpecError, Tensor
from qkvac.spec.registry import gradient_profiles


@dataclass(frozen=True)
class Origin:
    """The forward program that gradients belong to, and the quantity that they are of."""

    program: Program
    last: str
    shared: frozenset[str]
    """Inputs that all samples share."""


@cache
def origin(program: Program) -> Origin | None:
    """What a declared program of gradients was derived from; None for any other program."""
    for profile in gradient_profiles().values():
        for variant in profile.texts:
            if program in profile.equivalents(variant) and (forward := profile.of):
                return Origin(forward.program(variant), forward.last, forward.without_batch)
    return None


@cache
def carried(forward: Origin, rules: tuple[Rewrite, ...]) -> Program | None:
    """The gradients of the rewritten program; None where the rules have no place in it."""
    faulty = rewritten(forward.program, rules)
    return None if faulty is None else differentiated(forward, faulty)


@cache
def differentiated(forward: Origin, faulty: Program) -> Program | None:
    """The gradients of a faulty program; None if an operation in it has no reverse rule."""
    try:
        derived = adjoint(faulty, forward.last, shared=forward.shared)
    except (SpecError, AssertionError):
        return None
    own, targets = faulty.tensors.values(), derived.tensors
    unreached = [t for t in own if t.kind == "real" and cotangent(t.name) not in targets]
    return replace(derived, equations=(*derived.equations, *map(_zero, unreached)))


def _zero(tensor: Tensor) -> Equation:
    """What no path leads back to has the gradient 0."""
    target = Tensor(cotangent(tensor.name), tensor.axes)
    value = Op("multiply", (Ref(tensor.name), Number(Fraction(0))))
    text = f"{printing.declaration(target)} = {printing.expression(value)}"
    return Equation(target, value, text, 0)
