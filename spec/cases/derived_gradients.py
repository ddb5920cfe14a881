"""Cases of the gradients of any profile: those of the profile itself, with a cotangent.

Half formats get small shapes and cool tokens, because the bounds of a gradient grow with both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qkvac.spec.cases.case import WIDE, Case
from qkvac.spec.cases.derived_cases import NARROW, SHORT, Maker, proved
from qkvac.spec.cases.gradient_cases import DOUBLE, EXACT, HALVES, gradient_case, laid_out
from qkvac.spec.inputs import derived_families as made
from qkvac.spec.inputs.anatomy import Anatomy
from qkvac.spec.profile import Profile

ONLY: Final = ("float32",)


def all_cases(profile: Profile) -> tuple[Case, ...]:
    """The cases of the gradients of a profile, for every variant, in a fixed order."""
    found = dict[str, Case]()
    for number, variant in enumerate(profile.texts):
        maker = Maker(Anatomy(profile, variant))
        for case in telling(maker):
            found.setdefault(case.id, case)
        for case in further(maker) if number == 0 else ():
            found.setdefault(case.id, case)
    return tuple(found.values())


def telling(maker: Maker) -> Iterator[Case]:
    """What any variant is asked."""
    main, small = maker.sizes(), maker.sizes(SHORT, NARROW)
    sent = partial(_sent, maker)
    yield from sent("normal", main, made.plain, dtypes=WIDE, compiled=True, generic=True)
    yield from sent("cool", small, made.cool)
    yield from sent("normal", small, made.plain, dtypes=HALVES, generic=True)
    yield from sent("normal", maker.alike(4), made.plain, dtypes=HALVES, generic=True)
    yield from sent("normal", main, made.plain, cotangent="single", dtypes=WIDE)
    yield from _exact(maker)
    if maker.anatomy.profile.masks:
        yield from sent("empty-row", main, made.empty_rows, dtypes=WIDE)


def further(maker: Maker) -> Iterator[Case]:
    """Further data, cotangents, lengths, batches and layouts."""
    main, small = maker.sizes(), maker.sizes(SHORT, NARROW)
    sent = partial(_sent, maker, dtypes=WIDE)
    yield from sent("normal", small, made.plain, cotangent="zero")
    yield from sent("normal", main, made.plain, cotangent="rows")
    yield from sent("normal", main, made.plain, cotangent="faint")
    yield from sent("hot", main, made.hot)
    yield from sent("tiny", small, made.tiny, dtypes=HALVES)
    shifted = partial(made.moved, by=maker.shift, rows=True)
    yield from sent("row-shift", small, shifted, dtypes=DOUBLE)
    yield from sent("equal-rows", small, made.equal_rows, dtypes=DOUBLE)
    yield from sent("cancelling", main, made.cancelling)
    if maker.anatomy.saturates:
        yield from sent("saturated", small, made.saturated)
    yield from sent("normal", maker.sizes((17, 33), NARROW), made.plain)
    yield from sent("normal", maker.sizes((66, 35), NARROW), made.plain, dtypes=ONLY)
    for name in maker.anatomy.lengths:
        yield from sent("empty", maker.sizes(fixed={name: 0}), made.plain)
    lengths = maker.sizes((6, 12))
    if maker.anatomy.tokens:
        for batch, family in (((3,), made.heated), ((2, 3), made.plain)):
            yield from sent("batch", lengths, family, batch=batch)
    for case in maker.case("normal", small, made.plain, "", dtypes=WIDE):
        for laid in laid_out(case):
            yield replace(laid, family=laid.id.split("/")[1])


def _sent(
    maker: Maker,
    family: str,
    sizes: dict[str, int],
    of: made.Family,
    cotangent: str = "",
    compiled: bool = False,
    **fields: Any,
) -> Iterator[Case]:
    """A forward case with a cotangent, or none where no such inputs can be made."""
    why = WHY.get(family, "plain data")
    for case in maker.case(family, sizes, of, why, **fields):
        plain = case.generic and not cotangent
        yield gradient_case(case, cotangent, compiled=compiled, generic=plain)


def _exact(maker: Maker) -> Iterator[Case]:
    """Equal weights on whole numbers; gradients are exact as far as that is proved."""
    for case in maker.case("balanced", maker.even(4), made.balanced, EXACT):
        sent = gradient_case(case, "few", EXACT)
        yield replace(sent, exact=proved(sent))


WHY: Final = {
    "cool": "small scores: all paths count",
    "hot": "one key has nearly all the weight",
    "tiny": "tokens near the square root of the range's end",
    "row-shift": "each row of scores somewhere else: its maximum is its own",
    "equal-rows": "all tokens alike: all keys tie",
    "saturated": "arguments beyond the range of exponentials, where a function hardly moves",
    "cancelling": "large terms that cancel in pairs",
    "empty": "no tokens: nothing to sum, and no error",
    "batch": "the gradients of weights are sums over samples",
    "empty-row": "queries that see no key send nothing back",
}
