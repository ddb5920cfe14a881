"""Structure: what the axes of a program mean, by the operations that they go through.

Rows stand along an axis that some input of a sample's own has: tokens, queries, keys, heads. Their
order means nothing unless an operation says that it does, as a causal triangle does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise

from qkvac.spec.grammar.axes import axes_of, is_scalar
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.rules import ONE
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, Tensor, walk
from qkvac.spec.profile import Profile

Places = Mapping[str, tuple[int, ...]]
"""For each tensor the positions of axes, counted from the end: −1 is the last."""


def rows(profile: Profile, program: Program) -> Mapping[str, Places]:
    """For each axis along which rows stand, the inputs whose rows they are, and where.

    What all samples share has no rows of theirs, and the last axis of real numbers is a width.
    """
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in program.inputs:
        if tensor.name in profile.without_batch:
            continue
        widths = 1 if tensor.kind == "real" else 0
        for axis in tensor.axes[: tensor.rank - widths]:
            if isinstance(axis, Ref):
                at = tuple(p for p in places(tensor, (axis.name,)) if p < -widths)
                found.setdefault(axis.name, {})[tensor.name] = at
    return found


def sequences(profile: Profile, program: Program) -> frozenset[str]:
    """The axes that tokens, queries and keys stand along: those next to the widths of inputs."""
    own = rows(profile, program)
    return frozenset(
        axis.name
        for tensor in program.inputs
        if tensor.name not in profile.without_batch
        for axis in tensor.axes[-2 if tensor.kind == "real" else -1 :][:1]
        if isinstance(axis, Ref) and axis.name in own
    )


def places(tensor: Tensor, names: Iterable[str]) -> tuple[int, ...]:
    """Positions of the axes of these names, counted from the end."""
    meant = {Ref(name) for name in names}
    return tuple(i - tensor.rank for i, axis in enumerate(tensor.axes) if axis in meant)


@cache
def triangles(program: Program) -> tuple[tuple[str, str], ...]:
    """The axes of queries and keys of every causal triangle."""
    return tuple(
        dict.fromkeys(
            (queries.name, keys.name)
            for equation in program.equations
            for node in walk(equation.expression)
            if isinstance(node, Op) and node.name == "causal"
            for queries, keys in [node.args]
            if isinstance(queries, Ref) and isinstance(keys, Ref)
        )
    )


@cache
def orderless(program: Program) -> tuple[frozenset[str], ...]:
    """Axes whose order means nothing: who permutes them in all inputs, permutes the results.

    Names that stand for one axis, as those of a sum x[n, d] + y[m, d] do, come together.
    """
    return _Orders(program).free()


class _Orders:
    """Which axes are the same, and which ones an operation takes in their order."""

    def __init__(self, program: Program) -> None:
        self.tensors = program.tensors
        self.same: dict[str, str] = {name: name for name in program.axis_names}
        self.ordered: set[str] = set()
        for tensor in self.tensors.values():
            self.note(axis for axis in tensor.axes if isinstance(axis, Op))
        for equation in program.equations:
            for node in walk(equation.expression):
                if isinstance(node, Op) and not is_scalar(node, self.tensors):
                    self.visit(node)
            self.unite(equation.target.axes, axes_of(equation.expression, self.tensors))

    def free(self) -> tuple[frozenset[str], ...]:
        bound = {self.root(name) for name in self.ordered}
        found: dict[str, set[str]] = {}
        for name in self.same:
            if self.root(name) not in bound:
                found.setdefault(self.root(name), set()).add(name)
        return tuple(map(frozenset, found.values()))

    def visit(self, node: Op) -> None:
        defined = operation(node.name)
        axes = [axes_of(argument, self.tensors) for argument in node.args]
        self.note(defined.ordered(node, axes))
        if node.name == "matmul":
            left, right = axes
            self.unite(left[-1:], right[-2:-1])
            self.unite(left[:-2], right[:-2])
        elif all(operand.kind in ("tensor", "mask", "any") for operand in defined.operands):
            for one, other in pairwise(axes):
                self.unite(one, other)

    def unite(self, x: Iterable[Expr], y: Iterable[Expr]) -> None:
        """Notes that trailing axes are the same; an axis of size 1 stands against any other."""
        for one, other in zip(reversed(tuple(x)), reversed(tuple(y)), strict=False):
            if isinstance(one, Ref) and isinstance(other, Ref):
                self.same[self.root(one.name)] = self.root(other.name)
            elif ONE not in (one, other):
                self.note((one, other))

    def note(self, axes: Iterable[Expr]) -> None:
        """Notes that axes are taken in their order."""
        self.ordered.update(_names(axes))

    def root(self, name: str) -> str:
        while self.same.setdefault(name, name) != name:
            name = self.same[name]
        return name


def _names(axes: Iterable[Expr]) -> Iterator[str]:
    return (node.name for axis in axes for node in walk(axis) if isinstance(node, Ref))
