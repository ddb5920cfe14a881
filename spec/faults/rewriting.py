"""Rewriting: from declared equations to faulty ones, by rules that name places and not profiles.

A rule replaces what stands at one place of a program, found by its role and not by its name: the
scaled scores, the softmax, the product that makes scores or context, a projection, the mask. What
is put there is a text in the syntax of the grammar and the operations of `operations.mistakes`,
over these names (a rule whose text uses an unbound one does not apply):

    S, s    the unscaled scores, and the factor they are multiplied by; P is s where it is a
            parameter
    Z, M    the softmax's argument, and its mask; W is M too, but may be absent
    D, B    the argument without an additive mask, and that mask
    G, U    the parts of M: what the given mask keeps, and the causal mask
    T, R    the causal mask, whether declared or not; R only where L and S are different axes
    A, v    the attention weights, and what they are multiplied with
    q, k    the factors of the scores; Y is the declared expression itself
    x, wq, wk, wv, own   the projected tensor, the three weights, and that of the projection
    bq, bk, bv           the biases
    z, o, y merged heads, the weights that project them, and the width of the result
    c, d, n, e, H        width under the root, width of tokens, number of keys, width in all, heads
    f, u    width of a query in its head, and of a value where it is another axis
    E, p, i tables of tokens and of positions, and the tokens
    l, r    operands of a sum, a product or a call

and the derived parameters of `qkvac.spec.faults.sites.roles`; in programs of gradients, those of
`qkvac.spec.faults.sites.gradient_roles` as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from qkvac.spec.faults.operations.mistakes import MISTAKES
from qkvac.spec.faults.sites import gradient_places, places
from qkvac.spec.faults.sites.roles import DERIVED, Roles
from qkvac.spec.grammar.consistency import ordered
from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.syntax import Equation, Expr, Number, Op, Program, Ref, walk
from qkvac.spec.symbolic import text

PLACES: Final[Mapping[str, places.Place]] = {**places.PLACES, **gradient_places.PLACES}

__all__ = ["DERIVED", "Rewrite", "Roles", "derived", "operations", "rewritten"]


def derived(declared: Program, faulty: Program, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """`sizes` and the values of the derived parameters that a faulty program uses."""
    names = [name for name in faulty.parameters if name in DERIVED]
    if not names:
        return dict(sizes)
    bound = Roles.of(declared).bound
    default = Op("divide", (Number(Fraction(1)), Op("sqrt", (bound["f"],))))
    scale, usual = (float(fold(factor, sizes)) for factor in (bound["s"], default))
    return {**sizes, **{name: DERIVED[name](scale, usual) for name in names}}


@dataclass(frozen=True)
class Rewrite:
    """Put `text` at every `place` of a program (see `sites.places`), where `needs` are bound.

    `needs` are names; with a "!" before it, one that must not be bound.
    """

    place: str
    text: str
    needs: str = ""

    def apply(self, program: Program, roles: Roles) -> Program | None:
        """The faulty program, None where the rule has no place in it or changes nothing."""
        if not roles.has(self.needs):
            return None
        changed, equations = False, list[Equation]()
        for equation in program.equations:
            try:
                expression = PLACES[self.place](self.text, equation, roles)
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

    Their texts mean the declared program, not what an earlier rule has made of it. Raises
    SpecError if the result is no program: a rule that refers to what is defined later.
    """
    roles, found = Roles.of(program), program
    for rule in rules:
        changed = rule.apply(found, roles)
        if changed is None:
            return None
        found = changed
    return ordered(found, as_declared=False)


def _restated(equation: Equation, expression: Expr) -> Equation:
    shown = f"{text.declaration(equation.target)} = {text.expression(expression)}"
    return replace(equation, expression=expression, text=shown)


def operations(program: Program) -> Iterator[str]:
    """Names of the operations outside the grammar that a faulty program uses."""
    for equation in program.equations:
        for node in walk(equation.expression):
            if isinstance(node, Op) and node.name in MISTAKES:
                yield node.name
