"""The cases of `scaled_dot_product_attention` that have a mask.

A mask and its expanded self ask for the same results, and so do a boolean mask and its additive
form, a mask that keeps all keys, a bias of 0 and no mask: such cases share their random numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from qkvac.spec.cases.case import HALF, WIDE, Case
from qkvac.spec.cases.head_case import (
    COLLISION,
    DECODE,
    EVEN,
    MAIN,
    NO_BATCH,
    SQUARE,
    TURNED_TILES,
    TWO_AXES,
    UNGROUPED,
    WIDE_HEADS,
    WIDE_VALUES,
    Heads,
    head_case,
)
from qkvac.spec.inputs import head_families, mask_families
from qkvac.spec.inputs.head_families import full_values, normal
from qkvac.spec.inputs.mask_families import (
    MaskRecipe,
    added,
    bias,
    kept,
    masked,
    minimum,
    moderate,
    with_garbage,
)

FOUND: Final = ("A", "C")
ALL: Final = ("Ω", *FOUND)

SHAPES: Final = {
    "S": "the same keys for every query, head and sample",
    "LxS": "one mask for all samples and heads",
    "1x1xLxS": "one mask for all samples and heads, with axes of size 1",
    "Bx1x1xS": "keys for each sample",
    "Bx1xLxS": "a mask for each sample",
    "1xhxLxS": "a mask for each head",
    "hxLxS": "a mask for each head, without an axis of samples",
    "Bxhx1xS": "keys for each sample and head",
    "BxhxLxS": "a mask for each sample and head",
    "Lx1": "all keys of a query, or none",
}
"""Every way in which a mask may broadcast, and what it says then."""

OFTEN: Final = {
    "boolean": ("S", "1x1xLxS", "Bx1xLxS", "1xhxLxS", "Bxhx1xS", "BxhxLxS", "Lx1"),
    "additive": ("LxS", "Bx1xLxS"),
}
"""Shapes that the default tier has here; those that are left out it has with other sizes."""

EXPANDED: Final = "Bx1xLxS"
"""The shape whose expanded self is in the default tier."""


def _case(
    family: str,
    heads: Heads,
    axes: str,
    mask: MaskRecipe,
    why: str,
    *,
    kind: str,
    expanded: bool = False,
    **fields: Any,
) -> Case:
    """A case of normal data, which all such cases share, under a mask of the shape `axes`."""
    recipe = partial(masked, inputs=normal, mask=mask, axes=axes, expanded=expanded)
    return head_case(family, heads, recipe, why, mask=kind, seed="normal", generic=True, **fields)


def _in_every_shape(kind: str) -> list[Case]:
    """A mask in each shape that broadcasts, and what it is when expanded."""
    case = partial(_case, heads=UNGROUPED, mask=mask_families.KINDS[kind], kind=kind)
    result = []
    for axes, why in SHAPES.items():
        tier = "default" if axes in OFTEN[kind] else "full"
        result.append(case(f"mask-{axes}", axes=axes, why=why, tier=tier))
        if axes != "BxhxLxS":
            full, tier = f"{why}: in full", "default" if axes == EXPANDED else "full"
            name = f"mask-{axes}-expanded"
            result.append(case(name, axes=axes, why=full, expanded=True, tier=tier))
    return result


def boolean() -> list[Case]:
    """Masks that say which keys are kept."""
    case = partial(_case, kind="boolean")
    other = partial(head_case, mask="boolean")
    single = partial(masked, inputs=full_values, mask=mask_families.one_hot)
    holes = partial(masked, inputs=normal, mask=mask_families.scattered, axes="Bx1xLxS")
    padded = partial(masked, inputs=normal, mask=mask_families.padding, axes="Bx1x1xS")
    ahead = partial(masked, inputs=head_families.ranked, mask=mask_families.but_last_two)
    few = partial(masked, inputs=head_families.uniform, mask=mask_families.powers, axes="Bx1xLxS")
    inverted = "one key for each query: an inverted mask keeps all others"
    outscored = "dropped keys outscore all others, by up to 2e11: a penalty instead of −inf"
    band = "other keys for each query, over several tiles: a tile's first mask used for all"
    garbage = "huge keys and values that no query keeps: weights that are small instead of 0"
    return [
        case("normal", MAIN, "Bx1xLxS", kept, "a mask for each sample, grouped", compiled=True),
        case("normal", SQUARE, "LxS", kept, "self-attention with a mask"),
        *_in_every_shape("boolean"),
        case(
            *("mask-Bx1x1xS", COLLISION, "Bx1x1xS", kept),
            why="as many samples as heads: a sample's keys taken for a head's",
        ),
        case(
            *("mask-hxLxS", COLLISION, "hxLxS", kept),
            why="as many samples as heads: a head's mask taken for a sample's",
        ),
        case("all-kept", UNGROUPED, "BxhxLxS", mask_families.every, "all keys kept is no mask"),
        case("band", TURNED_TILES, "LxS", mask_families.band, band),
        case("empty-row", SQUARE, "Bx1xLxS", mask_families.one_empty, "a query without keys"),
        case(
            *("empty-sample", MAIN, "Bx1x1xS", mask_families.empty_sample),
            why="a sample without keys beside one that has some",
        ),
        other(
            *("one-kept", MAIN, partial(single, axes="Bx1xLxS"), inverted),
            exact=FOUND,
            compiled=True,
        ),
        other("one-kept", SQUARE, partial(single, axes="LxS"), inverted, exact=FOUND),
        other(
            "last-ahead", MAIN, partial(ahead, axes="Bx1xLxS"), outscored, exact=ALL, compiled=True
        ),
        other("uniform", EVEN, few, "1, 2, 4 or 8 keys share a weight", exact=ALL),
        other("garbage", MAIN, partial(with_garbage, recipe=holes), garbage, compiled=True),
        other(
            *("padding", WIDE_HEADS, partial(with_garbage, recipe=padded)),
            why="samples of other lengths, and huge numbers after their ends; width 96",
        ),
    ]


def additive() -> list[Case]:
    """Masks that are added to the scaled scores; −inf drops a key, any finite number does not."""
    case = partial(_case, kind="additive")
    empty = partial(added, keeps=mask_families.one_empty, base=bias)
    low = partial(masked, inputs=head_families.beside_minimum, axes="BxhxLxS")
    low_row = partial(low, mask=partial(added, keeps=mask_families.one_empty, low=minimum))
    return [
        *_in_every_shape("additive"),
        case("zero-bias", UNGROUPED, "BxhxLxS", mask_families.zero, "a bias of 0 is no mask"),
        case(
            *("as-bias", SQUARE, "LxS", mask_families.DROPPED),
            why="0 and −inf say the same as True and False",
        ),
        case(
            *("minimum", UNGROUPED, "Bx1xLxS", partial(added, keeps=kept, low=minimum, base=bias)),
            why="the most negative finite number, beside ordinary ones: no weight is left",
            tier="full",
        ),
        case(
            *("minimum-row", UNGROUPED, "BxhxLxS", partial(empty, low=minimum)),
            why="only most negative numbers for one query: finite weights, not an empty row",
        ),
        case(
            *("penalty-row", WIDE_VALUES, "BxhxLxS", partial(empty, low=moderate)),
            why="penalties for all keys of a query, which cancel; values wider than keys",
            dtypes=WIDE,
        ),
        head_case(
            *("half-minimum", MAIN, low_row),
            why="scores of −16 below float16's minimum: −inf, for one query throughout",
            mask="additive",
            scale=1.0,
            dtypes=HALF,
        ),
        case(
            *("empty-row", UNGROUPED, "Bx1xLxS", empty),
            why="a query whose mask is −inf throughout; its neighbours as if it were not there",
        ),
    ]


def combined() -> list[Case]:
    """Masks with a causal mask, with a scale, and with both."""
    biased = partial(_case, kind="additive")
    case = partial(_case, kind="boolean")
    both = partial(case, causal=True)
    penalty = partial(added, keeps=kept, low=mask_families.penalty, base=bias)
    but_first, lost = mask_families.but_first, "the first query has lost its only key"
    forgotten = "a mask that keeps every key makes nobody forget the causal one"
    return [
        biased(
            *("normal", MAIN, "1xhxLxS", bias, "scaled first, then biased"),
            scale=0.5,
            compiled=True,
        ),
        biased(
            *("penalty", MAIN, "1xhxLxS", penalty),
            why="a penalty of about −1e9 beside finite numbers, added inside what is compiled",
            scale=0.5,
            compiled=True,
        ),
        case("normal", MAIN, "Bx1xLxS", kept, "a scale beside a mask", scale=0.5),
        both("all-kept", SQUARE, "LxS", mask_families.every, forgotten),
        both("but-first", SQUARE, "LxS", but_first, lost),
        both("but-first", MAIN, "Bx1xLxS", but_first, f"{lost}; a scale beside", scale=0.5),
        biased(
            *("holes", MAIN, "Bx1xLxS", mask_families.HOLES),
            why="−inf beside finite numbers, and a causal mask: a bias read as 0 and −inf only",
            causal=True,
        ),
        biased(
            *("mask-Bx1x1xS", MAIN, "Bx1x1xS", bias, "a bias, a causal mask and a scale"),
            causal=True,
            scale=0.5,
        ),
    ]


def further() -> list[Case]:
    """The full tier: more combinations."""
    case = partial(_case, kind="boolean", tier="full")
    biased = partial(_case, kind="additive", tier="full")
    single = partial(masked, inputs=full_values, axes="BxhxLxS")
    exact = partial(head_case, exact=FOUND, tier="full")
    dropped = partial(added, keeps=mask_families.one_hot)
    slopes = "a bias that falls with the distance, at another slope in each head"
    return [
        case("mask-Bx1xLxS", COLLISION, "Bx1xLxS", kept, "as many samples as heads"),
        case("mask-BxhxLxS", UNGROUPED, "BxhxLxS", kept, "kept by both masks", causal=True),
        case("mask-LxS", NO_BATCH, "LxS", kept, "no batch axis"),
        case("mask-hxLxS", NO_BATCH, "hxLxS", kept, "no batch axis, a mask for each head"),
        case("mask-Bx1xLxS", TWO_AXES, "Bx1xLxS", kept, "two leading axes"),
        case("mask-Bx1x1xS", DECODE, "Bx1x1xS", kept, "one query over keys that are padded"),
        case("empty-row", UNGROUPED, "Bx1xLxS", mask_families.one_empty, "a query without keys"),
        biased("holes", UNGROUPED, "Bx1xLxS", mask_families.HOLES, "−inf beside finite numbers"),
        biased("slopes", MAIN, "1xhxLxS", mask_families.slopes, slopes),
        biased("band", TURNED_TILES, "LxS", partial(added, keeps=mask_families.band), "other keys"),
        exact(
            *("one-kept", MAIN, partial(single, mask=mask_families.one_hot)),
            why="one key for each query, and a scale",
            mask="boolean",
            scale=0.5,
        ),
        exact(
            *("one-kept", SQUARE, partial(single, mask=dropped)),
            why="one key for each query, by −inf for the others",
            mask="additive",
        ),
    ]
