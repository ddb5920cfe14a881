"""Cases of the profiles around `attention`."""

from __future__ import annotations

from functools import partial
from typing import Any

from qkvac.spec import families
from qkvac.spec import profile_families as made
from qkvac.spec.case import SUMS, Case, Recipe

AXES = {
    "attention": "ndc",
    "dot_product_attention": "nd",
    "causal_attention": "ndc",
    "attention_linear_layers": "ndc",
    "multi_head_attention": "ndcoh",
    "embedding": "ndtp",
}
"""The axes in the order in which the cases give their sizes."""

VARIED = {"attention_linear_layers", "multi_head_attention"}
"""Profiles whose case ids name the variant."""

Sizes = tuple[int, ...]


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
    """A case of any profile without masks; `seed` names the family whose numbers it shares."""
    axes = dict(zip(AXES[profile], sizes, strict=True))
    heads = axes.get("h")
    plain = "x".join(str(size) for size in (*batch, *(v for k, v in axes.items() if k != "h")))
    shape = plain if heads is None else f"{plain}-h{heads}"
    place = f"{profile}/{variant}" if variant else profile
    attributes: dict[str, Any] = {} if heads is None else {"heads": heads}
    if profile == "multi_head_attention" and variant == "causal":
        attributes["causal"] = True
    name = f"{place}/{family}/{shape}"
    return Case(
        name,
        profile,
        family,
        axes,
        why,
        recipe,
        name if seed is None else f"{profile}/{seed}",
        batch=batch,
        variant=variant,
        attributes=attributes,
        **fields,
    )


def batches() -> list[Case]:
    """Leading axes of `attention`."""
    _case = partial(profile_case, "attention")
    different = partial(made.batch, of=families.normal, heat=(2, 0, -4))
    return [
        _case("batch-normal", (33, 20, 7), different, "samples of different heat", batch=(3,)),
    ]


def no_weights() -> list[Case]:
    """dot_product_attention."""
    _case = partial(profile_case, "dot_product_attention")
    return [
        _case("normal", (33, 20), made.tokens, "plain", generic=True, compiled=True),
        _case("ternary", (33, 20), made.whole_tokens, "exact scores", exact=("Ω",), compiled=True),
        _case("batch-normal", (33, 20), partial(made.batch, of=made.tokens), "b", batch=(3,)),
    ]


def causal() -> list[Case]:
    """causal_attention."""
    _case = partial(profile_case, "causal_attention")
    return [
        _case("normal", (33, 20, 7), families.normal, "plain", generic=True, compiled=True),
        _case("ternary", (33, 20, 7), families.ternary, "exact sums", exact=SUMS, compiled=True),
        _case("batch-normal", (9, 20, 7), partial(made.batch, of=families.normal), "b", batch=(3,)),
    ]


def linear() -> list[Case]:
    """attention_linear_layers."""
    _case = partial(profile_case, "attention_linear_layers")
    return [
        _case("normal", (33, 20, 7), made.linear, "p", variant="plain", generic=True),
        _case("normal", (33, 20, 7), made.linear_biased, "b", variant="bias", generic=True),
        _case("whole", (33, 20, 7), made.linear_whole, "b", variant="bias", exact=SUMS),
    ]


def multi_head() -> list[Case]:
    """multi_head_attention."""
    _case = partial(profile_case, "multi_head_attention")
    main = (33, 30, 21, 10, 3)
    return [
        *(
            _case("normal", main, made.heads, "p", variant=v, generic=True, compiled=True)
            for v in ("plain", "causal")
        ),
        _case(
            "batch-normal",
            main,
            partial(made.batch, of=made.heads),
            "b",
            variant="plain",
            batch=(2,),
        ),
    ]


def embedding() -> list[Case]:
    """embedding."""
    _case = partial(profile_case, "embedding")
    return [
        _case("normal", (7, 5, 11, 9), made.looked_up, "p", compiled=True),
        _case("whole", (7, 5, 11, 9), made.looked_up_whole, "p", exact=("X",), compiled=True),
        _case(
            "batch-normal", (7, 5, 11, 9), partial(made.batch, of=made.looked_up), "b", batch=(3,)
        ),
    ]
