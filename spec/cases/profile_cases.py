"""The cases of `dot_product_attention`, `attention_linear_layers` and `embedding`, and batches.

An id reads `<profile>/<family>/<shape>`, with the variant of the equations before the shape where
the profile has several. The shape lists the leading axes, if any, and then n, d and what else the
profile has. The variants of a family at one shape have equal data, and so do families that share
a seed: a batch is drawn as a whole, and cases of single samples take theirs out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from qkvac.spec.cases.case import (
    ALL,
    BOOK,
    EQUAL,
    LINEAR,
    MAIN,
    ONE,
    SUMS,
    TILE,
    WIDE,
    Case,
    Recipe,
)
from qkvac.spec.cases.special_cases import cases_of
from qkvac.spec.inputs import families
from qkvac.spec.inputs import profile_families as made
from qkvac.spec.registry import forward_profiles

Sizes = tuple[int, ...]

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": ("n", "d", "c"),
    "dot_product_attention": ("n", "d"),
    "causal_attention": ("n", "d", "c"),
    "attention_linear_layers": ("n", "d", "c"),
    "multi_head_attention": ("n", "d", "c", "o", "h"),
    "embedding": ("n", "d", "t", "p"),
}
"""The axes of each profile in the order in which cases give their sizes."""


def profile_case(
    profile: str,
    family: str,
    sizes: Sizes,
    recipe: Recipe,
    why: str,
    *,
    variant: str = "",
    batch: Sizes = (),
    seed: str | None = None,
    **fields: Any,
) -> Case:
    """A case of a profile without masks.

    `seed` names the family and shape whose random numbers it shares, by default its own.
    """
    shape = "x".join(map(str, (*batch, *sizes)))
    name = (
        f"{family}/{variant}/{shape}"
        if len(forward_profiles()[profile].texts) > 1
        else f"{family}/{shape}"
    )
    axes = dict(zip(AXES[profile], sizes, strict=True))
    attributes: dict[str, Any] = {}
    if profile == "multi_head_attention":
        attributes = {"heads": axes["h"]} | ({"causal": True} if variant == "causal" else {})
    return Case(
        f"{profile}/{name}",
        profile,
        family,
        axes,
        why,
        recipe,
        f"{profile}/{seed or f'{family}/{shape}'}",
        batch=batch,
        variant=variant,
        attributes=attributes,
        **fields,
    )


def with_samples(whole: Case) -> list[Case]:
    """A batch, and each of its samples as a case of its own: the same numbers without the batch."""
    result = [whole]
    for number, index in enumerate(np.ndindex(*whole.batch)):
        family = f"sample-{number}"
        shape = "x".join(map(str, whole.sizes.values()))
        place = whole.id.removesuffix("x".join(map(str, whole.batch)) + f"x{shape}")
        taken = partial(made.sample, of=whole.recipe, batch=whole.batch, index=index)
        why = f"sample {number} of {whole.family} alone: a batch is the loop over its samples"
        name = place.replace(whole.family, family, 1) + shape
        single = replace(whole, id=name, family=family, recipe=taken, why=why, batch=())
        result.append(replace(single, compiled=False))
    return result


UNROUNDED: Final = ("float64", "float32", "float16")
"""Where 1/m is the same for small m, rounded once or through a wider format."""

HEATS: Final = (2, 0, -4)
LOOPED: Final = "a hot, a plain and a tiny sample: what one does must not touch the others"
COLLIDES: Final = "as many samples as tokens: mixed-up axes still fit"


def batches() -> list[Case]:
    """Leading axes of `attention`."""
    case = partial(profile_case, "attention")
    normal = partial(made.batch, of=families.normal, heat=HEATS)
    return [
        *with_samples(case("batch-normal", MAIN, normal, LOOPED, batch=(3,))),
        case(
            "batch-lookup",
            (5, 12, 7),
            partial(made.batch, of=families.lookup),
            COLLIDES,
            batch=(5,),
            exact=ALL,
        ),
        case(
            "batch-ternary",
            (9, 20, 7),
            partial(made.batch, of=families.ternary),
            "two leading axes, to the bit",
            batch=(2, 3),
            exact=SUMS,
        ),
    ]


@cases_of("dot_product_attention")
def no_weights() -> list[Case]:
    """The cases of `dot_product_attention`."""
    case = partial(profile_case, "dot_product_attention")
    main, equal, tile = (MAIN[:2], EQUAL[:2], TILE[:2])
    hot = partial(made.tokens, exponent=1)
    halves = partial(made.batch, of=made.tokens, heat=(1, -3))
    example = "the published example without weights, against its printed results"
    untransposed = "as many tokens as columns: X X and X Xᵀ have one shape"
    ahead = "each token finds the furthest in its own direction: a scale or an Aᵀ changes C"
    return [
        case("worked-example", BOOK[:2], made.worked_tokens, example, dtypes=WIDE),
        case(
            "normal",
            main,
            made.tokens,
            "the plain case: no weights, and no scale either",
            generic=True,
            compiled=True,
        ),
        case("normal", tile, made.tokens, "one token more than a tile of 64", generic=True),
        case("hot", main, hot, "scores beyond 100, largest on the diagonal", dtypes=WIDE),
        case("raised", main, made.raised_tokens, "all scores beyond 1000", dtypes=WIDE),
        case("empty", (0, 20), made.tokens, "no tokens: empty results, not an error"),
        case(
            "single-token",
            ONE[:2],
            made.lone_token,
            "one token: A is 1 and C is X, to the bit",
            exact=("A", "C"),
        ),
        case("ternary", main, made.whole_tokens, "exact scores", exact=("Ω",), compiled=True),
        case("ternary", equal, made.whole_tokens, untransposed, exact=("Ω",)),
        case(
            "whole-scores",
            main,
            made.wide_tokens,
            "whole numbers that fill the significand: accumulators too narrow",
            exact=("Ω",),
        ),
        case("leaders", main, made.leaders, ahead, exact=("Ω", "A", "C"), compiled=True),
        case(
            "equal-rows",
            equal,
            made.equal_tokens,
            "equal scores that are not 0: weights 1/16, C equal to X",
            exact=("Ω", "A", "C"),
        ),
        *with_samples(
            case(
                "batch-normal",
                main,
                halves,
                "a hot and a tiny sample, each on its own",
                batch=(2,),
                compiled=True,
            )
        ),
        case("normal", (9, 1), made.tokens, "d = 1", generic=True, tier="full"),
        case("normal", (2, 3), made.tokens, "two tokens", generic=True, tier="full"),
        case("normal", (577, 24), made.tokens, "n ≥ 512, off a tile", generic=True, tier="full"),
        case(
            "layout-X-F",
            main,
            made.whole_tokens,
            "X laid out column by column",
            seed=f"ternary/{'x'.join(map(str, main))}",
            exact=("Ω",),
            layouts={"X": "F"},
            tier="full",
        ),
    ]


@cases_of("attention_linear_layers")
def linear() -> list[Case]:
    """The cases of `attention_linear_layers`."""
    case = partial(profile_case, "attention_linear_layers")
    plain, biased = partial(case, variant="plain"), partial(case, variant="bias")
    whole = made.linear_whole
    example = "the published example with linear layers, against its printed results"
    square = "as many inputs as outputs: weights used untransposed fit"
    both = "a hot and a tiny sample under the same biases"
    ternary, lookup = (partial(made.linear, of=of) for of in (families.ternary, families.lookup))
    alone = partial(made.linear, of=families.single)
    whole_sums = partial(made.linear, of=families.whole_projections)
    narrow = "whole numbers that fill the significand: accumulators too narrow"
    heavy = partial(made.linear_biased, exponents=(3, 0, 4))
    twice = "biases that outweigh the products: left out or added twice, all is different"
    halves = partial(made.batch, of=made.linear_biased, heat=(1, -4))
    return [
        plain("worked-example", BOOK, made.worked_linear, example, dtypes=WIDE),
        plain(
            "normal",
            MAIN,
            made.linear,
            "weights stored (c, d), all biases absent",
            generic=True,
            compiled=True,
        ),
        plain("normal", EQUAL, made.linear, square, generic=True),
        plain("ternary", MAIN, ternary, "a wrong operand changes bits", exact=SUMS, compiled=True),
        plain("whole-projections", MAIN, whole_sums, narrow, exact=LINEAR),
        plain("lookup", MAIN, lookup, "a permutation of the values, to the bit", exact=ALL),
        plain("single-token", ONE, alone, "A is 1 and C is V, to the bit", exact=("V", "A", "C")),
        biased("normal", MAIN, made.linear_biased, "a bias each", generic=True, compiled=True),
        biased(
            "normal",
            EQUAL,
            made.linear_biased,
            "as many tokens as outputs: a bias along the wrong axis fits",
            generic=True,
        ),
        biased("normal", (2, 3, 5), made.linear_biased, "so small that bounds are sharp"),
        biased("heavy-bias", MAIN, heavy, twice, dtypes=WIDE),
        biased(
            "cancelling-bias",
            MAIN,
            made.linear_cancelling,
            "large products that the biases cancel: narrow accumulators lose what is left",
        ),
        biased("whole-bias", MAIN, whole, "exact sums with a bias", exact=SUMS, compiled=True),
        biased("whole-bias", EQUAL, whole, "biases that fit along any axis", exact=SUMS),
        biased(
            "zero-bias",
            MAIN,
            partial(whole, largest=0),
            "biases of 0 are as if they were absent",
            seed=f"ternary/{'x'.join(map(str, MAIN))}",
            exact=SUMS,
        ),
        biased(
            "steered",
            MAIN,
            made.linear_steered,
            "the biases alone choose the key, and are half of the values, to the bit",
            exact=ALL,
            compiled=True,
        ),
        biased("empty", (0, 20, 7), made.linear_biased, "no tokens: biases have no row to go to"),
        *with_samples(biased("batch-normal", MAIN, halves, both, batch=(2,))),
        biased(
            "layout-W-F",
            MAIN,
            whole,
            "weights that are transposed views, as of a (d, c) array",
            seed=f"whole-bias/{'x'.join(map(str, MAIN))}",
            exact=SUMS,
            layouts=dict.fromkeys(("Wq", "Wk", "Wv"), "F"),
            tier="full",
        ),
    ]


VOCABULARY: Final = (7, 5, 11, 16)
"""Sizes n, d, t and p, all different; the positions would do for two samples in a row."""


@cases_of("embedding")
def embedding() -> list[Case]:
    """The cases of `embedding`."""
    case = partial(profile_case, "embedding")
    whole, exact = made.embedded_whole, ("X",)
    high = partial(made.embedded, choose=made.high_ids)
    swapped = "E and P of one shape, tokens a permutation: exchanged or inverted, they still fit"
    restart = "positions start anew in every sample"
    return [
        case("normal", VOCABULARY, made.embedded, "sums rounded once", generic=True, compiled=True),
        case("whole", VOCABULARY, whole, "exact sums: rows one off", exact=exact, compiled=True),
        case(
            "token-copies",
            VOCABULARY,
            partial(made.embedded_copies, of_tokens=True),
            "positions of 0: rows of E, to the bit",
            exact=exact,
        ),
        case(
            "position-copies",
            VOCABULARY,
            partial(made.embedded_copies, of_tokens=False),
            "embeddings of 0: rows of P in their order, to the bit",
            exact=exact,
        ),
        case(
            "ends",
            (9, 5, 11, 9),
            partial(whole, choose=made.end_ids),
            "the last token and the first again and again; as many positions as tokens",
            exact=exact,
        ),
        case(
            "shuffled",
            (11, 11, 11, 11),
            partial(whole, choose=made.shuffled_ids),
            swapped,
            exact=exact,
        ),
        case("high-ids", (33, 3, 2600, 40), high, "ids that do not fit into 8 or 11 bits"),
        case("single-token", (1, 5, 11, 16), whole, "one token at position 0", exact=exact),
        case("empty", (0, 5, 11, 16), made.embedded, "no tokens: an empty X, not an error"),
        *with_samples(
            case(
                "batch-whole",
                VOCABULARY,
                partial(made.batch, of=whole),
                restart,
                batch=(2,),
                exact=exact,
                compiled=True,
            )
        ),
        case("high-ids", (33, 2, 33000, 40), high, "ids beyond 16 bits with a sign", tier="full"),
        case("normal", (577, 24, 50, 600), made.embedded, "long", generic=True, tier="full"),
    ]
