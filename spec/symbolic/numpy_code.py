"""The NumPy interpretation: equations as the source text of statements.

    lines = [*helpers(program), *sizes(program), *statements(program)]

compute a program from arrays called like its inputs and parameters. Leading batch axes broadcast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from qkvac.spec.grammar import page
from qkvac.spec.grammar.operation import SUM, Medium
from qkvac.spec.grammar.operations import OPERATIONS
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, Tensor, walk

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Page(page.Page):
    """Expressions in NumPy's syntax.

    `names` says what is called otherwise than in the text. Matrices that samples share, which have
    no batch axes, are transposed in short.
    """

    medium: ClassVar[Medium] = "numpy"

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        names: Mapping[str, str] = NOTHING,
        shared: Collection[str] = (),
    ) -> None:
        super().__init__(tensors)
        self.names = names
        self.matrices = {name for name in shared if name in tensors and tensors[name].rank == 2}

    def of(self, node: Expr, level: int = SUM) -> str:
        if isinstance(node, Op) and node.name == "transpose":
            (matrix,) = node.args
            if isinstance(matrix, Ref) and matrix.name in self.matrices:
                return f"{self.name(matrix.name)}.T"
        return super().of(node, level)

    def name(self, name: str) -> str:
        return self.names.get(name, name)


def statements(program: Program) -> tuple[str, ...]:
    """An assignment for each equation: `Q = X @ Wq`."""
    writing = Page(program.tensors)
    return tuple(f"{e.target.name} = {writing.of(e.expression)}" for e in program.equations)


def sizes(program: Program) -> tuple[str, ...]:
    """An assignment for each axis that the statements name: `c = Wq.shape[-1]`."""
    used = {node.name for node in _nodes(program) if isinstance(node, Ref)}
    found = dict[str, str]()
    for tensor in program.inputs:
        for name, read in readings(tensor, Page(program.tensors)):
            if name in used and name not in program.parameters:
                found.setdefault(name, f"{name} = {read}")
    return tuple(found.values())


def readings(tensor: Tensor, writing: Page) -> Iterator[tuple[str, str]]:
    """The axes whose sizes can be read off a tensor, and how: `X.shape[-2]`."""
    for place, axis in enumerate(tensor.axes):
        if isinstance(axis, Ref):
            yield axis.name, f"{writing.name(tensor.name)}.shape[{place - tensor.rank}]"


def helpers(program: Program) -> tuple[str, ...]:
    """Sources of the functions that the statements call and NumPy lacks, in a fixed order."""
    return helpers_of(_nodes(program))


def helpers_of(nodes: Iterable[Expr]) -> tuple[str, ...]:
    """Those that some expressions call."""
    used = {node.name for node in nodes if isinstance(node, Op)}
    return tuple(o.helper for o in OPERATIONS.values() if o.helper and o.name in used)


def needs_math(program: Program) -> bool:
    """Whether the statements call the standard library's `math`."""
    return any(isinstance(node, Op) and node.name == "sqrt" for node in _nodes(program))


def _nodes(program: Program) -> Iterator[Expr]:
    for equation in program.equations:
        yield from walk(equation.expression)
