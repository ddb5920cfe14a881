"""The cases of `scaled_dot_product_attention` in other memory layouts; the data are the same."""

from __future__ import annotations

from functools import partial
from typing import Final

from qkvac.spec.cases.case import Case
from qkvac.spec.cases.head_case import MAIN, UNGROUPED, WIDE_HEADS, head_case
from qkvac.spec.inputs import head_families, mask_families
from qkvac.spec.inputs.head_families import lookup, normal
from qkvac.spec.inputs.mask_families import masked

ALL: Final = ("Ω", "A", "C")
OPERANDS: Final = ("Q", "K", "V")
LAYOUTS: Final = ("heads", "F", "strided", "reversed", "offset", "readonly")

TOGETHER: Final = ("F", "strided", "readonly")
"""Layouts that all operands of one call have, in the default tier."""

ALONE: Final = {("heads", "Q"), ("heads", "V"), ("F", "mask"), ("stride0", "mask")}
"""Layouts of a single array that are in the default tier."""


def layouts() -> list[Case]:
    """Every layout of Q, K and V together, of each of them alone, and of the mask alone."""
    found = partial(head_case, heads=UNGROUPED, recipe=lookup, seed="lookup", exact=ALL)
    result = []
    for layout in LAYOUTS:
        tier = "default" if layout in TOGETHER else "full"
        where, why = dict.fromkeys(OPERANDS, layout), f"every input laid out as {layout}"
        result.append(found(f"layout-{layout}", why=why, layouts=where, tier=tier))
    for layout in LAYOUTS:
        for name in OPERANDS:
            tier = "default" if (layout, name) in ALONE else "full"
            where, why = {name: layout}, f"{name} alone laid out as {layout}"
            result.append(found(f"layout-{name}-{layout}", why=why, layouts=where, tier=tier))
    return [*result, *_grouped(), *_repeated(), *_masks()]


def _grouped() -> list[Case]:
    """Heads as layers have them, [batch, token, head, width] in memory."""
    where = dict.fromkeys(OPERANDS, "heads")
    why = "C is the number of its head, read through views as layers have them"
    ids, wide = head_families.head_ids, "heads of width 96, as layers have them"
    case = partial(head_case, exact=ALL, layouts=where)
    return [
        case("layout-head-id", MAIN, ids, why, seed="head-id"),
        case("layout-heads", WIDE_HEADS, lookup, wide, seed="lookup", tier="full"),
    ]


def _repeated() -> list[Case]:
    """One sample in memory, repeated by a stride of 0."""
    shared = partial(head_case, heads=UNGROUPED, recipe=head_families.same_samples, exact=ALL)
    both = "keys and values of one sample, repeated by a stride of 0"
    return [
        shared("layout-stride0", why=both, layouts={"K": "stride0", "V": "stride0"}),
        *(
            shared(
                f"layout-{name}-stride0",
                why=f"{name} of one sample, repeated by a stride of 0",
                layouts={name: "stride0"},
                seed="layout-stride0",
                tier="full",
            )
            for name in OPERANDS
        ),
    ]


def _masks() -> list[Case]:
    """The mask alone in every layout."""
    result = []
    for kind, mask in mask_families.KINDS.items():
        case = partial(head_case, heads=UNGROUPED, mask=kind, seed="normal", generic=True)
        whole = partial(masked, inputs=normal, mask=mask, axes="BxhxLxS")
        shared = partial(whole, mask=partial(mask_families.shared, mask=mask))
        for layout in (*LAYOUTS, "stride0"):
            often = kind == "boolean" and (layout, "mask") in ALONE
            result.append(
                case(
                    f"layout-mask-{layout}",
                    recipe=shared if layout == "stride0" else whole,
                    why=f"the mask alone laid out as {layout}",
                    layouts={"mask": layout},
                    tier="default" if often else "full",
                )
            )
    return result
