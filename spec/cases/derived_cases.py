"""Cases of any profile, made from its text and the roles of its inputs alone.

An id reads `<profile>/<family>[/<variant>]/<shape>`; the shape lists leading axes, if any, and then
the axes in the order of the text. A family for which a text has no place is left out: a lookup
where no choice of inputs steers the scores, an axis of length 0 below a bar. What a case claims to
be exact is what `exactness` proves of it, in each of its dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import exactness
from qkvac.spec.cases.case import WIDE, Case
from qkvac.spec.formats import FORMATS
from qkvac.spec.inputs import derived_families as made
from qkvac.spec.inputs.anatomy import Anatomy, Sizes
from qkvac.spec.inputs.derived_families import Family
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.inputs.steering import UnreachableError
from qkvac.spec.profile import PLAIN, Flag, Parameter, Profile, Size
from qkvac.spec.symbolic.shapes import axis_text

Row = tuple[int, ...]

NONE: Final[Mapping[str, int]] = MappingProxyType({})

LENGTHS: Final = (9, 6, 12, 7, 10, 5)
WIDTHS: Final = (13, 8, 11, 5, 14, 7, 10, 16)
HEADS: Final = (3, 2, 4)
"""Sizes of lengths, widths and numbers of heads where all axes differ."""
SHORT: Final = (3, 4, 2, 5)
NARROW: Final = (4, 5, 3, 6, 2, 7)
ROOMY: Final = (26, 22, 28, 24, 30, 25, 27, 23)
"""Widths in which tokens have columns for the codes of queries and keys."""
TILES: Final = ((17, 33), (65, 34), (129, 66))
"""Lengths that leave something over in tiles of 16, 32, 64 and 128."""
LONG: Final = (257, 300)

LAYOUTS: Final = {
    "F": "inputs in columns: a port that reads them as rows mixes their entries",
    "strided": "inputs with gaps, in which NaN stands",
    "reversed": "inputs with negative strides",
    "readonly": "inputs that must not be written to",
}


def all_cases(profile: Profile) -> tuple[Case, ...]:
    """The cases of a profile that computes no gradients, for every variant, in a fixed order.

    The first variant has all families, the others those in which variants may differ.
    """
    found = dict[str, Case]()
    for number, variant in enumerate(profile.texts):
        maker = Maker(Anatomy(profile, variant))
        for case in maker.telling() if number else maker.everything():
            found.setdefault(case.id, case)
    return tuple(found.values())


def attributes(profile: Profile, variant: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The keyword arguments that a variant is called with, but for arrays."""
    chosen = set() if variant == PLAIN else set(variant.split("-"))
    found: dict[str, Any] = {}
    for keyword, bound in profile.keywords.items():
        if isinstance(bound, Size):
            found[keyword] = sizes[bound.axis]
        elif isinstance(bound, Parameter) and (not bound.optional or keyword in chosen):
            found[keyword] = bound.values[0]
        elif isinstance(bound, Flag) and keyword in chosen:
            found[keyword] = True
    return found


@dataclass(frozen=True)
class Drawn:
    """The recipe of a case: a family for one variant of a profile."""

    family: Family
    anatomy: Anatomy

    def __call__(self, frame: Frame) -> Inputs:
        return self.family(frame, self.anatomy)


@dataclass(frozen=True)
class Maker:
    """Makes the cases of one variant of a profile."""

    anatomy: Anatomy

    @property
    def profile(self) -> Profile:
        return self.anatomy.profile

    def everything(self) -> Iterator[Case]:
        """Every family that has a place in the text."""
        yield from self.telling()
        yield from self.values()
        yield from self.placed()
        yield from self.lengths()
        yield from self.batches()

    # --- families ----------------------------------------------------------------------------

    def telling(self) -> Iterator[Case]:
        """What any variant is asked."""
        main, case = self.sizes(), self.case
        plain, equal = "plain data, no two axes alike", "all axes alike: transposed operands fit"
        yield from case("normal", main, made.plain, plain, compiled=True, generic=True)
        yield from case("normal", self.alike(4), made.plain, equal, generic=True)
        few = "small: each entry of a sum counts"
        yield from case("normal", self.sizes(SHORT, NARROW), made.plain, few, generic=True)
        far = "one key has nearly all the weight"
        yield from case("hot", main, made.hot, far, dtypes=WIDE)
        yield from case("whole", main, made.whole, "small whole numbers, to the bit", exact=True)
        found = "each query finds one key: values are copied with every bit"
        roomy = self.sizes((6, 7), ROOMY)
        yield from case("lookup", roomy, made.lookup, found, exact=True)
        if self.anatomy.is_masked:
            yield from self.filled(main)
        yield from self.masks()

    def filled(self, sizes: Sizes) -> Iterator[Case]:
        """Scores so low that a finite number in the place of −∞ is the largest."""
        why = "all scores below {}: a key that is masked by such a number wins"
        for name, by, dtypes in (("1e4", -30000.0, WIDE), ("1e9", -(2.0**32), WIDE[:1])):
            of = partial(made.moved, by=by)
            yield from self.case(f"below-{name}", sizes, of, why.format(f"−{name}"), dtypes=dtypes)

    def values(self) -> Iterator[Case]:
        """Further data."""
        main, case = self.sizes(), self.case
        other = "plain data in other sizes: what was read off the first ones is off here"
        yield from case("normal", self.sizes(LENGTHS[1:], WIDTHS[1:]), made.plain, other)
        yield from case("tiny", main, made.tiny, "tokens near the square root of the range's end")
        low = "all scores far below 0: without the row's maximum all exponentials are 0"
        high = "all scores far above 0: without the row's maximum exponentials overflow"
        each = "each row of scores somewhere else: its maximum is its own"
        shift = self.shift
        yield from case("low", main, partial(made.moved, by=-shift), low, dtypes=WIDE)
        yield from case("shifted", main, partial(made.moved, by=shift), high, dtypes=WIDE)
        rows = partial(made.moved, by=shift, rows=True)
        yield from case("row-shift", main, rows, each, dtypes=WIDE)
        ties = partial(made.lookup, tied=True)
        half = "two keys tie: half the weight each"
        yield from case("ties", self.even(8), ties, half, exact=True)
        yield from case("equal-rows", main, made.equal_rows, "all tokens alike: all keys tie")
        zero = "all scores 0 over whole numbers: the mean, to the bit"
        yield from case("uniform", self.alike(4), made.uniform, zero, exact=True)
        copied = "weights that pick columns, tokens that use every bit"
        yield from case("copies", main, made.copies, copied, exact=True)
        lost = "large terms that cancel in pairs"
        yield from case("cancelling", main, made.cancelling, lost, dtypes=WIDE)
        spread = "columns far apart in magnitude, and every term counts"
        yield from case("ranged-columns", main, made.ranged, spread, dtypes=WIDE)
        if self.anatomy.saturates:
            full = "arguments beyond the range of exponentials, where a function hardly moves"
            yield from case("saturated", main, made.saturated, full, dtypes=WIDE)
        yield from case("zero-row", main, made.zero_row, "a token of zeros among others")
        if self.anatomy.last_used is not None:
            last = f"{self.anatomy.last_used.name} is subnormal: flushed, it is lost"
            yield from case("subnormal", main, made.subnormal, last)
        yield from self.parameters()

    def masks(self) -> Iterator[Case]:
        """Masks with empty rows, that mask nothing, and that broadcast."""
        masks = [t for t in self.anatomy.program.inputs if t.name in self.profile.masks]
        main, case = self.sizes(), self.case
        if not masks:
            return
        yield from case("empty-row", main, made.empty_rows, "queries that see no key")
        yield from case("open", main, made.open_mask, "a mask that keeps all, and moves nothing")
        axes = max((tensor.axes for tensor in masks), key=len)
        for kept in ((-1,), (-2,), (-2, -1), (-3, -1)):
            if len(axes) >= -kept[0]:
                places = range(kept[0], 0)
                names = "x".join(axis_text(axes[p]) if p in kept else "1" for p in places)
                shape = partial(made.broadcast_mask, kept=kept)
                yield from case(f"mask-{names}", main, shape, "a mask of fewer axes, or of size 1")

    def parameters(self) -> Iterator[Case]:
        """Each number that a keyword gives, at the values that are worth trying."""
        main = self.sizes()
        own = attributes(self.profile, self.anatomy.variant, main)
        for keyword, bound in self.profile.keywords.items():
            if not isinstance(bound, Parameter) or keyword not in own:
                continue
            more = () if bound.name in self.anatomy.divisors else (0.0, 1.0, 8.0)
            for value in dict.fromkeys((*bound.values[1:], *more)):
                why = f"{keyword} = {value:g}"
                given = {**own, keyword: value}
                yield from self.case(
                    f"{keyword}={value:g}", main, made.plain, why, attributes=given
                )

    def placed(self) -> Iterator[Case]:
        """Inputs in other places of memory, at the numbers of the plain case."""
        plain = next(self.case("normal", self.sizes(), made.plain, ""), None)
        if plain is None:
            return
        names = [t.name for t in self.anatomy.program.inputs if t.rank >= 2]
        for layout, why in LAYOUTS.items():
            yield _laid_out(plain, f"layout-{layout}", dict.fromkeys(names, layout), why)
        for name, layout in zip(names, cycle(("F", "strided", "reversed")), strict=False):
            family = f"layout-{layout}-{name}"
            yield _laid_out(plain, family, {name: layout}, f"{name} alone lies elsewhere")
        tokens = [t.name for t in self.anatomy.tokens if t.rank == 2]
        alike = "equal tokens that share one row of memory"
        for case in self.case("equal-rows", self.sizes(), made.equal_rows, alike):
            if tokens and not case.batch:
                yield _laid_out(case, "layout-stride0", dict.fromkeys(tokens, "stride0"), alike)

    def lengths(self) -> Iterator[Case]:
        """No token, one, and more than a tile holds."""
        for name in self.anatomy.lengths:
            rest = f"no {name}: empty results or zeros, not an error"
            yield from self.case("empty", self.sizes(fixed={name: 0}), made.plain, rest)
            one = f"a single {name}"
            yield from self.case("one", self.sizes(fixed={name: 1}), made.plain, one)
        for name in self.anatomy.widths:
            yield from self.case("one", self.sizes(fixed={name: 1}), made.plain, f"{name} of 1")
        tile = "lengths that leave something over in every tile"
        for lengths in TILES:
            widths = NARROW if max(lengths) > 128 else WIDTHS
            yield from self.case(
                "normal", self.sizes(lengths, widths), made.plain, tile, dtypes=WIDE, generic=True
            )
        yield from self.case(
            "normal", self.sizes(LONG, NARROW), made.plain, tile, dtypes=WIDE, tier="full"
        )

    def batches(self) -> Iterator[Case]:
        """Leading axes of whatever samples have of their own."""
        if not self.anatomy.tokens:
            return
        sizes = self.sizes(LENGTHS[1:])
        looped = "a hot, a plain and a tiny sample: what one does must not touch the others"
        why = {(3,): looped, (1,): "one sample", (2, 3): "two leading axes"}
        for batch in ((3,), (1,), (2, 3)):
            family = made.heated if batch == (3,) else made.plain
            yield from self.case("batch", sizes, family, why[batch], batch=batch, dtypes=WIDE)
        same = "as many samples as tokens, to the bit: mixed-up axes still fit"
        yield from self.case("batch-whole", self.alike(4), made.whole, same, batch=(4,), exact=True)

    # --- sizes -------------------------------------------------------------------------------

    def sizes(
        self, lengths: Row = LENGTHS, widths: Row = WIDTHS, fixed: Mapping[str, int] = NONE
    ) -> Sizes:
        """The next size of its kind for every axis, made fit; {} where `fixed` ones do not."""
        a = self.anatomy
        length, width, heads = cycle(lengths), cycle(widths), cycle(HEADS)
        kinds = {
            name: length if name in a.lengths else heads if name in a.counts else width
            for name in a.axes
        }
        return self._fit({name: next(kind) for name, kind in kinds.items()} | dict(fixed))

    def alike(self, size: int) -> Sizes:
        """All axes of one size."""
        return self._fit(dict.fromkeys(self.anatomy.axes, size))

    def even(self, length: int) -> Sizes:
        """Lengths alike, and widths of which the scale and its root are powers of two."""
        found: Sizes = {}
        for width in (16, 32):
            counts = dict.fromkeys(self.anatomy.counts, 2)
            found = self.sizes((length,), (width,), counts)
            if found and set(self.anatomy.score_widths(found)) <= {16}:
                break
        return found

    def _fit(self, wanted: Sizes) -> Sizes:
        return self.anatomy.fitting(wanted) or {}

    @property
    def shift(self) -> float:
        """How far scores are moved: out of the range of an exponential, if one row at a time."""
        softmax = all(scores.operation == "softmax" for scores in self.anatomy.scores)
        return 1000.0 if softmax else 24.0

    # --- one case ----------------------------------------------------------------------------

    def case(
        self,
        family: str,
        sizes: Sizes,
        of: Family,
        why: str,
        *,
        batch: Row = (),
        exact: bool = False,
        **fields: Any,
    ) -> Iterator[Case]:
        """A case, or none where no such inputs can be made."""
        if not sizes:
            return
        case = self.made(family, sizes, of, why, name=self.own, batch=batch or self.lead, **fields)
        if self.reaches(case):
            yield replace(case, exact=proved(case) if exact else ())

    @property
    def own(self) -> str:
        """The variant as it stands in an id."""
        return self.anatomy.variant if len(self.profile.texts) > 1 else ""

    @property
    def lead(self) -> Row:
        """Leading axes where none are asked for."""
        return (2,) if self.profile.samples else ()

    def attributes(self, sizes: Sizes) -> dict[str, Any]:
        """The keyword arguments of the variant, but for arrays."""
        return attributes(self.profile, self.anatomy.variant, sizes)

    def made(
        self, family: str, sizes: Sizes, of: Family, why: str, name: str, batch: Row, **fields: Any
    ) -> Case:
        """A case, whether or not there are such inputs; `name` sets it apart in its family."""
        profile, program = self.profile, self.anatomy.program
        shape = "x".join(map(str, (*batch, *sizes.values())))
        given = {"attributes": self.attributes(sizes), **fields}
        return Case(
            "/".join(filter(None, (profile.name, family, name, shape))),
            profile.name,
            family,
            sizes,
            why,
            Drawn(of, self.anatomy),
            f"{profile.name}/{family}/{shape}",
            variant=self.own,
            batch=batch,
            masked=any(tensor.name in profile.masks for tensor in program.inputs),
            **given,
        )

    def reaches(self, case: Case) -> bool:
        """Whether there are such inputs."""
        try:
            case.recipe(Frame(case.seed, FORMATS[case.dtypes[0]], case.sizes, case.batch))
        except UnreachableError:
            return False
        return True


def _laid_out(of: Case, family: str, layouts: Mapping[str, str], why: str) -> Case:
    id = of.id.replace(f"/{of.family}/", f"/{family}/", 1)
    return replace(
        of, id=id, family=family, why=why, layouts=layouts, compiled=False, generic=False
    )


def proved(case: Case) -> tuple[str, ...]:
    """The quantities that every dtype of a case makes exact, by whichever of its texts."""
    kept = list(case.quantities)
    for dtype in case.dtypes:
        model = Arithmetic.for_dtype(dtype)
        for program in case.alternatives:
            found = exactness.exact(program, case.inputs(dtype), case.bindings, model)
            lost = {name for name in kept if name in found and not np.all(found[name].holds)}
            kept = [name for name in kept if name not in lost]
    return tuple(kept)
