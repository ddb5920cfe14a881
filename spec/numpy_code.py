"""The NumPy interpretation: equations as the source text of statements.

    lines = [*helpers(program), *sizes(program), *statements(program)]

compute a program from arrays called like its inputs and parameters. Leading batch axes broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from qkvac.spec.operation import Medium
from qkvac.spec.operations import OPERATIONS
from qkvac.spec.page import Page
from qkvac.spec.syntax import Expr, Op, Program, Ref, walk


class _Numpy(Page):
    medium: ClassVar[Medium] = "numpy"


def statements(program: Program) -> tuple[str, ...]:
    """An assignment for each equation: `Q = X @ Wq`."""
    page = _Numpy(program.tensors)
    return tuple(f"{e.target.name} = {page.of(e.expression)}" for e in program.equations)


def sizes(program: Program) -> tuple[str, ...]:
    """An assignment for each axis that the statements name: `c = Wq.shape[-1]`."""
    used = {node.name for node in _nodes(program) if isinstance(node, Ref)}
    found = dict[str, str]()
    for tensor in program.inputs:
        for place, axis in enumerate(tensor.axes):
            if isinstance(axis, Ref) and axis.name in used:
                read = f"{axis.name} = {tensor.name}.shape[{place - tensor.rank}]"
                found.setdefault(axis.name, read)
    return tuple(read for name, read in found.items() if name not in program.parameters)


def helpers(program: Program) -> tuple[str, ...]:
    """Sources of the functions that the statements call and NumPy lacks, in a fixed order."""
    used = {node.name for node in _nodes(program) if isinstance(node, Op)}
    return tuple(o.helper for o in OPERATIONS.values() if o.helper and o.name in used)


def needs_math(program: Program) -> bool:
    """Whether the statements call the standard library's `math`."""
    return any(isinstance(node, Op) and node.name == "sqrt" for node in _nodes(program))


def _nodes(program: Program) -> Iterator[Expr]:
    for equation in program.equations:
        yield from walk(equation.expression)
