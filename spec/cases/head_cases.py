"""The cases of `scaled_dot_product_attention`: without masks here, with masks in `mask_cases`."""

from __future__ import annotations

from functools import partial
from math import sqrt

from qkvac.spec.cases import head_layout_cases, mask_cases
from qkvac.spec.cases.case import HALF, TALL, WIDE, Case
from qkvac.spec.cases.head_case import (
    DECODE,
    EVEN,
    MAIN,
    NO_BATCH,
    ONE_KEY_HEAD,
    SQUARE,
    TILES,
    TRIPLES,
    TURNED,
    TURNED_TILES,
    TWO_AXES,
    UNGROUPED,
    WIDE_HEADS,
    Heads,
    head_case,
)
from qkvac.spec.cases.special_cases import cases_of
from qkvac.spec.inputs import head_families
from qkvac.spec.inputs.head_families import lookup, normal
from qkvac.spec.inputs.mask_families import with_garbage

WEIGHTS = ("Ω", "A")
ALL = (*WEIGHTS, "C")


@cases_of("scaled_dot_product_attention")
def all_cases() -> list[Case]:
    """All cases of the profile, in a fixed order."""
    return [
        *plain(),
        *scales(),
        *lookups(),
        *causal(),
        *mask_cases.boolean(),
        *mask_cases.additive(),
        *mask_cases.combined(),
        *head_layout_cases.layouts(),
        *sizes(),
        *further(),
        *mask_cases.further(),
    ]


def plain() -> list[Case]:
    """Normal data in all shapes, and data that strain one step."""
    case = partial(head_case, "normal", recipe=normal, generic=True)
    beyond = "raw scores beyond 65504 that are in range once scaled: scale before the product"
    hot = partial(normal, query=2, key=1)
    nearly = "nearly one-hot rows: exp far from 0, reduced precision in the scores"
    level = "each query's scores at a level of their own: a maximum over the whole matrix"
    return [
        case(SQUARE, why="self-attention: nothing that a plain kernel lacks", compiled=True),
        case(MAIN, why="axes all different, two query heads to a key/value head: the plain case"),
        case(UNGROUPED, why="keys and values for each head, wider than the values"),
        case(ONE_KEY_HEAD, why="one key/value head for all: the wrong stride over heads"),
        case(TRIPLES, why="three query heads to a key/value head: tiled instead of repeated"),
        case(DECODE, why="one query: the paths that generation takes"),
        case(NO_BATCH, why="no batch axis: heads come first"),
        case(TWO_AXES, why="two leading axes before the heads"),
        case(TILES, why="one key more than a tile of 64, one query more than one of 32"),
        head_case("hot", SQUARE, hot, nearly, generic=True, compiled=True),
        head_case("row-shift", MAIN, head_families.shifted_rows, level, dtypes=WIDE),
        head_case("rising", TILES, head_families.rising, "every block of keys has a new maximum"),
        head_case("beyond-half", TILES, head_families.opposed, beyond, dtypes=HALF),
    ]


def scales() -> list[Case]:
    """Explicit scales: a path that keeps its default is wrong here."""
    case = partial(head_case, recipe=normal, generic=True)
    default = "the default scale given explicitly, over ties"
    large = "a large scale: nearly one-hot rows, further from float64 when fused"
    negative = "a negative scale: its root is no number"
    nothing = "a scale of 0 is a number, not the want of one: all keys weigh alike"
    filled = "a negative scale turns −∞ into +∞ where it is applied after the triangle"
    return [
        case("scale-half", MAIN, why="scale 1/2 instead of 1/√7", scale=0.5),
        case("scale-one", MAIN, why="scale 1: scores as they are", scale=1.0),
        case("scale-negative", MAIN, why=negative, scale=-0.5, tier="full"),
        case("scale-negative", SQUARE, why=filled, scale=-0.5, causal=True),
        case("scale-large", MAIN, why=large, scale=2.75),
        head_case("scale-zero", EVEN, normal, nothing, scale=0.0),
        head_case("ties", EVEN, head_families.ties, default, scale=0.25, exact=ALL),
    ]


def lookups() -> list[Case]:
    """Weights that are known exactly: each query finds one key, or keys that tie."""
    huge = partial(lookup, gain=(35, 35))
    found = "another permutation in each head and sample: heads, samples or axes exchanged"
    built = "scores of ±1e22 built from Q and K: the difference is taken before exp"
    cliff = "the last bits of {} decide between weights 0 and 1"
    return [
        head_case("lookup", SQUARE, lookup, found, exact=ALL, compiled=True),
        head_case("lookup-huge", SQUARE, huge, built, exact=ALL, dtypes=TALL, compiled=True),
        head_case(
            "score-cliff",
            MAIN,
            head_families.score_cliff,
            cliff.format("a score's sum"),
            exact=ALL,
            dtypes=TALL,
        ),
        head_case(
            "key-cliff",
            SQUARE,
            head_families.key_cliff,
            cliff.format("an entry of K"),
            exact=ALL,
            dtypes=TALL,
            compiled=True,
        ),
        head_case(
            "head-id",
            MAIN,
            head_families.head_ids,
            "V is the number of its head, and so is C: heads read from another's place",
            exact=ALL,
        ),
        head_case(
            "sample-id",
            MAIN,
            head_families.sample_ids,
            "V is the number of its sample, and so is C: samples exchanged",
            exact=ALL,
        ),
        head_case(
            "uniform",
            EVEN,
            head_families.uniform,
            "all scores 0 over 8 keys: A is 1/8 and C an exact mean",
            exact=ALL,
        ),
    ]


def causal() -> list[Case]:
    """A query sees no later key; which these are where L ≠ S is declared."""
    plain = partial(head_case, "normal", recipe=normal, generic=True, causal=True)
    exact = partial(head_case, heads=MAIN, causal=True, compiled=True)
    below = "allowed scores below every constant that stands for −inf"
    later = "later keys outscore all earlier ones, by up to 2e11"
    garbage = partial(with_garbage, recipe=normal, causal=True)
    unseen = "huge keys and values that no query sees: weights that are small instead of 0"
    third = "1/(3√d): divided by a layer's number"
    return [
        plain(MAIN, why="fewer queries than keys: where the triangle is pinned", compiled=True),
        plain(TURNED, why="more queries than keys: the triangle has a foot, or empty rows"),
        plain(SQUARE, why="self-attention with a causal mask"),
        plain(DECODE, why="one query: it sees one key, or all"),
        plain(TILES, why="tiles that the diagonal cuts"),
        head_case("scale-third", MAIN, normal, third, causal=True, scale=1 / 3 / sqrt(7)),
        exact("below", recipe=head_families.low, why=below, exact=ALL),
        exact("later-ahead", recipe=head_families.ranked, why=later, exact=ALL),
        exact(
            "uniform",
            recipe=head_families.uniform,
            why="weights 1/1, 1/2, 1/3 …: a triangle off by one",
            exact=WEIGHTS,
        ),
        exact("garbage", recipe=garbage, why=unseen),
    ]


def sizes() -> list[Case]:
    """Axes of size 0, one at a time: empty results, or zeros, and neither error nor crash."""
    axes = {
        Heads((0,), 6, 3, 5, 9, 7, 4): "no samples",
        Heads((2,), 0, 0, 5, 9, 7, 4): "no heads: a division by their number",
        Heads((2,), 6, 3, 0, 9, 7, 4): "no queries",
        Heads((2,), 6, 3, 5, 0, 7, 4): "no keys: no weights, and C is 0",
        Heads((2,), 6, 3, 5, 9, 7, 0): "values without entries",
    }
    return [head_case("empty", heads, normal, why) for heads, why in axes.items()]


def further() -> list[Case]:
    """The full tier: more lengths, widths and combinations."""
    full = partial(head_case, tier="full")
    generic = partial(full, recipe=normal, generic=True)
    exact = partial(full, exact=ALL)
    earlier = partial(lookup, causal=True)
    copied, lead = head_families.copied_queries, "two leading axes"
    lengths = (1, 2, 12, 31, 32, 63, 64, 127, 129)
    shapes = [Heads((1,), 2, 1, n, n, 16, 8) for n in lengths]
    return [
        *(generic("normal", s, why=f"{s.S} tokens", causal=True) for s in shapes),
        generic("normal", TURNED, why="more queries than keys, without a mask"),
        generic("normal", TURNED_TILES, why="one query more than a tile of 64"),
        generic("normal", TURNED_TILES, why="tiles that the diagonal cuts", causal=True),
        generic("normal", WIDE_HEADS, why="width 96 without a mask"),
        generic("normal", Heads((1,), 2, 1, 9, 12, 128, 128), why="heads of width 128"),
        generic("normal", Heads((1,), 2, 1, 130, 515, 12, 7), why="long sequences"),
        generic("normal", Heads((2,), 2, 2, 4, 4, 2, 2), why="tiny sequences"),
        generic("scale-half", TRIPLES, why="1/√4 given explicitly", scale=0.5),
        generic("scale-third", MAIN, why="1/(3√d) without a mask", scale=1 / 3 / sqrt(7)),
        full("copied-queries", MAIN, copied, "each score is an entry of Q", exact=("Ω",)),
        full("uniform", MAIN, head_families.uniform, "all scores 0 over 9 keys", exact=WEIGHTS),
        exact("ties", EVEN, head_families.ties, "one, two or four keys tie"),
        exact("lookup", MAIN, lookup, "other permutations, grouped"),
        exact("lookup", TILES, lookup, "one key more than a tile of 64"),
        exact("lookup", TURNED_TILES, lookup, "more queries than keys"),
        exact("lookup-huge", MAIN, partial(lookup, gain=(35, 35)), "scores of ±1e22", dtypes=TALL),
        exact("lookup", TWO_AXES, lookup, lead),
        exact("sample-id", TWO_AXES, head_families.sample_ids, lead),
        exact("lookup-earlier", MAIN, earlier, "a key that the query may see", causal=True),
    ]
