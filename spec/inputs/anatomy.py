"""What a text consists of: lengths and widths, tokens and weights, and the factors of its scores.

All of it follows from the equations and from which inputs samples share, so that cases can be made
for a profile that nobody has seen before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from qkvac.spec.grammar.axes import axes_of, is_scalar, positive_axes
from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.normal_form import normal
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, Tensor, walk
from qkvac.spec.profile import Profile, Size
from qkvac.spec.symbolic.shapes import ShapeError, contract

Sizes = dict[str, int]


@dataclass(frozen=True)
class Scores:
    """A product of rows with rows that a nonlinear operation takes: query · key."""

    operation: str
    query: Expr
    key: Expr


@dataclass(frozen=True)
class Anatomy:
    """A variant of a profile that computes no gradients, and the parts that its inputs play."""

    profile: Profile
    variant: str

    @cached_property
    def program(self) -> Program:
        return self.profile.program(self.variant or None)

    @cached_property
    def named(self) -> Program:
        """The program with its products named."""
        return normal(self.program)

    @cached_property
    def nodes(self) -> tuple[Op, ...]:
        """Every operation of the text, in order."""
        found = (node for e in self.named.equations for node in walk(e.expression))
        return tuple(node for node in found if isinstance(node, Op))

    @cached_property
    def is_masked(self) -> bool:
        """Whether a softmax leaves keys out."""
        return any(node.name == "softmax" and len(node.args) > 1 for node in self.nodes)

    @cached_property
    def saturates(self) -> bool:
        """Whether a nonlinear operation takes one entry at a time: it is flat far from 0."""
        return any(operation(node.name).is_nonlinear and node.axis is None for node in self.nodes)

    # --- inputs ------------------------------------------------------------------------------

    @cached_property
    def real(self) -> tuple[Tensor, ...]:
        """Inputs of real numbers, but for masks."""
        masks = self.profile.masks
        return tuple(t for t in self.program.inputs if t.kind == "real" and t.name not in masks)

    @cached_property
    def tokens(self) -> tuple[Tensor, ...]:
        """Inputs of which every sample has its own."""
        return tuple(t for t in self.real if t.name not in self.profile.shared)

    @cached_property
    def factors(self) -> dict[str, int]:
        """Inputs that are factors of products as they stand, and the axis that is summed over."""
        found = dict[str, int]()
        inputs = {tensor.name for tensor in self.real}
        for node in self.nodes:
            if node.name != "matmul":
                continue
            for place, factor in zip((-1, -2), node.args, strict=True):
                inner, turned = _turned(factor)
                if isinstance(inner, Ref) and inner.name in inputs:
                    found.setdefault(inner.name, -3 - place if turned else place)
        return found

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """Matrices that all samples share."""
        return tuple(
            t for t in self.real if t.name in self.profile.shared and t.name in self.factors
        )

    @cached_property
    def projections(self) -> tuple[tuple[str, str, bool], ...]:
        """Tensors times weights: names of both, and whether the weights are stored turned."""
        shared, found = {tensor.name for tensor in self.weights}, []
        for node in self.nodes:
            if node.name == "matmul" and isinstance(node.args[0], Ref):
                (weight, turned), name = _turned(node.args[1]), node.args[0].name
                if isinstance(weight, Ref) and weight.name in shared:
                    found.append((name, weight.name, turned))
        return tuple(dict.fromkeys(found))

    @cached_property
    def multipliers(self) -> frozenset[str]:
        """Inputs that multiply a tensor entry by entry."""
        inputs, tensors = {tensor.name for tensor in self.real}, self.named.tensors
        return frozenset(
            factor.name
            for node in self.nodes
            if node.name == "multiply" and not any(is_scalar(a, tensors) for a in node.args)
            for factor in node.args
            if isinstance(factor, Ref) and factor.name in inputs
        )

    @cached_property
    def last_used(self) -> Tensor | None:
        """The factor of a product that the text comes to last."""
        order = dict[str, None]()
        for equation in self.named.equations:
            order |= dict.fromkeys(n for n in equation.operands if n not in order)
        own = {tensor.name: tensor for tensor in self.real if tensor.name in self.factors}
        names = [name for name in order if name in own and own[name].rank >= 2]
        return own[names[-1]] if names else None

    # --- axes --------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return self.program.axis_names

    @cached_property
    def counts(self) -> frozenset[str]:
        """Axes that count heads."""
        found = {b.axis for b in self.profile.keywords.values() if isinstance(b, Size)}
        for node in self.nodes:
            if node.name in ("split", "repeat"):
                found |= {part.name for part in walk(node.args[1]) if isinstance(part, Ref)}
        groups = (axes_of(n.args[0], self.named.tensors) for n in self.nodes if n.name == "repeat")
        found |= {axes[-3].name for axes in groups if isinstance(axes[-3], Ref)}
        return frozenset(found)

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """Axes of queries and keys, or of tokens."""
        found = dict[str, None]()
        for scores in self.scores:
            for rows in (scores.query, scores.key):
                axis = axes_of(rows, self.named.tensors)[-2]
                found |= dict.fromkeys([axis.name] if isinstance(axis, Ref) else [])
        for tensor in self.program.inputs:
            own = tensor.name not in self.profile.without_batch
            axes = tensor.axes[-1:] if tensor.kind == "index" else tensor.axes[-2:-1]
            found |= {a.name: None for a in axes if own and isinstance(a, Ref)}
        return tuple(name for name in self.axes if name in found and name not in self.counts)

    @cached_property
    def widths(self) -> tuple[str, ...]:
        """All other axes that count no heads."""
        other = self.counts.union(self.lengths)
        return tuple(name for name in self.axes if name not in other)

    @cached_property
    def positive(self) -> frozenset[str]:
        """Axes that must not be 0."""
        limits = self.profile.index_limits.values()
        tables = {part.name for axis in limits for part in walk(axis) if isinstance(part, Ref)}
        return positive_axes(self.program) | tables

    @cached_property
    def divisors(self) -> frozenset[str]:
        """Axes and parameters that stand below a bar or under a root."""
        found = set[str]()
        for node in self.nodes:
            if node.name in ("divide", "sqrt"):
                found |= {p.name for p in walk(node.args[-1]) if isinstance(p, Ref)}
        return frozenset(found)

    @cached_property
    def multiples(self) -> tuple[tuple[str, Expr], ...]:
        """Axes, and what divides them."""
        tensors = self.named.tensors
        axes = [axis for tensor in tensors.values() for axis in tensor.axes]
        found = [n.args for a in axes for n in walk(a) if isinstance(n, Op) and n.name == "divide"]
        for node in self.nodes:
            if node.name == "split":
                found.append((axes_of(node.args[0], tensors)[-1], node.args[1]))
            elif node.name == "repeat":
                found.append((node.args[1], axes_of(node.args[0], tensors)[-3]))
        return tuple(
            dict.fromkeys((a.name, by) for a, by in found if isinstance(a, Ref) and a != by)
        )

    @cached_property
    def longer(self) -> tuple[tuple[str, Expr], ...]:
        """Axes, and what they must not be shorter than."""
        found = []
        for node in self.nodes:
            if node.name == "first":
                rows, axes = node.args[1], axes_of(node.args[0], self.named.tensors)
                found += [(axes[0].name, rows)] if isinstance(axes[0], Ref) else []
        return tuple(found)

    def fitting(self, wanted: Sizes) -> Sizes | None:
        """The sizes, raised where something must divide them; None where no text has them."""
        sizes = dict(wanted)
        try:
            for _ in range(8):
                for name, by in self.multiples:
                    part = int(fold(by, sizes).rational())
                    sizes[name] += -sizes[name] % part if part else 0
                for name, least in self.longer:
                    sizes[name] = max(sizes[name], int(fold(least, sizes).rational()))
            bound = {**dict.fromkeys(self.program.parameters, 1), **sizes}
            contract(self.program, bound)
        except (ShapeError, ValueError, ZeroDivisionError):
            return None
        return sizes if all(sizes[name] for name in self.positive) else None

    # --- scores ------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> tuple[Scores, ...]:
        """The products whose entries are weighed row by row; none if they are of another kind."""
        found = []
        for node in self.nodes:
            if operation(node.name).is_nonlinear:
                for product in self._products(node.args[0]):
                    key, turned = _turned(product.args[1])
                    if turned:
                        found.append(Scores(node.name, product.args[0], key))
        return tuple(dict.fromkeys(found))

    def score_widths(self, sizes: Sizes) -> tuple[int, ...]:
        """How many terms each score is a sum of."""
        tensors = self.named.tensors
        widths = (axes_of(scores.query, tensors)[-1] for scores in self.scores)
        return tuple(int(fold(width, sizes).rational()) for width in widths)

    def _products(self, node: Expr) -> Iterator[Op]:
        """The first product in each operand of sums and differences of what a softmax takes."""
        defined = {equation.target.name: equation for equation in self.named.equations}
        if isinstance(node, Ref) and node.name in defined:
            yield from self._products(defined[node.name].expression)
        elif isinstance(node, Op) and node.name == "matmul":
            yield node
        elif isinstance(node, Op) and node.name in LINEAR:
            for argument in node.args:
                inner = next(self._products(argument), None)
                if inner is not None:
                    yield inner
                    return


LINEAR: Final = ("add", "subtract", "negate", "multiply", "divide")


def _turned(node: Expr) -> tuple[Expr, bool]:
    """What is transposed, and whether it is."""
    turned = isinstance(node, Op) and node.name == "transpose"
    return (node.args[0], True) if turned and isinstance(node, Op) else (node, False)
