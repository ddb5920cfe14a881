"""The interpretation of degrees: what becomes of results where inputs are scaled by powers of two.

If every input X is multiplied by 2**k with its own degree k, a quantity of degree m comes out
multiplied by 2**m, and bit for bit so where nothing leaves the normal range. Signs are the same
with −1 for 2, where degrees count modulo 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from qkvac.spec.operations import operation
from qkvac.spec.syntax import Expr, Op, Program, Ref, SpecError


class InhomogeneousError(SpecError):
    """Scaling the inputs so changes a quantity by no power of two."""


def degrees(program: Program, given: Mapping[str, int], *, signs: bool = False) -> dict[str, int]:
    """Degree of every equation's target; inputs that are not `given` have the degree 0.

    Raises InhomogeneousError, naming the equation, where there is none.
    """
    known = {tensor.name: given.get(tensor.name, 0) for tensor in program.inputs}
    found = dict[str, int]()
    for equation in program.equations:
        try:
            found[equation.target.name] = _degree(equation.expression, known, signs)
        except InhomogeneousError as error:
            raise InhomogeneousError(f"{equation.text}: {error}") from None
        known[equation.target.name] = found[equation.target.name]
    return found


def _degree(node: Expr, known: Mapping[str, int], signs: bool) -> int:
    """Scalars have the degree 0: they are not scaled."""
    if isinstance(node, Ref):
        return known.get(node.name, 0)
    if not isinstance(node, Op):
        return 0
    defined = operation(node.name)
    operands = [_degree(argument, known, signs) for argument in node.args]
    kinds = [operand.kind for operand in defined.operands]
    reals = [k for k, kind in zip(operands, kinds, strict=False) if kind in ("tensor", "any")]
    rule = defined.signs if signs else defined.powers
    reals = [k % 2 for k in reals] if signs else reals
    if rule == "product":
        return sum(reals) % 2 if signs else sum(reals)
    if rule == "sum" and len(set(reals)) > 1:
        raise InhomogeneousError(f"a sum of degrees {' and '.join(map(str, reals))}")
    if rule == "none" and any(reals):
        raise InhomogeneousError(f"{node.name} of degree {reals[0]}")
    return reals[0] if reals else 0
