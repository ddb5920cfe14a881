"""The cases of the gradient profiles: cases of the profile itself, with a cotangent.

An id reads like that of the case whose inputs it has, `attention_gradients/normal/33x20x7`; a
cotangent that is not plain normal data is named behind the family, `normal-single`. Half formats
get small shapes and cool scores, because the bounds of a gradient grow with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qkvac.spec.cases.case import MAIN, WIDE, Case
from qkvac.spec.cases.head_case import EVEN, Heads, head_case
from qkvac.spec.cases.profile_cases import profile_case
from qkvac.spec.cases.special_cases import gradients_of
from qkvac.spec.formats import DTYPES
from qkvac.spec.inputs import families
from qkvac.spec.inputs import gradient_families as made
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame
from qkvac.spec.inputs.gradient_families import Arrays
from qkvac.spec.registry import forward_profiles, gradient_profiles

Cotangent = Callable[[Frame, tuple[int, ...]], Floats]
Forward = Sequence[Case]

COTANGENTS: Final[dict[str, Cotangent]] = {
    "": made.normal,
    "single": made.single,
    "rows": made.rows_alike,
    "zero": made.zero,
    "few": made.few,
    "mean": made.of_mean,
    "faint": made.faint,
}

PLAIN: Final = "gradients of plain data"
WHY: Final = {
    "single": "one entry of the cotangent is 1: each gradient shows a single path",
    "rows": "equal rows of the cotangent, as a sum over tokens sends them back",
    "mean": "weights as small as a layer starts with, and the loss a mean over a batch",
    "faint": "a cotangent below 1e-30: gradients that are taken for nothing",
    "zero": "no gradient comes in, so none goes on: nothing may be made up or kept",
}


def gradient_case(of: Case, cotangent: str = "", why: str = "", **fields: Any) -> Case:
    """The gradients of a case's inputs; fields of the case are kept unless they are given."""
    profile = f"{of.profile}_gradients"
    family = f"{of.family}-{cotangent}" if cotangent else of.family
    rest = of.id.removeprefix(f"{of.profile}/{of.family}/")
    recipe = partial(
        _sent,
        of=of.recipe,
        profile=of.profile,
        variant=of.variant,
        cotangent=COTANGENTS[cotangent],
    )
    given: dict[str, Any] = {"compiled": False, "exact": (), "tier": "default", **fields}
    return replace(
        of,
        id=f"{profile}/{family}/{rest}",
        profile=profile,
        family=family,
        why=why or WHY.get(cotangent, f"{PLAIN}: {of.why}"),
        recipe=recipe,
        **given,
    )


def _sent(
    f: Frame,
    of: Callable[[Frame], Arrays],
    profile: str,
    variant: str,
    cotangent: Cotangent,
) -> Arrays:
    inputs: Arrays = dict(of(f))
    shape = made.shape_of_last(f, profile, variant, inputs)
    return {**inputs, f"d{forward_profiles()[profile].last}": cotangent(f, shape)}


HALVES: Final = ("float64", "float32", "float16")
DOUBLE: Final = ("float64",)
"""Where gradients are 0 because one key has all the weight, and bounds are larger than that."""
EXACT: Final = "uniform weights on whole numbers: every gradient is exact, and none is 0"
TURNED: Final = "square weights, which fit the wrong way round, too"
TILES: Final = "more tokens than a tile of 128 holds: what is left over counts, too"
FRESH: Final = "weights as small as a layer starts with, where usual tolerances see nothing"

Row = tuple[str, str, tuple[str, ...], bool]
"""What follows the profile in the id of a forward case, a cotangent, dtypes, whether compiled."""

ALL: Final = DTYPES
LAYOUTS: Final = {
    "F": "a cotangent in columns: a backward pass that reads it as rows mixes its entries",
    "strided": "a cotangent with gaps",
    "readonly": "a cotangent that must not be written to",
}


def _rows(forward: Forward, table: Sequence[Row]) -> list[Case]:
    named = {case.id.partition("/")[2]: case for case in forward}
    return [
        gradient_case(
            named[name],
            cotangent,
            dtypes=tuple(d for d in named[name].dtypes if d in dtypes),
            compiled=compiled,
            generic=named[name].generic and cotangent == "",
        )
        for name, cotangent, dtypes, compiled in table
    ]


def _exact(base: Case, why: str = EXACT, compiled: bool = False) -> Case:
    """Gradients of whole numbers, all of them exact."""
    exact = gradient_profiles()[f"{base.profile}_gradients"].results(base.variant or None)
    return gradient_case(base, "few", why, exact=exact, compiled=compiled)


def laid_out(of: Case) -> list[Case]:
    """The cotangent in other layouts; equal rows can share one row of memory."""
    last = f"d{forward_profiles()[of.profile].last}"
    plain = [
        replace(gradient_case(of, "", why), layouts={last: layout})
        for layout, why in LAYOUTS.items()
    ]
    shared = "a cotangent of stride 0, as the gradient of a sum is passed on"
    plain.append(replace(gradient_case(of, "rows", shared), layouts={last: "stride0"}))
    return [
        replace(case, id=case.id.replace("/normal", f"/layout-{case.layouts[last]}", 1))
        for case in plain
    ]


@gradients_of("attention")
def attention(forward: Forward) -> list[Case]:
    """Gradients of `attention`."""
    case = partial(profile_case, "attention")
    small = case("normal", (5, 6, 3), families.normal, PLAIN, generic=True)
    return [
        *_rows(
            forward,
            [
                ("worked-example/6x3x2", "", ALL, False),
                ("normal/6x3x2", "", ALL, False),
                ("normal/33x20x7", "", HALVES, True),
                ("normal/33x20x7", "single", HALVES, False),
                ("normal/33x20x7", "rows", HALVES, False),
                ("normal/33x20x7", "zero", ALL, False),
                ("normal/33x20x7", "faint", WIDE, False),
                ("normal/65x24x10", "", WIDE, False),
                ("normal/9x130x33", "", WIDE, False),
                ("normal/2x3x5", "", ALL, False),
                ("normal/9x5x1", "", ALL, False),
                ("normal/1x20x7", "", DOUBLE, False),
                ("empty/0x20x7", "", ALL, False),
                ("hot/33x20x7", "", WIDE, True),
                ("hotter/33x20x7", "", WIDE, False),
                ("tiny/33x20x7", "", HALVES, False),
                ("ranged-columns/33x20x7", "", WIDE, False),
                ("row-shift/33x20x7", "", WIDE, False),
                ("cancelling-values/33x20x7", "", WIDE, False),
                ("batch-normal/3x33x20x7", "", WIDE, True),
            ],
        ),
        gradient_case(case("normal", (9, 6, 6), families.normal, TURNED, generic=True), why=TURNED),
        gradient_case(case("normal", (131, 6, 3), families.normal, TILES), why=TILES, dtypes=WIDE),
        gradient_case(case("fresh", MAIN, made.fresh, FRESH), why=FRESH, dtypes=HALVES),
        gradient_case(case("fresh", (5, 6, 3), made.fresh, FRESH), why=FRESH),
        gradient_case(case("fresh", MAIN, made.fresh, FRESH), "mean", dtypes=WIDE),
        _exact(case("balanced", (4, 6, 16), made.balanced, EXACT), compiled=True),
        *laid_out(small),
    ]


@gradients_of("dot_product_attention")
def dot_product_attention(forward: Forward) -> list[Case]:
    """Gradients of `dot_product_attention`: one input, on three paths."""
    case = partial(profile_case, "dot_product_attention")
    return [
        *_rows(
            forward,
            [
                ("normal/33x20", "", WIDE, True),
                ("normal/33x20", "zero", ALL, False),
                ("hot/33x20", "", WIDE, False),
                ("empty/0x20", "", ALL, False),
                ("single-token/1x20", "", WIDE, False),
                ("batch-normal/2x33x20", "", WIDE, False),
            ],
        ),
        gradient_case(case("small", (5, 3), made.cool_tokens, "small scores: all paths count")),
        _exact(case("balanced", (4, 6), made.balanced_tokens, EXACT)),
    ]


@gradients_of("causal_attention")
def causal_attention(forward: Forward) -> list[Case]:
    """Gradients of `causal_attention`: nothing flows back into what was not seen."""
    case = partial(profile_case, "causal_attention")
    return [
        *_rows(
            forward,
            [
                ("normal/6x3x2", "", ALL, False),
                ("normal/33x20x7", "", HALVES, True),
                ("normal/33x20x7", "single", HALVES, False),
                ("normal/65x24x10", "", WIDE, False),
                ("normal/2x3x5", "", WIDE, False),
                ("hot/33x20x7", "", WIDE, False),
                ("tiny/33x20x7", "", HALVES, False),
                ("row-shift/33x20x7", "", WIDE, False),
                ("shift-30000/33x20x7", "", WIDE, False),
                ("dominant-last/33x20x7", "", WIDE, False),
                ("ranked/33x20x7", "", DOUBLE, False),
                ("empty/0x20x7", "", ALL, False),
                ("batch-normal/2x33x20x7", "", WIDE, False),
            ],
        ),
        gradient_case(case("fresh", (5, 6, 3), made.fresh, FRESH), why=FRESH),
        _exact(case("balanced", (2, 6, 16), made.balanced, EXACT)),
    ]


@gradients_of("attention_linear_layers")
def attention_linear_layers(forward: Forward) -> list[Case]:
    """Gradients of `attention_linear_layers`: in the layout of the weights, biases too."""
    case = partial(profile_case, "attention_linear_layers")
    bias = "a bias reaches every token: its gradient is a sum over all of them"
    return [
        *_rows(
            forward,
            [
                ("worked-example/plain/6x3x2", "", ALL, False),
                ("normal/plain/33x20x7", "", HALVES, False),
                ("normal/plain/16x16x16", "", HALVES, False),
                ("normal/bias/33x20x7", "", HALVES, True),
                ("normal/bias/16x16x16", "single", HALVES, False),
                ("normal/bias/2x3x5", "", ALL, False),
                ("empty/bias/0x20x7", "", ALL, False),
                ("batch-normal/bias/2x33x20x7", "", WIDE, False),
            ],
        ),
        _exact(
            case(
                "balanced",
                (4, 6, 16),
                partial(made.balanced_linear, biased=True),
                bias,
                variant="bias",
            ),
            bias,
            compiled=True,
        ),
        _exact(
            case("balanced", (4, 6, 16), made.balanced_linear, EXACT, variant="plain"),
        ),
    ]


@gradients_of("multi_head_attention")
def multi_head_attention(forward: Forward) -> list[Case]:
    """Gradients of `multi_head_attention`: through the merge, each head by itself."""
    case = partial(profile_case, "multi_head_attention")
    heads = (4, 6, 32, 3, 2)
    return [
        *_rows(
            forward,
            [
                ("normal/plain/33x30x21x10x3", "", WIDE, False),
                ("normal/causal/33x30x21x10x3", "", WIDE, True),
                ("normal/plain/5x8x6x4x2", "", HALVES, False),
                ("normal/plain/9x5x6x4x6", "", WIDE, False),
                ("normal/plain/16x16x16x16x4", "", WIDE, False),
                ("normal/plain/5x8x6x4x2", "single", HALVES, False),
                ("hot/causal/33x30x21x10x3", "", WIDE, False),
                ("scaled-heads/plain/33x30x21x10x3", "", WIDE, False),
                ("empty/plain/0x30x21x10x3", "", ALL, False),
                ("batch-normal/causal/2x33x30x21x10x3", "", WIDE, False),
            ],
        ),
        _exact(case("balanced", heads, made.balanced_heads, EXACT, variant="plain")),
        _exact(
            case("balanced", (2, *heads[1:]), made.balanced_heads, EXACT, variant="causal"),
        ),
    ]


@gradients_of("scaled_dot_product_attention")
def scaled_dot_product_attention(forward: Forward) -> list[Case]:
    """Gradients of `scaled_dot_product_attention`, of an additive mask too."""
    main, even = "2x6x3x5x9x7x4", Heads((2,), 4, 2, 2, 4, 16, 3)
    own, square = "2x3x3x5x9x7x4", "2x3x3x5x5x7x7"
    plain = next(case for case in forward if case.id.endswith(f"/normal/plain/{main}"))
    plain = replace(plain, dtypes=WIDE)
    return [
        *_rows(
            forward,
            [
                (f"normal/plain/{square}", "", HALVES, False),
                (f"normal/plain/{main}", "", HALVES, False),
                (f"normal/plain/{main}", "zero", ALL, False),
                ("normal/plain/2x6x1x5x9x7x4", "", HALVES, False),
                ("normal/plain/2x6x2x5x7x4x3", "", ALL, False),
                ("normal/plain/2x2x2x4x4x2x2", "", ALL, False),
                ("normal/plain/6x3x5x9x7x4", "", HALVES, False),
                ("normal/plain/1x2x1x33x65x64x24", "", WIDE, False),
                (f"row-shift/plain/{main}", "", WIDE, False),
                (f"scale-half/scale/{main}", "", HALVES, False),
                (f"scale-negative/scale/{main}", "", HALVES, False),
                (f"scale-zero/scale/{EVEN}", "", HALVES, False),
                (f"normal/causal/{square}", "", HALVES, True),
                ("normal/causal/2x6x3x9x5x7x4", "", HALVES, False),
                ("normal/causal/2x6x3x1x4x7x5", "", DOUBLE, False),
                (f"below/causal/{main}", "", HALVES, False),
                (f"normal/boolean/{square}", "", HALVES, False),
                (f"mask-Bx1xLxS/boolean/{own}", "", HALVES, False),
                (f"empty-row/boolean/{square}", "", HALVES, False),
                (f"mask-LxS/additive/{own}", "", HALVES, False),
                (f"hot/plain/{square}", "", WIDE, False),
                (f"mask-Bx1xLxS-expanded/additive/{own}", "", HALVES, False),
                (f"mask-Lx1/additive/{own}", "", HALVES, False),
                (f"empty-row/additive/{own}", "", HALVES, False),
                (f"minimum/additive/{own}", "", WIDE, False),
                ("penalty-row/additive/2x3x3x5x9x4x6", "", WIDE, False),
                (f"normal/additive-scale/{main}", "", HALVES, True),
                (f"but-first/boolean-causal/{square}", "", HALVES, False),
                (f"mask-Bx1x1xS/additive-causal-scale/{main}", "", HALVES, False),
                ("empty/plain/0x6x3x5x9x7x4", "", ALL, False),
                ("empty/plain/2x6x3x5x0x7x4", "", ALL, False),
            ],
        ),
        _exact(head_case("balanced", even, made.balanced_queries, EXACT)),
        *(case for case in laid_out(plain) if case.layouts["dC"] in ("F", "stride0")),
    ]


@gradients_of("embedding")
def embedding(forward: Forward) -> list[Case]:
    """Gradients of `embedding`: a token's row gets the sum over all places where it stands."""
    return [
        *_rows(
            forward,
            [
                ("normal/7x5x11x16", "", ALL, True),
                ("ends/9x5x11x9", "", ALL, False),
                ("high-ids/33x3x2600x40", "", ALL, False),
                ("shuffled/11x11x11x11", "single", ALL, False),
                ("single-token/1x5x11x16", "", ALL, False),
                ("empty/0x5x11x16", "", ALL, False),
                ("batch-whole/2x7x5x11x16", "", ALL, False),
            ],
        ),
        *(_exact(case) for case in forward if case.family == "whole"),
    ]
