"""The dimensions of the cases of a profile, and the values of each that kernels treat differently.

Lengths and widths stand below, at and above the tiles of kernels; one length is a relation to the
first one, and so is one width, because "as many keys as queries" is what is taken for granted.
Heads, leading axes, masks, numbers, data, memory layouts and dtypes are dimensions, too. All follow
from the text, its signature and the roles of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Final

from qkvac.spec.cases.case import WIDE
from qkvac.spec.cases.covering import Row, Space
from qkvac.spec.formats import DTYPES
from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.syntax import Ref, Tensor
from qkvac.spec.inputs.anatomy import Anatomy, Sizes
from qkvac.spec.inputs.mask_patterns import TILE
from qkvac.spec.profile import PLAIN, Parameter, Profile

SAME: Final = "same"
"""A size that is that of the first axis of its kind."""


@dataclass(frozen=True)
class Values:
    """Values of the dimensions that are sizes; the plainest comes first."""

    lengths: tuple[int, ...]
    lengths_beside: tuple[int | str, ...]
    widths: tuple[int, ...]
    widths_beside: tuple[int | str, ...]
    counts: tuple[int, ...]
    leading: tuple[tuple[int, ...], ...]
    scores: int
    """Entries that a quantity of a row may have."""
    work: int
    """Multiplications that all products of a row may take; of a short one beside a long other."""


FORWARD: Final = Values(
    (33, 0, 1, 2, 3, 7, 8, 9, 16, 31, 32, 64, 65, 128, 129, 256, 1025),
    (SAME, 0, 1, 2, 7, 32, 33, 64, 65, 129, 256, 1025),
    (8, 1, 3, 7, 32, 33, 64, 65, 80, 96, 128, 129, 256, 257),
    (SAME, 1, 3, 7, 32, 64, 65, 80, 128, 129, 256),
    (1, 2, 3, 8, 9, 12, 32),
    ((), (0,), (1,), (2,), (3,), (9,), (2, 3), (1, 2, 2)),
    129 * 129,
    300_000,
)
BACKWARD: Final = Values(
    (33, 1, 2, 7, 8, 16, 31, 32, 64, 65, 129),
    (SAME, 1, 2, 32, 33, 64, 65, 129),
    (8, 1, 3, 32, 33, 64, 65, 129),
    (SAME, 1, 3, 32, 64, 65, 129),
    (1, 2, 3, 9, 12),
    ((), (0,), (1,), (2,), (3,), (2, 3)),
    65 * 66,
    100_000,
)
"""Gradients take many products more."""
SCALES: Final = (0.0, 1.0, 0.5, -0.5, 2.75)

CLASSES: Final[Mapping[str, tuple[int, ...]]] = {
    "one": (1, 0),
    "few": (2, 3, 7),
    "tiles": (32, 64, 16, 128, 8, 256),
    "below tiles": (31, 7),
    "beyond tiles": (33, 65, 129, 9),
    "long": (1025, 256, 129),
}
"""Lengths of a kind."""

FREE, SQUARE = "free", "square"
"""Whether sizes are chosen one by one, or all of a kind alike: what layers of models have."""

ABSENT: Final = "none"
"""Of a dimension that a text has nothing for: without a mask, or without a scale."""

PATTERNS: Final = (
    "random",
    "open",
    "first-tile",
    "middle-tile",
    "last-tile",
    "empty-rows",
    "single-key",
    "large",
)
"""Which keys a mask keeps; `large` moves scores far up and down and is for additive ones."""
DATA: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": DTYPES,
    "row-shift": WIDE,
    "whole": DTYPES,
    "hot": WIDE,
    "low": WIDE,
    "high": WIDE,
    "ranged": WIDE,
    "tiny": DTYPES,
    "equal-rows": DTYPES,
    "zero-row": DTYPES,
    "cancelling": WIDE,
    "lookup": DTYPES,
}
"""Families of data, and the dtypes in which their bounds are smaller than the values."""

OF_GRADIENTS: Final = ("plain", "cool", "balanced", "zero-row", "ranged", "row-shift")
"""Families of data in which gradients are far from 0."""

LAYOUTS: Final = ("C", "F", "strided", "reversed", "offset", "readonly", "heads")

FEW: Final = 2**12
"""Entries that a quantity may have in a row that is judged by bits, which takes longer to prove."""

EXACT: Final = ("whole", "lookup", "balanced")
"""Families of data of which some quantities are exact."""
APART: Final = ("row-shift", "low", "high", "lookup", "balanced")
"""Of these, those that need queries and keys of their own."""
OF_SCORES: Final = ("row-shift", "hot", "low", "high", "cancelling", "lookup", "balanced")
"""Families of data that shape scores."""


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a profile, or of its gradients."""

    profile: Profile
    """A profile that computes no gradients."""
    gradients: bool = False
    proved: bool = True
    """Whether there is time to prove what is exact; without, data that only bits judge are out."""

    @property
    def values(self) -> Values:
        """The sizes that are tried."""
        return BACKWARD if self.gradients else FORWARD

    @cached_property
    def anatomy(self) -> Anatomy:
        """That of the text without flags; all texts have the same axes."""
        return Anatomy(self.profile, next(iter(self.profile.texts)))

    @cached_property
    def space(self) -> Space:
        """All dimensions that the profile has, and what excludes values of them."""
        return Space(dict(self._dimensions()), self.excludes)

    # --- dimensions --------------------------------------------------------------------------

    def _dimensions(self) -> Iterator[tuple[str, Sequence[Any]]]:
        yield "data", self.data
        if len(self.profile.texts) > 1:
            yield "text", tuple(self.profile.texts)
        yield from self._lengths()
        yield from self._counts()
        yield from self._widths()
        if self.has_relations:
            yield "sizes", (SQUARE, FREE)
        if any(t.name not in self.profile.without_batch for t in self.anatomy.program.inputs):
            yield "leading", self.values.leading
        if self.profile.masks:
            yield "mask", (ABSENT, *self.mask_shapes)
            yield "pattern", (ABSENT, *PATTERNS)
        for keyword, bound in self.parameters.items():
            zero = bound.name in self.anatomy.divisors
            values = dict.fromkeys((*bound.values, *SCALES))
            found = tuple(v for v in values if v or not zero)
            yield keyword, ((ABSENT, *found) if bound.optional else found)
        yield "layout", self.layouts
        yield "dtype", DTYPES

    def _lengths(self) -> Iterator[tuple[str, Sequence[Any]]]:
        for place, name in enumerate(self.anatomy.lengths):
            values = self.values.lengths_beside if place else self.values.lengths
            yield name, tuple(v for v in values if v != 0 or name not in self.anatomy.positive)

    def _counts(self) -> Iterator[tuple[str, Sequence[Any]]]:
        for name in self.counts:
            own = self.values.counts
            yield name, own[:-1] if name in self.ratios else own

    def _widths(self) -> Iterator[tuple[str, Sequence[Any]]]:
        for place, name in enumerate(self.widths):
            yield name, self.values.widths_beside if place else self.values.widths

    @cached_property
    def data(self) -> tuple[str, ...]:
        """Families of data that have a place in the text."""
        known = OF_GRADIENTS if self.gradients else tuple(DATA)
        known = known if self.proved else tuple(d for d in known if d not in EXACT)
        if not self.anatomy.scores:
            return tuple(name for name in known if name not in OF_SCORES)
        shared = any(scores.query == scores.key for scores in self.anatomy.scores)
        return tuple(name for name in known if name not in APART) if shared else known

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Keywords whose values are numbers."""
        bound = self.profile.keywords.items()
        return {keyword: one for keyword, one in bound if isinstance(one, Parameter)}

    @cached_property
    def ratios(self) -> Mapping[str, str]:
        """Axes that another one divides: of these the quotient is chosen."""
        own = dict[str, str]()
        for name, by in self.anatomy.multiples:
            if isinstance(by, Ref) and by.name in self.anatomy.counts:
                own[name] = by.name
        return own

    @cached_property
    def counts(self) -> tuple[str, ...]:
        """Axes that count heads, those first that divide others."""
        own = [name for name in self.anatomy.axes if name in self.anatomy.counts]
        return tuple(sorted(own, key=lambda name: name in self.ratios))

    @cached_property
    def widths(self) -> tuple[str, ...]:
        """Axes that are widths; the first one is what the others are compared with."""
        return tuple(sorted(self.anatomy.widths, key=lambda name: name not in self.ratios))

    @cached_property
    def seconds(self) -> frozenset[str]:
        """Lengths and widths that are compared with the first of their kind."""
        return frozenset(n for kind in (self.anatomy.lengths, self.widths) for n in kind[1:])

    @cached_property
    def has_relations(self) -> bool:
        return len(self.anatomy.lengths) > 1 or len(self.widths) > 1

    @cached_property
    def mask(self) -> Tensor | None:
        """The tensor that a mask broadcasts to."""
        found = (t for p in self.profile.programs for t in p.inputs if t.name in self.profile.masks)
        return next(found, None)

    @cached_property
    def mask_shapes(self) -> tuple[str, ...]:
        """Shapes of masks as words, an axis of size 1 as 1: LxS, Bx1x1xS."""
        if self.mask is None:
            return ()
        names = [axis.name if isinstance(axis, Ref) else "1" for axis in self.mask.axes]
        shapes = list[tuple[str, ...]]()
        for rank in range(1, len(names) + 1):
            own = tuple(names[-rank:])
            shapes += [own, (*own[:-1], "1")] if rank > 1 else [own]
            if rank > 1:
                shapes += [(*("1",) * (rank - 1), own[-1]), ("1",) * rank]
        whole = tuple(names)
        shapes += [("B", *("1",) * (len(names) - 1), names[-1]), ("B", *whole)]
        shapes += [("B", "1", *whole[1:]), ("1", *whole), ("B", *whole[:-2], "1", whole[-1])]
        return tuple("x".join(shape) for shape in dict.fromkeys(shapes))

    @cached_property
    def layouts(self) -> tuple[str, ...]:
        """Layouts of all inputs, and of one at a time."""
        real = [t for t in self.anatomy.program.inputs if t.rank >= 2 or t.kind == "index"]
        general = [n for n in LAYOUTS if n != "heads" or any(t.rank > 2 for t in real)]
        kinds = ("F", "strided", "reversed")
        alone = [f"{kinds[i % 3]}:{t.name}" for i, t in enumerate(real)] if len(real) > 1 else []
        return (*general, *alone)

    # --- what goes together ------------------------------------------------------------------

    def sizes(self, row: Row) -> Sizes:
        """The sizes of the axes that a row says, or a part of a row."""
        found = Sizes()
        lengths = self.anatomy.lengths
        for names in (lengths, self.counts, self.widths):
            for place, name in enumerate(names):
                if name not in row:
                    continue
                value = row[name]
                if value == SAME:
                    if names[0] in found:
                        found[name] = found[names[0]]
                elif names is not lengths and name in self.ratios:
                    if self.ratios[name] in found:
                        found[name] = value * found[self.ratios[name]]
                elif (names is self.widths and place == 0) or value is not None:
                    found[name] = value
        return found

    def excludes(self, row: Row) -> str:
        """Why the values of a row, or of a part of one, do not go together; "" if they do."""
        return (
            self._of_text(row)
            or self._of_mask(row)
            or self._of_sizes(row)
            or self._of_data(row)
            or self._too_large(row)
        )

    def _of_text(self, row: Row) -> str:
        if "text" not in row:
            return ""
        words = () if row["text"] == PLAIN else row["text"].split("-")
        for keyword, bound in self.profile.keywords.items():
            given = isinstance(bound, Parameter) and bound.optional and keyword in row
            if given and (row[keyword] != ABSENT) != (keyword in words):
                return f"a text without {keyword} has no value for it"
        if self.mask is not None:
            masked = bool({"boolean", "additive"}.intersection(words))
            for name in ("mask", "pattern"):
                if name in row and (row[name] != ABSENT) != masked:
                    return "a text without a mask has none"
            if row.get("pattern") == "large" and "additive" not in words:
                return "a boolean mask moves no score"
        return ""

    def _of_mask(self, row: Row) -> str:
        shape, pattern = row.get("mask"), row.get("pattern")
        if shape is None and pattern is None:
            return ""
        if shape is not None and pattern is not None and (shape == ABSENT) != (pattern == ABSENT):
            return "no mask, no pattern"
        parts = shape.split("x") if shape not in (None, ABSENT) else []
        wide = len(parts) > len(self.mask.axes if self.mask else ())
        if wide and row.get("leading") == ():
            return "a mask has no more axes than the scores"
        if pattern in ("first-tile", "middle-tile", "last-tile", "single-key"):
            if parts and parts[-1] == "1":
                return "a mask of one column keeps all keys or none"
            keys = self.sizes(row).get(self.mask.axes[-1].name if self.mask else "")  # type: ignore[union-attr]
            if keys is not None and keys <= 2 * TILE and pattern != "single-key":
                return f"fewer than {2 * TILE} keys have no tile to leave out"
        if pattern == "empty-rows" and parts and (len(parts) < 2 or parts[-2] == "1"):
            return "a mask without rows has no empty ones"
        return ""

    def _of_sizes(self, row: Row) -> str:
        if row.get("sizes") == SQUARE:
            for names in (self.anatomy.lengths, self.widths):
                if any(row.get(name, SAME) != SAME for name in names[1:]):
                    return "sizes of a kind are alike, or not"
            if any(row.get(n, 1) != 1 for n in self.counts if n in self.ratios):
                return "sizes of a kind are alike, or not"
        sizes = self.sizes(row)
        for name, least in self.anatomy.longer:
            bound = sizes.get(least.name) if isinstance(least, Ref) else None
            if bound is not None and sizes.get(name, bound) < bound:
                return f"{name} must not be shorter than what is taken of it"
        return ""

    def _of_data(self, row: Row) -> str:
        data, dtype = row.get("data"), row.get("dtype")
        half = dtype is not None and dtype not in WIDE
        if half and row.get("pattern") == "large":
            return "in 16 bits such scores leave bounds beyond the values"
        if half and dtype not in DATA.get(data or "", DTYPES):
            return "in 16 bits such scores leave bounds beyond the values"
        if half and self.gradients and data in ("plain", "ranged", "row-shift"):
            return "in 16 bits the bounds of gradients grow beyond the values"
        return ""

    def _too_large(self, row: Row) -> str:
        # An axis of size 0 makes nothing of an array, but not of those that lack it.
        sizes = {name: size or 1 for name, size in self.sizes(row).items()}
        batch = prod(size or 1 for size in row.get("leading", ()))
        shared, most = (
            self.profile.without_batch,
            FEW if row.get("data") in EXACT else self.values.scores,
        )
        for tensor, axes in self._axes:
            size = prod(sizes.get(axis, 1) for axis in axes)
            size *= 1 if tensor.name in shared else batch
            if size > most:
                return f"{tensor.name} would have more than {most} entries"
        work = sum(prod(sizes.get(axis, 1) for axis in axes) for axes in self._products)
        limit = self.values.work
        return (
            f"products would take more than {limit} multiplications" if work * batch > limit else ""
        )

    @cached_property
    def _products(self) -> tuple[tuple[str, ...], ...]:
        """The axes of each product: of its result, and the one that is summed over."""
        tensors, found = self.anatomy.named.tensors, []
        for node in self.anatomy.nodes:
            if node.name == "matmul":
                left, right = (axes_of(factor, tensors) for factor in node.args)
                found.append(tuple(a.name for a in (*left, right[-1]) if isinstance(a, Ref)))
        return tuple(found)

    @cached_property
    def _axes(self) -> tuple[tuple[Tensor, tuple[str, ...]], ...]:
        tensors = self.anatomy.named.tensors.values()
        return tuple((t, tuple(a.name for a in t.axes if isinstance(a, Ref))) for t in tensors)


def fitting(dimensions: Dimensions, row: Row) -> Sizes | None:
    """The sizes of a whole row; None where the text has none such."""
    wanted = dimensions.sizes(row)
    found = dimensions.anatomy.fitting(wanted)
    return found if found == wanted else None
