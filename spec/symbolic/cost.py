"""The cost interpretation: the operations that a program needs, and their number.

"Five matrix products and one transposition" is part of the spec: all tokens at once, no loop over
queries, nothing computed twice. The budget check compares what an adapter executes with this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from qkvac.spec.grammar.equations import Program, evaluate
from qkvac.spec.symbolic.shapes import Axis, Shape, Shapes, fold

Sizes = tuple[int, ...]

EXPONENTIALS: Final = 1
"""Exponentials that a softmax takes per score, and σ or tanh per entry."""


@dataclass(frozen=True)
class Product:
    """A matrix product by the shapes of its factors and of its result."""

    left: Sizes
    right: Sizes
    out: Sizes

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * prod(self.out) * self.left[-1]


@dataclass(frozen=True)
class Cost:
    """Operations of a program for given sizes, in the order of the text."""

    products: tuple[Product, ...]
    transpositions: int
    elementwise: int
    """Entries computed by +, −, ×, scaling and nonlinear functions."""
    exponentials: int

    @property
    def flops(self) -> int:
        """Of the matrix products, which is what is meant by the FLOPs of attention."""
        return sum(product.flops for product in self.products)


def cost(program: Program, sizes: Mapping[str, Any], batch: Sizes = ()) -> Cost:
    """Count the operations of a program; `batch` are leading axes of its real inputs.

    Raises ShapeError where the operands do not fit.
    """
    counts = Counts()
    bound = {name: Axis.size(size) for name, size in sizes.items()}
    lead = tuple(Axis.size(size) for size in batch)
    inputs = {
        tensor.name: Shape(
            (*(lead if tensor.rank > 1 else ()), *(fold(axis, bound) for axis in tensor.axes))
        )
        for tensor in program.inputs
    }
    evaluate(program, counts, inputs, bound, fold=fold)
    return Cost(tuple(counts.products), counts.transpositions, counts.elementwise, counts.exponents)


class Counts(Shapes):
    """The algebra of shapes, which keeps count of the operations that it is asked for."""

    def __init__(self) -> None:
        self.products = list[Product]()
        self.transpositions = 0
        self.elementwise = 0
        self.exponents = 0

    def matmul(self, x: Shape, y: Shape) -> Shape:
        out = super().matmul(x, y)
        self.products.append(Product(_sizes(x), _sizes(y), _sizes(out)))
        return out

    def transpose(self, x: Shape) -> Shape:
        self.transpositions += 1
        return super().transpose(x)

    def softmax(self, x: Shape, axis: int, where: Shape | None) -> Shape:
        self.exponents += EXPONENTIALS * prod(_sizes(x))
        return self._computed(super().softmax(x, axis, where))

    def add(self, x: Shape, y: Shape) -> Shape:
        return self._computed(super().add(x, y))

    def subtract(self, x: Shape, y: Shape) -> Shape:
        return self._computed(super().subtract(x, y))

    def multiply(self, x: Shape, y: Shape) -> Shape:
        return self._computed(super().multiply(x, y))

    def negate(self, x: Shape, *_: object) -> Shape:
        return self._computed(x)

    scale = shift = negate

    def sigmoid(self, x: Shape, *_: object) -> Shape:
        """An exponential an entry, as tanh takes one of twice its argument."""
        self.exponents += EXPONENTIALS * prod(_sizes(x))
        return self._computed(x)

    tanh = sigmoid

    def _computed(self, out: Shape) -> Shape:
        self.elementwise += prod(_sizes(out))
        return out


def _sizes(shape: Shape) -> Sizes:
    return tuple(int(axis) for axis in shape.axes)
