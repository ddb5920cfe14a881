"""First-order changes: an expression with one thing in it otherwise than it should be.

What somebody may write instead of an equation, without knowing what the equation is for: another
tensor of the same axes, an operand or a function left out, a sign or an axis changed. A change has
a label that says what was done, so that the same can be done to another text of a profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.operations import OPERATIONS, operation
from qkvac.spec.grammar.printing import expression as shown
from qkvac.spec.grammar.rules import turned
from qkvac.spec.grammar.syntax import Expr, Number, Op, Ref, Tensor


@dataclass(frozen=True)
class Scene:
    """What an equation may refer to."""

    tensors: tuple[Tensor, ...]
    """Inputs, and what is defined before it."""
    scalars: tuple[str, ...]
    """Axes and parameters."""

    @cached_property
    def known(self) -> Mapping[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def axes(self, node: Expr) -> tuple[Expr, ...]:
        return axes_of(node, self.known)


Changes = Iterator[tuple[str, Expr]]
"""Labels, and what is written instead."""


def changes(node: Expr, scene: Scene) -> Changes:
    """Every expression that differs from `node` in one place; some may be no expression at all."""
    for rule in RULES:
        yield from rule(node, scene)
    if isinstance(node, Op):
        for place, argument in enumerate(node.args):
            if place in _shapes_alone(node):
                continue
            for label, new in changes(argument, scene):
                args = (*node.args[:place], new, *node.args[place + 1 :])
                yield label, replace(node, args=args)


def _shapes_alone(node: Op) -> set[int]:
    """Places of operands that only lend their shape: another of the same axes does the same."""
    operands = operation(node.name).operands
    return {place for place, operand in enumerate(operands) if operand.name == "like"}


# --- names and numbers -----------------------------------------------------------------------


def _another_tensor(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Ref) and node.name in scene.known:
        own = scene.known[node.name]
        for name, other in scene.known.items():
            if name != own.name and (other.axes, other.kind) == (own.axes, own.kind):
                yield f"{name} for {own.name}", Ref(name)


def _another_scalar(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Ref) and node.name in scene.scalars:
        for name in scene.scalars:
            if name != node.name:
                yield f"{name} for {node.name}", Ref(name)


def _rooted(node: Expr, scene: Scene) -> Changes:
    """The root of what a tensor is divided by."""
    if isinstance(node, Op) and node.name == "divide" and scene.axes(node):
        above, below = node.args
        if isinstance(below, Ref):
            new = replace(node, args=(above, Op("sqrt", (below,))))
            yield f"the root of {below.name}", new


def _next_number(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Number):
        for step in (1, -1):
            new = Number(node.value + step)
            yield f"{shown(new)} for {shown(node)}", new


# --- something left out ----------------------------------------------------------------------


def _left_out(node: Expr, scene: Scene) -> Changes:
    """A function, a root or an operand: one operand stands for the whole."""
    if not isinstance(node, Op) or node.name in _KEPT:
        return
    whole = operation(node.name)
    for place in range(1 if whole.is_nonlinear or node.name == "divide" else len(node.args)):
        new, others = node.args[place], [a for p, a in enumerate(node.args) if p != place]
        if node.name == "subtract" and place == 1:
            new = Op("negate", (new,))
        words = [] if whole.is_nonlinear else [shown(other) for other in others]
        yield f"{node.name} without {words[0]}" if words else f"no {node.name}", new


_KEPT: Final = (
    *("causal", "finite", "take", "scatter_add", "pad"),
    *("sum_to", "repeat", "first"),
)
"""Functions whose operands cannot stand in their place, or only where that changes nothing."""


def _mask_left_out(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and len(node.args) > len(operation(node.name).required):
        yield f"{node.name} without a mask", replace(node, args=node.args[:1])


# --- another operation -----------------------------------------------------------------------


_OPPOSITE: Final = {"add": "subtract", "multiply": "divide"}
_OPPOSITES: Final = {**_OPPOSITE, **{other: name for name, other in _OPPOSITE.items()}}


def _opposite(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.name in _OPPOSITES:
        other = _OPPOSITES[node.name]
        yield f"{other} for {node.name}", replace(node, name=other)


def _swapped(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.name in ("subtract", "matmul"):
        yield f"{node.name} swapped", replace(node, args=node.args[::-1])


def _doubled(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.name in ("multiply", "divide"):
        places = (1,) if node.name == "divide" else (0, 1)
        for place in places:
            yield f"{node.name} twice, {place}", Op(node.name, (node, node.args[place]))


def _turned(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.name == "matmul":
        left, right = node.args
        yield "left factor turned", Op("matmul", (turned(left), right))
        yield "right factor turned", Op("matmul", (left, turned(right)))


def _another_axis(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.axis is not None:
        for axis in range(len(scene.axes(node.args[0]))):
            if axis != node.axis:
                yield f"{node.name} over axis {axis}", replace(node, axis=axis)


def _another_function(node: Expr, scene: Scene) -> Changes:
    """One nonlinear function for another; where that has an axis, over each."""
    if not isinstance(node, Op) or not operation(node.name).is_nonlinear:
        return
    for name, other in OPERATIONS.items():
        if not other.is_nonlinear or name == node.name:
            continue
        rank = len(scene.axes(node.args[0]))
        for axis in range(rank) if other.has_axis else (None,):
            over = "" if axis is None else f" over axis {axis}"
            yield f"{name} for {node.name}{over}", Op(name, node.args[:1], axis)


def _mean(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.name == "sum" and node.axis is not None:
        size = scene.axes(node.args[0])[node.axis]
        yield "mean for sum", Op("divide", (node, size))
    if isinstance(node, Op) and node.name == "sum_to":
        yield "mean for sum", replace(node, name="mean_to")


def _other_triangle(node: Expr, scene: Scene) -> Changes:
    if isinstance(node, Op) and node.name == "causal":
        yield "the other triangle", Op("transpose", (replace(node, args=node.args[::-1]),))


RULES: Final[tuple[Callable[[Expr, Scene], Changes], ...]] = (
    *(_another_tensor, _another_scalar, _rooted, _next_number),
    *(_left_out, _mask_left_out),
    *(_opposite, _swapped, _doubled, _turned),
    *(_another_axis, _another_function, _mean, _other_triangle),
)
"""What may be otherwise at a node; each yields labels and what is written there instead."""
