"""The cases of `multi_head_attention`, causal and not.

No two of n, d, c, o, h and c/h are equal in the main shape, and c/h is not a square: splitting by
reshape alone, merging without the swap of axes or scaling by another width cannot hide. In EQUAL
everything that can be exchanged fits.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from qkvac.spec.cases.case import ALL, LINEAR, SUMS, WIDE, Case
from qkvac.spec.cases.generic_cases import HOT
from qkvac.spec.cases.profile_cases import UNROUNDED, profile_case, with_samples
from qkvac.spec.cases.special_cases import cases_of
from qkvac.spec.inputs import families, profile_families
from qkvac.spec.inputs import multi_head_families as made

MAIN: Final = (33, 30, 21, 10, 3)
EQUAL: Final = (16, 16, 16, 16, 4)
TILE: Final = (65, 24, 20, 14, 2)
ONE: Final = (1, 30, 21, 10, 3)
LONG: Final = (577, 24, 12, 5, 2)
BOTH: Final = (*ALL, "Y")

_case = partial(profile_case, "multi_head_attention")
_plain, _causal = partial(_case, variant="plain"), partial(_case, variant="causal")


@cases_of("multi_head_attention")
def all_cases() -> list[Case]:
    """All cases of the profile, in a fixed order."""
    return [*plain(), *stressed(), *exact(), *batches(), *further()]


def plain() -> list[Case]:
    """Normal data in several shapes."""
    normal = made.projected
    main = "axes all different, c/h not a square: heads split, scaled and merged"
    crossed = "one token more than a tile of 64, and the diagonal in every head"
    small = "so small that the bounds are at their sharpest"
    return [
        _plain("normal", MAIN, normal, main, generic=True, compiled=True),
        _causal("normal", MAIN, normal, "the same, causal", generic=True, compiled=True),
        _plain("normal", (5, 8, 6, 4, 2), normal, small, generic=True),
        _plain("normal", (9, 8, 7, 5, 1), normal, "one head: attention, projected", generic=True),
        _plain("normal", (9, 5, 6, 4, 6), normal, "heads of one column: scale 1", generic=True),
        _plain("normal", EQUAL, normal, "all square: a transposed Wo fits", generic=True),
        _causal("normal", TILE, normal, crossed, generic=True),
        _plain("empty", (0, 30, 21, 10, 3), normal, "no tokens: empty results, not an error"),
    ]


def stressed() -> list[Case]:
    """Heads that differ from each other; scores far from 0."""
    hot = partial(made.projected, of=HOT)
    ahead = partial(made.projected, of=partial(families.dominated, key=-1, lead=106))
    mixed = "heads of different temperature and magnitude: exchanged or mixed, they show"
    moved = "each head's scores moved by another amount, ±1000: a maximum over all heads"
    lost = "two heads cancel in Y: what is left is the third's"
    last = "the last key is ahead in one head, and only the last query may see it"
    return [
        _plain("hot", MAIN, hot, "nearly one-hot rows in every head", generic=True),
        _causal("hot", MAIN, hot, "the same, causal", generic=True),
        _plain("scaled-heads", MAIN, made.scaled_heads, mixed),
        _causal("scaled-heads", MAIN, made.scaled_heads, "the same, causal"),
        _plain("shifted-heads", MAIN, made.shifted_heads, moved, dtypes=WIDE),
        _causal("dominant-last", MAIN, ahead, last),
        _plain("cancelling-heads", MAIN, made.cancelling_heads, lost, dtypes=WIDE),
    ]


def exact() -> list[Case]:
    """Judged by bits."""
    ternary = partial(made.projected, of=families.ternary)
    whole = partial(made.projected, of=families.whole_projections)
    scores = partial(made.projected, of=families.whole_scores)
    copies = partial(made.projected, of=partial(families.copies, scaled=False))
    narrow = "whole numbers that fill the significand: accumulators too narrow"
    thirds = "all scores 0: row i holds 1/(i + 1) in every head, and exactly 0 behind it"
    means = "all scores 0, values doubled from head to head: means, to the bit"
    found = "each head permutes the values in another way, to the bit"
    hidden = "each head ranks the keys in another way, later keys far ahead"
    uniform = partial(made.projected, of=partial(families.uniform, zero="Wq"))
    return [
        _plain("ternary", MAIN, ternary, "exact sums in every head", exact=SUMS, compiled=True),
        _plain("ternary", EQUAL, ternary, "transposed weights fit", exact=SUMS),
        _plain("whole-projections", MAIN, whole, narrow, exact=LINEAR),
        _plain("whole-scores", MAIN, scores, narrow, exact=SUMS),
        _plain("copies", MAIN, copies, "operands rounded to fewer bits", exact=LINEAR),
        _plain("uniform", EQUAL, made.whole_heads, means, exact=BOTH),
        _causal(
            "uniform",
            MAIN,
            uniform,
            thirds,
            exact=(*SUMS, "A"),
            dtypes=UNROUNDED,
            compiled=True,
        ),
        _plain("lookups", MAIN, made.lookups, found, exact=BOTH, compiled=True),
        _causal("ranked", MAIN, made.ranked_heads, hidden, exact=BOTH, compiled=True),
        _plain(
            "single-token",
            ONE,
            made.single,
            "A is 1 and C is V, to the bit",
            exact=("V", "A", "C", "Y"),
        ),
    ]


def batches() -> list[Case]:
    """Leading axes."""
    batch = profile_families.batch
    halves = partial(batch, of=made.projected, heat=(2, -4))
    why = "a hot and a tiny sample, each on its own"
    fits = "as many samples as heads: mixed-up axes still fit"
    lookups, ranked = partial(batch, of=made.lookups), partial(batch, of=made.ranked_heads)
    axes = "two leading axes, causal"
    return [
        *with_samples(_causal("batch-normal", MAIN, halves, why, batch=(2,), compiled=True)),
        _plain("batch-lookups", MAIN, lookups, fits, batch=(3,), exact=BOTH),
        _causal("batch-ranked", (5, 8, 6, 4, 2), ranked, axes, batch=(2, 3), exact=BOTH),
    ]


def further() -> list[Case]:
    """The full tier."""
    normal, ternary = made.projected, partial(made.projected, of=families.ternary)
    seed = f"ternary/{'x'.join(map(str, MAIN))}"
    laid_out = partial(_plain, seed=seed, exact=SUMS, tier="full")
    turned = dict.fromkeys(("Wq", "Wk", "Wv", "Wo"), "F")
    return [
        _plain("normal", TILE, normal, "one token more than a tile", generic=True, tier="full"),
        _causal("normal", LONG, normal, "n ≥ 512, off every tile", generic=True, tier="full"),
        _causal("normal", EQUAL, normal, "all square, causal", generic=True, tier="full"),
        _causal("normal", (9, 8, 7, 5, 1), normal, "one head, causal", generic=True, tier="full"),
        laid_out("layout-F", MAIN, ternary, "weights that are transposed views", layouts=turned),
        laid_out("layout-X", MAIN, ternary, "every second entry", layouts={"X": "strided"}),
    ]
