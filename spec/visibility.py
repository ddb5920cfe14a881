"""Visibility: which keys a query of a kernel may attend to, by its mask and by causality."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from qkvac.spec.case import Case
from qkvac.spec.rearrangements import Rearrangements

Array = np.ndarray[Any, Any]


def visible(case: Case, inputs: Mapping[str, Array], conventions: Mapping[str, str]) -> Array:
    """Booleans [..., h, L, S]: whether a query sees a key, for all heads and samples.

    The case has to be one of a profile with queries and keys of their own.
    """
    sizes, kept = case.sizes, np.array(True)
    if "causal" in case.variant.split("-"):
        kept = Rearrangements(conventions).causal(sizes["L"], sizes["S"])
    mask = inputs.get("mask")
    if mask is not None:
        kept = kept & (mask if mask.dtype == bool else np.isfinite(mask.astype(np.float64)))
    return np.broadcast_to(kept, (*case.batch, sizes["h"], sizes["L"], sizes["S"]))


@cache
def has_blind_queries(case: Case, alignment: str) -> bool:
    """Whether some query of a case sees no key under a causal alignment."""
    if "L" not in case.sizes:
        return False
    inputs = case.inputs(case.dtypes[0])
    seen = visible(case, inputs, {"causal_alignment": alignment})
    return bool(np.any(~seen.any(axis=-1)))
