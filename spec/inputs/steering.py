"""Steering: choosing entries of inputs so that columns of a quantity hold what a case wants.

The columns of Q = X @ Wq are made what they should be by giving as many columns of X the task, and
reading them off with weights 1. Through a latent, a split into heads or a bias it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.syntax import Expr, Op, Ref
from qkvac.spec.inputs.anatomy import Anatomy
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame, Inputs

Columns = Sequence[int]
Ints = NDArray[np.intp]


class UnreachableError(ValueError):
    """A quantity whose columns no choice of inputs that is known here can set."""


@dataclass
class Steering:
    """Inputs in the making. Arrays are changed in place, and belong to the one who steers."""

    anatomy: Anatomy
    frame: Frame
    inputs: Inputs
    alone: bool = False
    """Whether nothing else reads columns that have a task."""
    taken: dict[str, set[int]] = field(default_factory=dict)
    """Columns of inputs and of steps on the way that have a task."""

    def width(self, node: Expr) -> int:
        return self._axis(node, -1)

    def rows(self, node: Expr) -> int:
        return self._axis(node, -2)

    def _axis(self, node: Expr, place: int) -> int:
        axis = axes_of(node, self.anatomy.named.tensors)[place]
        return int(fold(axis, self.frame.sizes).rational())

    def put(self, node: Expr, columns: Columns, values: Floats, gain: float = 1.0) -> None:
        """Column columns[i] of `node` becomes values[:, i] times `gain`, for every sample and head.

        `values` of one column are repeated. Raises UnreachableError; the inputs are then spoiled.
        """
        count = len(columns)
        if count and max(columns) >= self.width(node):
            raise UnreachableError(f"{node} has too few columns")
        picks = np.arange(count, dtype=np.intp) * (values.shape[-1] > 1)
        self._put(node, np.asarray(columns, dtype=np.intp), picks, values, gain)

    def _put(self, node: Expr, columns: Ints, picks: Ints, values: Floats, gain: float) -> None:
        if isinstance(node, Ref):
            if node.name in self.inputs:
                self.claim(node.name, columns.tolist())
                self.inputs[node.name][..., columns] = values[:, picks] * gain
            else:
                expression = self.anatomy.named.equation(node.name).expression
                self._put(expression, columns, picks, values, gain)
        elif isinstance(node, Op) and node.name == "split":
            wide, counts = self._unsplit(node, columns)
            self._put(node.args[0], wide, np.tile(picks, counts), values, gain)
        elif isinstance(node, Op) and node.name == "repeat":
            self._put(node.args[0], columns, picks, values, gain)
        elif isinstance(node, Op) and node.name == "add":
            self._put(node.args[0], columns, picks, values, gain)
            self._zero(node.args[1], columns)
        elif isinstance(node, Op) and node.name == "matmul" and isinstance(node.args[0], Ref):
            left, right = node.args[0], node.args[1]
            weight = self._matrix(right)
            free = np.asarray(self.free(left, values.shape[-1]), dtype=np.intp)
            self._put(left, free, np.arange(free.size, dtype=np.intp), values, 1.0)
            weight[..., :, columns] = 0
            weight[..., free[picks], columns] = gain
        else:
            raise UnreachableError(f"columns of {node} cannot be chosen")

    def zero(self, node: Expr, columns: Columns) -> None:
        """Columns of `node` become 0, whatever the tokens are. Raises UnreachableError."""
        self._zero(node, np.asarray(columns, dtype=int))

    def _zero(self, node: Expr, columns: Ints) -> None:
        if isinstance(node, Ref) and node.name in self.inputs:
            self.inputs[node.name][..., columns] = 0
        elif isinstance(node, Ref):
            self._zero(self.anatomy.named.equation(node.name).expression, columns)
        elif isinstance(node, Op) and node.name == "split":
            self._zero(node.args[0], self._unsplit(node, columns)[0])
        elif isinstance(node, Op) and node.name == "repeat":
            self._zero(node.args[0], columns)
        elif isinstance(node, Op) and node.name == "add":
            for argument in node.args:
                self._zero(argument, columns)
        elif isinstance(node, Op) and node.name == "matmul":
            self._matrix(node.args[1])[..., :, columns] = 0
        else:
            raise UnreachableError(f"columns of {node} cannot be made 0")

    def _unsplit(self, node: Op, columns: Ints) -> tuple[Ints, int]:
        """Columns of each head as columns of what is split, and the number of heads."""
        counts = int(fold(node.args[1], self.frame.sizes).rational())
        part = self.width(node)
        return (np.arange(counts)[:, None] * part + columns).reshape(-1), counts

    def _matrix(self, node: Expr) -> Floats:
        """A weight matrix, as it stands in a product."""
        turned = isinstance(node, Op) and node.name == "transpose"
        inner = node.args[0] if isinstance(node, Op) and turned else node
        if not isinstance(inner, Ref) or inner.name not in self.inputs:
            raise UnreachableError(f"{node} is no weight matrix")
        array = self.inputs[inner.name]
        return np.swapaxes(array, -1, -2) if turned else array

    def free(self, node: Ref, count: int) -> list[int]:
        """The first columns of an input, or of a step on the way, that have no task."""
        used = self.taken.get(node.name, set())
        found = [column for column in range(self.width(node)) if column not in used][:count]
        if len(found) < count:
            raise UnreachableError(f"{node.name} has too few columns")
        if node.name not in self.inputs:
            self.claim(node.name, found)
        return found

    def claim(self, name: str, columns: list[int]) -> None:
        used = self.taken.setdefault(name, set())
        if used.intersection(columns):
            raise UnreachableError(f"columns of {name} have two tasks")
        used.update(columns)
        if self.alone:
            for read, weight, turned in self.anatomy.projections:
                rows = (columns, slice(None)) if not turned else (slice(None), columns)
                if read == name:
                    self.inputs[weight][(..., *rows)] = 0


ONES: Final = np.ones((1, 1))
