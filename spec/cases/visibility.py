"""Visibility: which keys a query may attend to, by its masks and by causality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvac.spec.cases.case import Case
from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.equations import evaluate, fold
from qkvac.spec.grammar.normal_form import normal
from qkvac.spec.grammar.syntax import Equation, Expr, Op, Program, Ref, Tensor, walk
from qkvac.spec.registry import remembered
from qkvac.spec.symbolic.influence import Influence
from qkvac.spec.symbolic.structure import triangles

Array = np.ndarray[Any, Any]


def visible(
    case: Case, inputs: Mapping[str, Array], conventions: Mapping[str, str]
) -> Mapping[str, tuple[Array, int]]:
    """For each tensor of weights, whether a query sees a key, and the axis of keys.

    Booleans have the shape of the weights, those that nothing masks are left out; the axis is
    counted from the end.
    """
    program, found = normal(case.program, products=False), {}
    for equation in program.equations:
        node = equation.expression
        if isinstance(node, Op) and node.axis is not None and len(node.args) > 1:
            kept = _evaluated(program, node.args[1], inputs, case, conventions)
            axes = equation.target.axes
            own = tuple(int(fold(axis, case.sizes).rational()) for axis in axes)
            shape = (*case.batch, *own)
            found[equation.target.name] = np.broadcast_to(kept, shape), node.axis - len(own)
    return found


def _evaluated(
    program: Program,
    where: Expr,
    inputs: Mapping[str, Array],
    case: Case,
    conventions: Mapping[str, str],
) -> Array:
    names = {node.name for node in walk(where) if isinstance(node, Ref)}
    target = Tensor("kept", axes_of(where, program.tensors))
    part = Program(
        tuple(tensor for tensor in program.inputs if tensor.name in names),
        program.parameters,
        (Equation(target, where, "", 0),),
    )
    algebra = Influence(conventions)
    given = {
        tensor.name: algebra.given(inputs[tensor.name])
        if tensor.kind == "real"
        else inputs[tensor.name]
        for tensor in part.inputs
    }
    found: Array = evaluate(part, algebra, given, case.bindings)["kept"]
    return found


@remembered
def has_blind_queries(case: Case, alignment: str) -> bool:
    """Whether some query of a case sees no key under a causal alignment."""
    if not case.masked and all(queries == keys for queries, keys in triangles(case.program)):
        return False
    inputs = case.inputs(case.dtypes[0])
    seen = visible(case, inputs, {"causal_alignment": alignment})
    return any(bool(np.any(~kept.any(axis))) for kept, axis in seen.values())
