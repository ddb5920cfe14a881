"""What every program must be, parsed or derived: each name defined once and before it is used,
ranks as declared, and masks and indices only where such are taken.
"""

from __future__ import annotations

from dataclasses import replace

from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.syntax import Expr, Kind, Op, Program, Ref, SpecError, Tensor


class InconsistencyError(SpecError):
    """What is wrong, and the declaration or equation that it is wrong with."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def typed(program: Program) -> Program:
    """The program with the kinds of its inputs; raises InconsistencyError if it is no program."""
    ordered(program)
    kinds = dict[str, Kind]()
    for equation in program.equations:
        try:
            _infer_kinds(equation.expression, None, kinds)
        except SpecError as error:
            raise InconsistencyError(equation.target.name, str(error)) from None
    inputs = (replace(tensor, kind=kinds.get(tensor.name, "real")) for tensor in program.inputs)
    return replace(program, inputs=tuple(inputs))


def ordered(program: Program, *, as_declared: bool = True) -> Program:
    """The program; raises InconsistencyError unless names are defined once, and before their use.

    Results must have the number of axes that is declared; those of faulty formulas need not, if
    not `as_declared`: what broadcasts goes unnoticed in a port, too.
    """
    names = (*program.axis_names, *program.parameters)
    scalars, tensors = frozenset(names), program.tensors
    for name in names:
        if name in tensors:
            raise InconsistencyError(name, f"{name} names both a tensor and an axis")
    known = dict[str, Tensor]()
    for tensor in program.inputs:
        if tensor.name in known:
            raise InconsistencyError(tensor.name, f"{tensor.name} is declared twice")
        known[tensor.name] = tensor
    for equation in program.equations:
        target = equation.target
        if target.name in known:
            raise InconsistencyError(target.name, f"{target.name} is defined twice")
        try:
            rank = len(axes_of(equation.expression, known, scalars))
        except SpecError as error:
            raise InconsistencyError(target.name, str(error)) from None
        if as_declared and rank != target.rank:
            problem = f"the right-hand side has {rank} axes, {target.name} has {target.rank}"
            raise InconsistencyError(target.name, problem)
        known[target.name] = target
    return program


def _infer_kinds(expression: Expr, kind: Kind | None, kinds: dict[str, Kind]) -> None:
    """Record what each name is used as: a mask in `where=` and `&`, an index in take."""
    if isinstance(expression, Ref):
        used: Kind = kind or "real"
        if kinds.setdefault(expression.name, used) != used:
            before = kinds[expression.name]
            raise SpecError(f"{expression.name} is used both as {before} and as {used}")
    elif isinstance(expression, Op):
        if _is_mask(expression) and kind != "mask":
            raise SpecError(f"{expression.name} is a mask, which only where= and & take")
        defined = operation(expression.name)
        for operand, argument in zip(defined.operands, expression.args, strict=False):
            below: Kind | None = None
            if operand.kind == "mask":
                below = "mask"
                if not _is_mask(argument):
                    masks = "a name, causal(…), finite(…) or m & m"
                    raise SpecError(f"where= and & take a mask: {masks}")
            elif operand.kind == "index":
                below = "index"
                if not isinstance(argument, Ref):
                    raise SpecError(f"the index of {expression.name} is a name")
            _infer_kinds(argument, below, kinds)


def _is_mask(expression: Expr) -> bool:
    if isinstance(expression, Op):
        return operation(expression.name).is_mask
    return isinstance(expression, Ref)
