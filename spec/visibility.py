"""Visibility: which keys a query may attend to, by its mask and by causality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvac.spec.case import Case
from qkvac.spec.rearrangements import Rearrangements
from qkvac.spec.registry import remembered

Array = np.ndarray[Any, Any]


def visible(case: Case, inputs: Mapping[str, Array], conventions: Mapping[str, str]) -> Array:
    """Booleans [..., h, L, S], without h where there are no heads: whether a query sees a key."""
    queries, keys = (case.sizes.get(axis, case.sizes.get("n", 0)) for axis in ("L", "S"))
    heads = (case.sizes["h"],) if "h" in case.sizes else ()
    kept = np.array(True)
    if "causal" in case.variant.split("-") or case.profile.startswith("causal_attention"):
        kept = Rearrangements(conventions).causal(queries, keys)
    mask = inputs.get("mask")
    if mask is not None:
        kept = kept & (mask if mask.dtype == bool else np.isfinite(mask.astype(np.float64)))
    return np.broadcast_to(kept, (*case.batch, *heads, queries, keys))


@remembered
def has_blind_queries(case: Case, alignment: str) -> bool:
    """Whether some query of a case sees no key under a causal alignment."""
    if "L" not in case.sizes:
        return False
    inputs = case.inputs(case.dtypes[0])
    seen = visible(case, inputs, {"causal_alignment": alignment})
    return bool(np.any(~seen.any(axis=-1)))
