"""What the cases of `scaled_dot_product_attention` are made of: shapes, and how a case is named.

An id reads `scaled_dot_product_attention/<family>/<variant>/<shape>`. The variant is that of the
equations; the shape lists the leading axes, if any, and then h, g, L, S, d and v. The variants of
a family at one shape have equal Q, K and V, and so have families that share a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qkvac.spec.cases.case import Case, Recipe

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
"""No two axes equal, grouped heads, d not a square, L and S off every tile."""
TURNED: Final = Heads((2,), 6, 3, 9, 5, 7, 4)
"""More queries than keys."""
UNGROUPED: Final = Heads((2,), 3, 3, 5, 9, 7, 4)
"""Each query head with keys and values of its own."""
SQUARE: Final = Heads((2,), 3, 3, 5, 5, 7, 7)
"""What every implementation can do: self-attention, values as wide as keys."""
COLLISION: Final = Heads((3,), 3, 3, 5, 9, 7, 4)
"""As many samples as heads, so that one axis of a mask may be taken for the other."""
WIDE_VALUES: Final = Heads((2,), 3, 3, 5, 9, 4, 6)
"""Values wider than keys."""
ONE_KEY_HEAD: Final = Heads((2,), 6, 1, 5, 9, 7, 4)
TRIPLES: Final = Heads((2,), 6, 2, 5, 7, 4, 3)
"""Three query heads share one of two key/value heads; d is a square."""
DECODE: Final = Heads((2,), 6, 3, 1, 4, 7, 5)
"""One query, as in generation."""
NO_BATCH: Final = Heads((), 6, 3, 5, 9, 7, 4)
TWO_AXES: Final = Heads((3, 2), 6, 3, 5, 9, 7, 4)
TILES: Final = Heads((1,), 2, 1, 33, 65, 64, 24)
"""One token more than tiles of 32 and 64; d = 64, as kernels have it."""
TURNED_TILES: Final = Heads((1,), 2, 1, 65, 33, 64, 24)
EVEN: Final = Heads((2,), 4, 2, 6, 8, 16, 3)
"""The scale 1/4 and its root are powers of two, and 8 keys can share a weight exactly."""
WIDE_HEADS: Final = Heads((2,), 2, 2, 9, 12, 96, 40)
"""Widths that kernels have paths of their own for, lengths below a tile."""


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
