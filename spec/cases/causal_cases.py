"""The cases of `causal_attention`: a token sees itself and what came before it."""

from __future__ import annotations

from functools import partial

from qkvac.spec.cases.case import (
    ALL,
    BOOK,
    EQUAL,
    LINEAR,
    LONG,
    MAIN,
    ONE,
    SUMS,
    TALL,
    TILE,
    WIDE,
    Case,
)
from qkvac.spec.cases.generic_cases import HOT, TINY
from qkvac.spec.cases.profile_cases import COLLIDES, UNROUNDED, profile_case, with_samples
from qkvac.spec.cases.special_cases import cases_of
from qkvac.spec.inputs import families
from qkvac.spec.inputs import profile_families as made

_case = partial(profile_case, "causal_attention")


@cases_of("causal_attention")
def all_cases() -> list[Case]:
    """All cases of the profile, in a fixed order."""
    return [*plain(), *stressed(), *exact(), *batches(), *further()]


def plain() -> list[Case]:
    """Normal data in several shapes and temperatures."""
    shapes = {
        BOOK: "so small that the bounds are at their sharpest",
        MAIN: "the plain case: axes all different, off every tile",
        TILE: "one token more than a tile of 64: a tile that the diagonal crosses",
        (2, 3, 5): "two tokens: one sees itself alone",
        LONG: "n ≥ 512, off every tile: long rows beside short ones",
    }
    normal = families.normal
    return [
        *(
            _case("normal", sizes, normal, why, generic=True, compiled=sizes == MAIN)
            for sizes, why in shapes.items()
        ),
        _case("empty", (0, 20, 7), normal, "no tokens: empty results, not an error"),
        _case("hot", MAIN, HOT, "nearly one-hot rows", generic=True, compiled=True),
        _case("tiny", MAIN, TINY, "small inputs: absolute tolerances and epsilons hide here"),
    ]


def stressed() -> list[Case]:
    """Keys that must not be seen and would change everything; scores far from 0."""
    low = "all scores near −30000: a mask of −10000 would let later tokens in"
    high = "all scores near 1000: softmax must subtract the row's own maximum"
    rows = "each query's scores at a level of their own: a maximum over the whole matrix"
    ahead = "the last key is far ahead for all, and only the last query may see it"
    later = "each later key is ahead: masking after the softmax leaves 0/0 or nothing"
    earlier = "the first key is the best of all: running sums across tiles"
    small = "a key far ahead from the middle on; before it, weights of exp(−30) do not exist"
    return [
        _case("shift-30000", MAIN, partial(families.shifted, by=-30000), low, dtypes=WIDE),
        _case("shift+1000", MAIN, partial(families.shifted, by=1000), high, dtypes=WIDE),
        _case("row-shift", MAIN, families.shifted_rows, rows, dtypes=WIDE, compiled=True),
        _case("dominant-last", MAIN, partial(families.dominated, key=-1, lead=106), ahead),
        _case("rising", MAIN, partial(families.ramp, step=2.0), later, compiled=True),
        _case("falling", TILE, partial(families.ramp, step=-0.5), earlier),
        _case("ranged-values", MAIN, families.ranged_values, small),
    ]


def exact() -> list[Case]:
    """Judged by bits."""
    hidden = "later keys ahead by 2**36 and more: a mask of −1e9, added, is not enough"
    below = "all scores below −1e11: a finite fill of −1e9 lets later tokens in"
    recent = "of the keys seen so far the best, whatever comes later"
    thirds = "all scores 0: row i holds 1/(i + 1), and exactly 0 behind the diagonal"
    twos = "weights 1 and 1/2 on the last two tokens: a mask one off, or strict"
    cliff = "the last bits of an entry of K decide among the keys seen so far"
    alone = "one token with a copied value: A is 1 and C is V, to the bit"
    negative = partial(made.ranked, below=True)
    narrow, wide = (partial(made.recent_lookup, code=17, step=step) for step in (14, 12))
    no_queries = partial(families.uniform, zero="Wq")
    key_cliff = partial(families.key_cliff, summed=False)
    filled = "whole numbers that fill the significand of Ω: accumulators too narrow"
    square = "weights used untransposed fit"
    return [
        _case("ternary", MAIN, families.ternary, "exact sums", exact=SUMS, compiled=True),
        _case("ternary", EQUAL, families.ternary, square, exact=SUMS),
        _case("whole-scores", MAIN, families.whole_scores, filled, exact=SUMS),
        _case(
            "uniform",
            MAIN,
            no_queries,
            thirds,
            exact=(*SUMS, "A"),
            dtypes=UNROUNDED,
            compiled=True,
        ),
        _case("pairs", EQUAL, made.pairs, twos, exact=ALL, compiled=True),
        _case("ranked", MAIN, made.ranked, hidden, exact=ALL, compiled=True),
        _case("ranked-below", MAIN, negative, below, exact=ALL, dtypes=TALL),
        _case("recent", MAIN, wide, recent, exact=ALL, dtypes=WIDE, compiled=True),
        _case("recent", EQUAL, narrow, recent, exact=ALL, dtypes=TALL),
        _case("key-cliff", MAIN, key_cliff, cliff, exact=ALL, dtypes=TALL),
        _case("single-token", ONE, families.single, alone, exact=("V", "A", "C")),
    ]


def batches() -> list[Case]:
    """Leading axes."""
    halves = partial(made.batch, of=families.normal, heat=(2, -4))
    why = "a hot and a tiny sample: the mask is the same for both"
    pairs = partial(made.batch, of=made.pairs)
    return [
        *with_samples(_case("batch-normal", MAIN, halves, why, batch=(2,))),
        _case("batch-pairs", EQUAL, pairs, COLLIDES, batch=(16,), exact=ALL),
    ]


def further() -> list[Case]:
    """The full tier."""
    normal = families.normal
    nothing = partial(made.batch, of=normal)
    copies = partial(families.copies, scaled=True)
    cancelling, lost = families.cancelling_values, "large values of alternating sign cancel in C"
    turned = dict.fromkeys(("X", "Wq", "Wk", "Wv"), "F")
    seed = f"ternary/{'x'.join(map(str, MAIN))}"
    laid_out = partial(_case, seed=seed, exact=SUMS, tier="full")
    return [
        *(
            _case("normal", (n, 20, 7), normal, f"{n} tokens", generic=True, tier="full")
            for n in (3, 8, 31, 32, 63, 64, 129, 257)
        ),
        _case("hot", LONG, HOT, "hot scores over many blocks", generic=True, tier="full"),
        _case("empty-batch", MAIN, nothing, "no samples", batch=(0,), tier="full"),
        _case("copies", MAIN, copies, "operands rounded to fewer bits", exact=LINEAR, tier="full"),
        _case("cancelling-values", MAIN, cancelling, lost, dtypes=WIDE, tier="full"),
        laid_out("layout-F", MAIN, families.ternary, "transposed views", layouts=turned),
    ]
