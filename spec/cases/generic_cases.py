"""Cases that are judged by bounds: plain data, and data that strains one step of attention."""

from __future__ import annotations

from functools import partial

from qkvac.spec.cases.case import BOOK, LONG, MAIN, ONE, TILE, TILES, WIDE, Case
from qkvac.spec.cases.case import attention_case as _case
from qkvac.spec.inputs import families

HOT = partial(families.normal, query=2, key=1)
HOTTER = partial(families.normal, query=3, key=2)
TINY = partial(families.normal, embedding=-4, query=-3, key=-3, value=-3)


def plain() -> list[Case]:
    """Normal data in all shapes, and at several temperatures and ranges."""
    shapes = {
        BOOK: "the book's sizes: so small that the bounds are at their sharpest",
        MAIN: "axes all different, none a multiple of a tile, c not a square: the plain case",
        TILE: "one token more than a tile of 64",
        TILES: "one token more than a tile of 128",
        (9, 130, 33): "long sums for Q, K and V, off the tile of 128",
        (2, 3, 5): "two tokens, and queries wider than the embedding",
        (12, 1, 5): "d = 1: each projection is one product",
        (9, 5, 1): "c = 1: scale 1, scores of one product",
        ONE: "one token: softmax of a single score",
        LONG: "n ≥ 512, off every tile: blocked softmax and long sums over keys",
    }
    example = "the published example, against its printed results"
    extreme = "scores beyond 100: exp without the maximum subtracted overflows float32"
    small = "weights of exp(−30) on values of 2**40: dropped, clamped or flushed, they change C"
    return [
        _case("worked-example", BOOK, families.worked, example, dtypes=WIDE, compiled=True),
        *(
            _case(
                "normal", sizes, families.normal, why, generic=True, compiled=sizes in (MAIN, ONE)
            )
            for sizes, why in shapes.items()
        ),
        _case("empty", (0, 20, 7), families.normal, "no tokens: empty results, not an error"),
        _case("hot", MAIN, HOT, "nearly one-hot rows: exp far from 0", generic=True, compiled=True),
        _case("hot", TILE, HOT, "hot scores across a tile boundary", generic=True),
        _case("hotter", MAIN, HOTTER, extreme, dtypes=WIDE),
        _case("ranged-values", MAIN, families.ranged_values, small),
        _case(
            "ranged-columns",
            MAIN,
            families.ranged_columns,
            "columns far apart in magnitude but balanced: mixed-up axes, narrow exponents",
            generic=True,
        ),
        _case("tiny", MAIN, TINY, "small inputs: absolute tolerances and epsilons hide here"),
        _case("near-subnormal", MAIN, families.low_values, "values just above the smallest normal"),
    ]


def stressed() -> list[Case]:
    """Data that strains the subtraction of the maximum, the running sums, or cancellation."""
    result = []
    for by in (30, -30, 400, -400, 1000, -1000, 30000, -30000):
        why = f"all scores moved by {by}: softmax must subtract the row's own maximum"
        dtypes = (*WIDE, "float16") if abs(by) == 30 else WIDE
        recipe = partial(families.shifted, by=by)
        compiled = by in (1000, -30000)
        result.append(_case(f"shift{by:+d}", MAIN, recipe, why, dtypes=dtypes, compiled=compiled))
    row_shift = "each query's scores moved by its own amount, ±1500: a global maximum underflows"
    last = "the last key ahead by 40: running maxima and sums must be rescaled"
    first = "the first key ahead by 40: later blocks must be scaled down"
    lost = "large terms of Q, K and V cancel: narrow accumulators lose what is left"
    equal = "all tokens equal: weights 1/n and C equal to V, on generic data"
    return [
        *result,
        _case("row-shift", MAIN, families.shifted_rows, row_shift, dtypes=WIDE, compiled=True),
        _case("dominant-last", MAIN, partial(families.dominated, key=-1, lead=106), last),
        _case("dominant-first", MAIN, partial(families.dominated, key=0, lead=106), first),
        _case("rising", MAIN, partial(families.ramp, step=2.0), "every block has a new maximum"),
        _case("rising", TILES, partial(families.ramp, step=0.5), "rising, several blocks"),
        _case("falling", TILES, partial(families.ramp, step=-0.5), "falling, several blocks"),
        _case("cancelling-projections", MAIN, families.cancelling_projections, lost),
        _case(
            "cancelling-scores",
            MAIN,
            families.cancelling_scores,
            "large terms of the scores cancel",
            dtypes=WIDE,
        ),
        _case(
            "cancelling-values",
            MAIN,
            families.cancelling_values,
            "large values of alternating sign cancel in C",
            dtypes=WIDE,
        ),
        _case("equal-rows", MAIN, families.equal_rows, equal),
    ]


def further() -> list[Case]:
    """The full tier: more lengths around tiles, longer sequences, subnormal numbers."""
    lengths = (3, 7, 8, 15, 17, 31, 32, 63, 64, 96, 127, 128, 255, 257)
    shapes = {
        **{(n, 20, 7): f"{n} tokens" for n in lengths},
        (48, 64, 24): "every axis a multiple of 8",
        (515, 40, 12): "three tokens beyond a multiple of 512",
        (1030, 64, 24): "a longer sequence",
        (17, 1030, 5): "sums of 1030 terms for Q, K and V",
        (40, 12, 260): "scores of 260 terms",
    }
    flushed = "subnormal weights: kept or flushed to 0, as declared"
    return [
        *(
            _case("normal", sizes, families.normal, why, generic=True, tier="full")
            for sizes, why in shapes.items()
        ),
        _case("hot", LONG, HOT, "hot scores over many blocks", generic=True, tier="full"),
        _case("subnormal", MAIN, families.subnormal_values, flushed, tier="full"),
    ]
