"""Cases that are judged by bits: what they claim holds in any order of summation."""

from __future__ import annotations

from functools import partial

from qkvac.spec.cases.case import (
    ALL,
    EQUAL,
    HALF,
    LINEAR,
    LONG,
    MAIN,
    ONE,
    SUMS,
    TALL,
    TILE,
    TILES,
    Case,
    Recipe,
)
from qkvac.spec.cases.case import attention_case as _case
from qkvac.spec.inputs import families

OPERANDS = ("X", "Wq", "Wk", "Wv")


def sums() -> list[Case]:
    """Exact projections and scores; weights that are equal."""
    whole = {
        MAIN: "a wrong operand, axis or stride changes bits",
        EQUAL: "a transposed weight fits and is wrong",
        TILE: "the last row of a tile",
        (9, 130, 33): "the last terms of long sums",
    }
    narrow = "whole numbers that fill the significand of {}: accumulators too narrow"
    unrounded, rounded = partial(families.copies, scaled=False), "operands rounded to fewer bits"
    scaled = partial(families.copies, scaled=True)
    queries = partial(families.copied_scores, from_keys=False)
    keys = partial(families.copied_scores, from_keys=True)
    no_queries, no_keys = (partial(families.uniform, zero=name) for name in ("Wq", "Wk"))
    padded = "all scores 0 over 33 keys: padding that is counted, epsilons, missing keys"
    mean = "all scores 0 over 16 keys: A is 1/16 and C an exact mean"
    summed = "577 equal weights: the sum of the exponentials kept in too few bits"
    tiled = "axes that fill tiles, whose units may round operands"
    alone = "one token with a copied value: A is 1 and C is V, to the bit"
    result = [
        _case("ternary", size, families.ternary, why, exact=SUMS, compiled=size in (MAIN, EQUAL))
        for size, why in whole.items()
    ]
    for sizes in (MAIN, EQUAL):
        recipe, why = families.whole_projections, narrow.format("Q, K and V")
        result.append(_case("whole-projections", sizes, recipe, why, exact=LINEAR))
        recipe, why = families.whole_scores, narrow.format("Ω")
        result.append(_case("whole-scores", sizes, recipe, why, exact=SUMS))
    return [
        *result,
        _case("copies", MAIN, unrounded, rounded, exact=LINEAR, compiled=True),
        _case("copies", EQUAL, unrounded, tiled, exact=LINEAR),
        _case("scaled-copies", MAIN, scaled, "copies times ± powers of two", exact=LINEAR),
        _case("copied-queries", MAIN, queries, "each score is an entry of Q", exact=SUMS),
        _case("copied-keys", MAIN, keys, "each score is an entry of K", exact=SUMS, compiled=True),
        _case("uniform", MAIN, no_queries, padded, exact=(*SUMS, "A"), compiled=True),
        _case("uniform", EQUAL, no_queries, mean, exact=ALL, compiled=True),
        _case("uniform", LONG, no_queries, summed, exact=SUMS, dtypes=("bfloat16",)),
        _case("uniform-keys", EQUAL, no_keys, "all keys 0 under live queries", exact=ALL),
        _case("equal-whole-rows", EQUAL, families.equal_whole_rows, "equal scores", exact=ALL),
        _case("single-token", ONE, families.single, alone, exact=("V", "A", "C"), compiled=True),
    ]


def lookups() -> list[Case]:
    """Weights that are exactly 0 and 1, so that C is a permutation of V's rows."""
    found = {
        MAIN: "a permutation, not its own inverse: Aᵀ, transposed scores, rounded operands of AV",
        EQUAL: "transposed operands that fit",
        TILE: "one key more than a tile of 64",
        TILES: "one key more than a tile of 128",
    }
    above = partial(families.lookup, offset=(2.0**8, 2.0**7))
    below = partial(families.lookup, offset=(2.0**8, -(2.0**7)))
    rows = partial(families.lookup, offset=(1.0, 2.0**11), rows=True)
    ranged, ranged_half = partial(families.lookup, span=60), partial(families.lookup, span=8)
    huge, beyond = partial(families.lookup, gain=(35, 35)), partial(families.lookup, gain=(7, 7))
    below_0 = "all scores far below 0: a running maximum that starts at 0"
    own_level = "each query's scores at a level of their own: a maximum over the whole matrix"
    clamped = "huge values under weights that must be exactly 0: clamped exponents, finite fills"
    built = "scores of ±7e21 built from Q and K: the difference is taken before exp"
    in_range = "raw scores beyond 65504 that are in range once scaled"
    tie = "one, two or four keys tie: weights 1, 1/2, 1/4"
    return [
        *(
            _case("lookup", sizes, families.lookup, why, exact=ALL, compiled=sizes == MAIN)
            for sizes, why in found.items()
        ),
        _case("lookup-above", MAIN, above, "all scores far above 0", exact=ALL),
        _case("lookup-below", MAIN, below, below_0, exact=ALL, compiled=True),
        _case("lookup-rows", MAIN, rows, own_level, exact=ALL),
        _case("lookup-ranged", MAIN, ranged, clamped, exact=ALL, dtypes=TALL),
        _case("lookup-ranged-half", MAIN, ranged_half, clamped, exact=ALL, dtypes=HALF),
        _case("lookup-huge", MAIN, huge, built, exact=ALL, dtypes=TALL),
        _case("lookup-beyond-half", MAIN, beyond, in_range, exact=LINEAR, dtypes=HALF),
        _case("ties", EQUAL, families.ties, tie, exact=ALL, compiled=True),
        *_cliffs(),
    ]


def _cliffs() -> list[Case]:
    """Weights 0 and 1 that hang on last bits: lost precision is a change of 1 in C.

    The range of float16 is too narrow for scores with that many bits to vanish.
    """
    places: dict[str, tuple[Recipe, str]] = {
        "score-cliff": (families.score_cliff, "a score's sum"),
        "key-cliff": (partial(families.key_cliff, summed=False), "an entry of K"),
        "projection-cliff": (partial(families.key_cliff, summed=True), "a projection's sum"),
    }
    result = []
    for name, (recipe, place) in places.items():
        why = f"the last bits of {place} decide between weights 0 and 1"
        result.append(_case(name, MAIN, recipe, why, exact=ALL, dtypes=TALL, compiled=True))
    return result


def layouts() -> list[Case]:
    """Memory layouts, of all operands and of one at a time; the data are the same."""
    result = []
    for layout in ("F", "strided", "reversed", "offset", "readonly"):
        where = dict.fromkeys(OPERANDS, layout)
        result.append(_laid_out(layout, f"every input laid out as {layout}", where))
    for name in OPERANDS:
        for layout in ("F", "strided", "reversed"):
            why = f"{name} alone laid out as {layout}"
            result.append(_laid_out(f"{name}-{layout}", why, {name: layout}))
    return [
        *result,
        _case(
            "layout-normal-F",
            MAIN,
            families.normal,
            "transposed views of generic data",
            seed="normal",
            generic=True,
            layouts=dict.fromkeys(OPERANDS, "F"),
        ),
        _case(
            "layout-X-stride0",
            EQUAL,
            families.equal_whole_rows,
            "one row of X in memory, repeated by a stride of 0",
            seed="equal-whole-rows",
            exact=ALL,
            layouts={"X": "stride0"},
        ),
        _case(
            "layout-Wv-stride0",
            MAIN,
            families.equal_weight_rows,
            "one row of Wv in memory, repeated by a stride of 0",
            exact=SUMS,
            layouts={"Wv": "stride0"},
        ),
    ]


def _laid_out(name: str, why: str, where: dict[str, str]) -> Case:
    family = f"layout-{name}"
    return _case(family, MAIN, families.ternary, why, seed="ternary", exact=SUMS, layouts=where)


def further() -> list[Case]:
    """The full tier: lookups at more lengths."""
    return [
        _case("lookup", (n, 20, 7), families.lookup, f"one of {n} keys", exact=ALL, tier="full")
        for n in (8, 31, 32, 63, 64)
    ]
