"""The interpretation by slices: what a single entry is computed from, as source text for NumPy.

An entry is asked for by an index along each axis of a quantity, and hands on to the operands of its
equation which of their entries it needs: the product of x and y takes a row of x and a column of y.
An index is a number, or several where something sums over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np

from qkvac.diagnosis.samples import Sample
from qkvac.spec.cases.visibility import visible
from qkvac.spec.grammar.axes import axes_of, is_scalar
from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.normal_form import fresh, normal
from qkvac.spec.grammar.operation import ATOM, PRODUCT, SUM, UNARY
from qkvac.spec.grammar.page import Page
from qkvac.spec.grammar.rules import ONE
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, Tensor
from qkvac.spec.profile import Parameter
from qkvac.spec.symbolic.numpy_functions import spelt

Array = np.ndarray[Any, Any]
Index = int | tuple[int, ...]
Place = tuple[Index, ...]
Text = tuple[str, int]
"""An expression in Python, and how tightly it binds."""

SIGNS: Final = {"add": ("+", SUM), "subtract": ("-", SUM)} | {
    "multiply": ("*", PRODUCT),
    "divide": ("/", PRODUCT),
}
UNSEEN: Final = "0.0  # the query does not see this key"


class Slices:
    """What an entry of a sample's answer is computed from: by its own equation, or a `whole` text.

    `parts` are the slices that the text refers to by name, `lines` what has to be said before it.
    """

    def __init__(self, sample: Sample, whole: bool) -> None:
        self.case = sample.case
        self.sample = sample
        self.parts: dict[str, Array] = {}
        self.lines: list[str] = []
        self._whole = whole
        self._known = frozenset(sample.outputs)
        self._program: Program = normal(sample.case.program, products=False)
        self._tensors: Mapping[str, Tensor] = self._program.tensors
        self._names: dict[tuple[str, Place], str] = {}
        self._taken = {"np", "read", "value"}
        self._batch: tuple[int, ...] = ()

    def entry(self, quantity: str, index: tuple[int, ...]) -> str:
        """The text for one entry; raises LookupError where it cannot be said in a few slices."""
        at = len(index) - self._tensors[quantity].rank
        self._batch = index[:at]
        return self._defined(quantity, index[at:])[0]

    def _defined(self, name: str, place: Place) -> Text:
        """By the equation of a quantity."""
        node = self._program.equation(name).expression
        if isinstance(node, Op) and node.name == "softmax":
            return self._weights(name, node, place)
        return self._text(node, place)

    def _text(self, node: Expr, place: Place) -> Text:
        if is_scalar(node, self._tensors):
            return self._numbers.of(node, ATOM), ATOM
        if isinstance(node, Ref):
            if node.name in self._inputs or (node.name in self._known and not self._whole):
                return self._part(node.name, place)
            if not (self._whole or self._program.equation(node.name).part):
                raise LookupError(f"{node.name} is not known")
            return self._defined(node.name, place)
        assert isinstance(node, Op)
        if node.name in SIGNS:
            return self._elementwise(node, place)
        rule = self._rules.get(node.name)
        if rule is None:
            raise LookupError(f"{node.name} has no slices")
        return rule(node, place)

    # --- what is there -----------------------------------------------------------------------

    @cached_property
    def _inputs(self) -> Mapping[str, Array]:
        return self.case.inputs(self.sample.dtype)

    def _part(self, name: str, place: Place) -> Text:
        key = (name, place)
        if key not in self._names:
            array = self._sample_of(name)
            for axis in reversed(range(len(place))):
                array = np.take(array, place[axis], axis)
            self._names[key] = self._fresh(spelt(name))
            self.parts[self._names[key]] = np.asarray(array).astype(np.float64)
        return self._names[key], ATOM

    def _sample_of(self, name: str) -> Array:
        """An input or a reported quantity, of one sample, in its declared shape."""
        if len(self._batch) != len(self.case.batch):
            raise LookupError(f"{name} of all samples")
        array = self._inputs[name] if name in self._inputs else self.sample.outputs[name]
        whole = (*self.case.batch, *self._shape(Ref(name)))
        found: Array = np.broadcast_to(array, whole)[self._batch]
        return found

    def _shape(self, node: Expr) -> tuple[int, ...]:
        axes = axes_of(node, self._tensors)
        return tuple(int(fold(axis, self.case.sizes).rational()) for axis in axes)

    def _fresh(self, name: str) -> str:
        self._taken.add(found := fresh(name, self._taken))
        return found

    @cached_property
    def _numbers(self) -> Page:
        given = {
            bound.name: repr(float(self.case.attributes[keyword]))
            for keyword, bound in self.case.declared.keywords.items()
            if isinstance(bound, Parameter) and keyword in self.case.attributes
        }
        return _Numbers({**{n: str(size) for n, size in self.case.sizes.items()}, **given})

    # --- operations --------------------------------------------------------------------------

    @cached_property
    def _rules(self) -> Mapping[str, Callable[[Op, Place], Text]]:
        return {
            "matmul": self._matmul,
            "transpose": self._transposed,
            "negate": lambda node, place: (f"-{self._bound(node.args[0], place, UNARY)}", UNARY),
            "sigmoid": lambda node, place: (
                f"1 / (1 + np.exp(-{self._bound(node.args[0], place, UNARY)}))",
                PRODUCT,
            ),
            "tanh": lambda node, place: (f"np.tanh({self._text(node.args[0], place)[0]})", ATOM),
            "split": self._split,
            "merge": self._merged,
            "repeat": self._repeated,
            "take": self._taken_rows,
            "first": lambda node, place: self._text(node.args[0], place),
            "sum": self._summed,
            "sum_to": self._summed_to,
        }

    def _bound(self, node: Expr, place: Place, level: int) -> str:
        text, own = self._text(node, place)
        return text if own >= level else f"({text})"

    def _elementwise(self, node: Op, place: Place) -> Text:
        sign, level = SIGNS[node.name]
        left, right = (self._aligned(argument, place) for argument in node.args)
        x = self._bound(node.args[0], left, level)
        return f"{x} {sign} {self._bound(node.args[1], right, level + 1)}", level

    def _aligned(self, node: Expr, place: Place) -> Place:
        """The place in an operand that broadcasts: nothing along axes that it has not."""
        axes = axes_of(node, self._tensors)
        own = place[len(place) - len(axes) :]
        alone = ((0,) if isinstance(at, tuple) else 0 for at in own)
        return tuple(
            one if axis == ONE else at for axis, at, one in zip(axes, own, alone, strict=True)
        )

    def _matmul(self, node: Op, place: Place) -> Text:
        left, right = node.args
        *lead, row, column = place
        if not all(isinstance(at, int) for at in lead):
            raise LookupError("a product for several heads")
        first = self._aligned_lead(left, lead)
        inner = self._seen(left, (*first, row))
        if not inner:
            return "0.0", ATOM
        x = self._bound(left, (*first, row, inner), PRODUCT)
        y = self._bound(right, (*self._aligned_lead(right, lead), inner, column), PRODUCT + 1)
        return f"{x} @ {y}", PRODUCT

    def _aligned_lead(self, node: Expr, lead: list[Index]) -> Place:
        axes = axes_of(node, self._tensors)[:-2]
        own = lead[len(lead) - len(axes) :]
        return tuple(0 if axis == ONE else at for axis, at in zip(axes, own, strict=True))

    def _seen(self, node: Expr, place: Place) -> tuple[int, ...]:
        """Where the last axis of weights is not 0, if nothing else is known of them."""
        every = tuple(range(self._shape(node)[-1]))
        told = isinstance(node, Ref) and node.name in self._known and not self._whole
        if not isinstance(node, Ref) or told or node.name not in self._masks:
            return every
        kept, axis = self._masks[node.name]
        if axis != -1 or not all(isinstance(at, int) for at in place):
            return every
        return tuple(int(k) for k in np.flatnonzero(kept[(*self._batch, *place)]))

    @cached_property
    def _masks(self) -> Mapping[str, tuple[Array, int]]:
        return visible(self.case, self._inputs, self.sample.conventions)

    def _weights(self, name: str, node: Op, place: Place) -> Text:
        """A softmax over the keys that are kept."""
        assert node.axis is not None
        asked = place[node.axis]
        others = [at for axis, at in enumerate(place) if axis != node.axis]
        if not all(isinstance(at, int) for at in others):
            raise LookupError("several rows of weights")
        kept = tuple(range(self._shape(Ref(name))[node.axis]))
        if name in self._masks:
            mask, axis = self._masks[name]
            row = np.moveaxis(mask[self._batch], axis, -1)[tuple(others)]
            kept = tuple(int(k) for k in np.flatnonzero(row))
        if not kept:
            raise LookupError("a query without keys")
        if isinstance(asked, int) and asked not in kept:
            return UNSEEN, ATOM
        if not isinstance(asked, int) and not set(asked) <= set(kept):
            raise LookupError("weights of keys that are not seen")
        z, e = self._fresh("z"), self._fresh("e")
        scores = self._text(node.args[0], (*place[: node.axis], kept, *place[node.axis + 1 :]))
        self.lines += [f"{z} = {scores[0]}", f"{e} = np.exp({z} - {z}.max())"]
        weights = f"{e} / {e}.sum()"
        if asked == kept:
            return weights, PRODUCT
        if isinstance(asked, int):
            return f"({weights})[{kept.index(asked)}]", ATOM
        return f"({weights})[{[kept.index(k) for k in asked]}]", ATOM

    def _transposed(self, node: Op, place: Place) -> Text:
        *lead, row, column = place
        turned = (*lead, column, row)
        if isinstance(row, int) or isinstance(column, int):
            return self._text(node.args[0], turned)
        return f"{self._bound(node.args[0], turned, ATOM)}.T", ATOM

    def _split(self, node: Op, place: Place) -> Text:
        *lead, head, row, column = place
        width = self._shape(node)[-1]
        columns = _each(column, lambda at: _one(head) * width + at)
        return self._text(node.args[0], (*lead, row, columns))

    def _merged(self, node: Op, place: Place) -> Text:
        *lead, row, column = place
        width = self._shape(node.args[0])[-1]
        heads = {at // width for at in (column if isinstance(column, tuple) else (column,))}
        if len(heads) != 1:
            raise LookupError("columns of several heads")
        within = _each(column, lambda at: at % width)
        return self._text(node.args[0], (*lead, heads.pop(), row, within))

    def _repeated(self, node: Op, place: Place) -> Text:
        *lead, head, row, column = place
        shared, heads = self._shape(node.args[0])[-3], self._shape(node)[-3]
        return self._text(node.args[0], (*lead, _one(head) * shared // heads, row, column))

    def _taken_rows(self, node: Op, place: Place) -> Text:
        table, index = node.args
        assert isinstance(index, Ref)
        row = self._sample_of(index.name)[tuple(map(_one, place[:-1]))]
        return self._text(table, (int(row), place[-1]))

    def _summed(self, node: Op, place: Place) -> Text:
        assert node.axis is not None
        others = place[: node.axis] + place[node.axis + 1 :]
        terms = tuple(range(self._shape(node.args[0])[node.axis]))
        text = self._text(node.args[0], (*place[: node.axis], terms, *place[node.axis + 1 :]))
        return self._total(text, others)

    def _summed_to(self, node: Op, place: Place) -> Text:
        """Over the rows that a bias was added to; what samples or heads share takes too many."""
        x, like = node.args
        shape, own = self._shape(x), self._shape(like)
        if isinstance(like, Ref) and like.name in self.case.declared.masks:
            raise LookupError("what a mask broadcasts to")
        if shape[len(shape) - len(own) :] != own:
            raise LookupError("a sum over heads")
        extra = tuple(tuple(range(size)) for size in shape[: len(shape) - len(own)])
        text = self._text(x, (*extra, *place))
        return self._total(text, place) if extra else text

    def _total(self, text: Text, others: Place) -> Text:
        if not all(isinstance(at, int) for at in others):
            raise LookupError("sums of several rows")
        return f"np.sum({text[0]})", ATOM


class _Numbers(Page):
    """Scalars, with numbers for the names of axes and parameters."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__()
        self.given = given

    def of(self, node: Expr, level: int = SUM) -> str:
        if isinstance(node, Op) and node.name == "sqrt":
            return f"np.sqrt({self.of(node.args[0])})"
        return super().of(node, level)

    def name(self, name: str) -> str:
        return self.given[name]


def _one(index: Index) -> int:
    if isinstance(index, tuple):
        raise LookupError("several heads")
    return index


def _each(index: Index, function: Callable[[int], int]) -> Index:
    return tuple(map(function, index)) if isinstance(index, tuple) else function(index)
