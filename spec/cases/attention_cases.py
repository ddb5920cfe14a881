"""The cases of `attention`, from families that know it best."""

from __future__ import annotations

from qkvac.spec.cases import exact_cases, generic_cases, profile_cases
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.special_cases import cases_of


@cases_of("attention")
def all_cases() -> list[Case]:
    """All cases of the profile, in a fixed order."""
    return [
        *generic_cases.plain(),
        *generic_cases.stressed(),
        *exact_cases.sums(),
        *exact_cases.lookups(),
        *exact_cases.layouts(),
        *generic_cases.further(),
        *exact_cases.further(),
        *profile_cases.batches(),
    ]
