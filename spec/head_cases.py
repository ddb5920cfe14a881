"""The cases of `scaled_dot_product_attention`.

An id reads `scaled_dot_product_attention/<family>/<variant>/<shape>`. The variant is that of the
equations, the shape lists the leading axes, if any, and then h, g, L, S, d and v. The variants of
a family at one shape have equal Q, K and V, and so do families that share a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from qkvac.spec import head_families, mask_families
from qkvac.spec.case import Case, Recipe

PROFILE: Final = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Heads:
    """The sizes of one call: leading axes, query heads, key/value heads, lengths, widths."""

    batch: tuple[int, ...]
    h: int
    g: int
    L: int
    S: int
    d: int
    v: int

    @property
    def sizes(self) -> Mapping[str, int]:
        return {axis: getattr(self, axis) for axis in ("h", "g", "L", "S", "d", "v")}

    def __str__(self) -> str:
        return "x".join(map(str, (*self.batch, *self.sizes.values())))


MAIN: Final = Heads((2,), 6, 3, 5, 9, 7, 4)
"""No two axes equal, grouped heads, d not a square, no axis a multiple of a tile."""
TURNED: Final = Heads((2,), 6, 3, 9, 5, 7, 4)
"""More queries than keys."""
UNGROUPED: Final = Heads((2,), 3, 3, 5, 9, 7, 4)
"""For implementations in which each query head has its own keys and values."""
SQUARE: Final = Heads((2,), 3, 3, 5, 5, 7, 7)
"""What every implementation can do: self-attention, values as wide as keys."""


def head_case(
    family: str,
    heads: Heads,
    recipe: Recipe,
    why: str,
    *,
    causal: bool = False,
    mask: str = "",
    scale: float | None = None,
    seed: str | None = None,
    **fields: Any,
) -> Case:
    """A case of the profile; `mask` is "", "boolean" or "additive", a `scale` of None the default.

    `seed` names the family whose random numbers it shares at the same sizes, by default its own.
    """
    flags = {"causal": True} if causal else {}
    attributes = flags if scale is None else {**flags, "scale": scale}
    variant = "-".join([*filter(None, [mask]), *attributes]) or "plain"
    return Case(
        f"{PROFILE}/{family}/{variant}/{heads}",
        PROFILE,
        family,
        heads.sizes,
        why,
        recipe,
        f"{PROFILE}/{seed or family}/{heads}",
        attributes=attributes,
        variant=variant,
        batch=heads.batch,
        masked=bool(mask),
        **fields,
    )


def all_cases() -> list[Case]:
    """All cases of the profile, in a fixed order."""
    return plain()


def plain() -> list[Case]:
    """Normal data in all shapes and with all flags."""
    normal = head_families.normal
    kept = partial(mask_families.masked, inputs=normal, mask=mask_families.kept)
    bias = partial(mask_families.masked, inputs=normal, mask=mask_families.bias)
    case = partial(head_case, "normal", generic=True)
    return [
        case(MAIN, normal, "axes all different, grouped heads: the plain case"),
        case(TURNED, normal, "more queries than keys"),
        case(UNGROUPED, normal, "each query head has its own keys and values"),
        case(SQUARE, normal, "self-attention: nothing that a plain kernel lacks", compiled=True),
        case(MAIN, normal, "causal, fewer queries than keys", causal=True, compiled=True),
        case(TURNED, normal, "causal, more queries than keys", causal=True),
        case(SQUARE, normal, "causal self-attention", causal=True),
        case(
            MAIN,
            partial(kept, axes="Bx1xLxS"),
            "a mask for each sample, other keys for each query",
            mask="boolean",
            compiled=True,
        ),
        case(
            SQUARE,
            partial(kept, axes="LxS"),
            "a boolean mask for all samples and heads",
            mask="boolean",
        ),
        case(
            UNGROUPED,
            partial(bias, axes="LxS"),
            "a finite bias for all samples and heads",
            mask="additive",
        ),
        case(
            MAIN,
            partial(bias, axes="1xhxLxS"),
            "a finite bias per head, and a scale that only the scores have",
            mask="additive",
            scale=0.5,
            compiled=True,
        ),
        case(MAIN, normal, "an explicit scale", scale=0.5),
    ]
