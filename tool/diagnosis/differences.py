"""Differences: what was returned beside what a formula gives, and how much of it is explained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qkvac.spec.formats import FORMATS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Difference:
    """A reported quantity beside a candidate's, entry by entry."""

    error: Array
    """|reported − candidate|; infinite or NaN where one of them is not finite."""
    limit: Array

    @cached_property
    def within(self) -> bool:
        return bool(np.all(np.isfinite(self.error))) and bool(np.all(self.error <= self.limit))

    def left(self, declared: Difference) -> float | None:
        """The share of the deviation from the declared values that is left; None without one.

        Entries outside the declared limits count, in units of these; where only bits are wrong,
        all entries.
        """
        with np.errstate(all="ignore"):
            outside = ~(declared.error <= declared.limit)
            unit = np.where(outside & (declared.limit > 0), declared.limit, 1.0)
            counted = outside if outside.any() else np.ones_like(outside)
            deviation = np.sum((declared.error / unit)[counted])
            rest = np.sum((self.error / unit)[counted])
        if not np.isfinite(deviation):
            return 0.0
        return float(rest / deviation) if deviation > 0 else None


def difference(value: Array, expected: Array, limit: Array, dtype: str) -> Difference:
    """A value beside the expected one, which overflows where the dtype does."""
    largest = FORMATS[dtype].largest
    with np.errstate(all="ignore"):
        beyond = np.abs(expected) > largest
        expected = np.where(beyond, np.copysign(np.inf, expected), expected)
        same = (value == expected) | (np.isnan(value) & np.isnan(expected))
        return Difference(np.where(same, 0.0, np.abs(value - expected)), limit)
