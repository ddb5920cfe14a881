"""What an algebra must offer: one method for each operation of the grammar.

A program is evaluated over an algebra (`equations.evaluate`), whose values may be
shapes, certified numbers, error bounds or counts. This is the contract of its methods:

* A value stands for a tensor with all its axes: leading batch axes, then the declared ones. Batch
  axes broadcast; an algebra needs no care for them, because
* an `axis` is a negative number, counted from the end.
* Operands of `add`, `subtract`, `multiply` and `conjunction` have been brought to one number of
  declared axes by `lift`, and so have those of `matmul` but for their last two; they broadcast.
* A number is handed over exactly, by `scale` and `shift`: what `evaluate`'s `fold` makes of it, a
  `Scalar` in all algebras but those of shapes. Sizes are what `fold` makes of them, too: ints, or
  the axes of `qkvac.spec.symbolic.shapes`.
* Masks and indices are values of their own; numeric algebras take plain boolean and integer
  arrays. True keeps.

An algebra without one of these methods is an error for a type checker, and a SpecError where a
program asks for it.
"""

from __future__ import annotations

from typing import Any, Protocol

Value = Any
Mask = Any
Index = Any
Size = Any
Number = Any


class Algebra(Protocol):
    """One method for each operation, and three that the evaluation itself needs."""

    def report(self, name: str, value: Value, /) -> Value:
        """What later equations read of the target `name`: its value, as it is stored."""

    def lift(self, x: Value, axis: int, count: int, /) -> Value:
        """`count` axes of size 1 inserted before the trailing axis `axis`."""

    def drop(self, x: Value, axis: int, count: int, /) -> Value:
        """`count` axes of size 1 removed before the trailing axis `axis`, the inverse of `lift`."""

    # --- arithmetic ------------------------------------------------------------------------

    def matmul(self, x: Value, y: Value, /) -> Value:
        """[…, m, k] times […, k, n]: [broadcast …, m, n]. Sums of no terms are 0."""

    def add(self, x: Value, y: Value, /) -> Value: ...

    def subtract(self, x: Value, y: Value, /) -> Value: ...

    def multiply(self, x: Value, y: Value, /) -> Value:
        """Entry by entry."""

    def negate(self, x: Value, /) -> Value: ...

    def scale(self, x: Value, s: Number, /) -> Value:
        """x · s, or x / s⁻¹: an implementation may do either, or take √s into two factors of x."""

    def shift(self, x: Value, s: Number, /) -> Value:
        """x + s"""

    def sum(self, x: Value, axis: int, /) -> Value:
        """The sum over an axis, which is kept with size 1."""

    # --- nonlinear functions ---------------------------------------------------------------

    def softmax(self, x: Value, axis: int, where: Mask | None, /) -> Value:
        """Weights along an axis; where the mask drops, exactly 0.

        `where` broadcasts to x. A row that keeps nothing is what the convention says: zeros, the
        mean, or NaN.
        """

    def sigmoid(self, x: Value, /) -> Value:
        """1/(1 + e^(−x)), entry by entry."""

    def tanh(self, x: Value, /) -> Value:
        """The hyperbolic tangent, entry by entry."""

    # --- masks and indices -----------------------------------------------------------------

    def causal(self, length: Size, keys: Size, /) -> Mask:
        """[L, S]: query i keeps key j iff j ≤ i, or j ≤ i + S − L when aligned at the bottom."""

    def finite(self, mask: Value, /) -> Mask:
        """Where an additive mask is not −inf."""

    def conjunction(self, x: Mask, y: Mask, /) -> Mask:
        """What both keep."""

    def take(self, table: Value, index: Index, /) -> Value:
        """Row index[…] of table[…, t, d]; leading axes of the table belong to the index's."""

    def scatter_add(self, x: Value, index: Index, like: Value, /) -> Value:
        """A table like `like`: each row the sum of the rows of x[…, d] with its index."""

    # --- structure -------------------------------------------------------------------------

    def transpose(self, x: Value, /) -> Value:
        """The last two axes exchanged."""

    def split(self, x: Value, heads: Size, /) -> Value:
        """[…, n, c] to [h, n, c/h]: a head takes consecutive columns."""

    def merge(self, x: Value, /) -> Value:
        """[…, h, n, e] to [n, h·e], the inverse of `split`."""

    def repeat(self, x: Value, heads: Size, /) -> Value:
        """[…, g, S, e] to [h, S, e]: consecutive query heads share a key/value head."""

    def first(self, x: Value, count: Size, axis: int, /) -> Value:
        """The first `count` entries along an axis."""

    def sum_to(self, x: Value, like: Value, /) -> Value:
        """The sum over the axes along which `like` was broadcast, or its heads repeated."""

    def pad(self, x: Value, like: Value, /) -> Value:
        """x with zeros appended to the first axis of `like`; batch axes of x are summed."""
