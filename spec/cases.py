"""The cases of each profile.

Frameworks compile for every shape anew, so the cases vary the data and share about a dozen shapes;
n, d and c differ in all but the shape for exact ties, where every axis is 16. The inputs are the
same bits on every platform: see `draws`. What a case claims to be exact is proved by `exactness`
before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from qkvac.spec import (
    causal_cases,
    derived_cases,
    exact_cases,
    generic_cases,
    gradient_cases,
    head_cases,
    multi_head_cases,
    profile_cases,
)
from qkvac.spec.case import Case
from qkvac.spec.equations import SpecError
from qkvac.spec.registry import known_profiles, remembered

__all__ = ["Case", "cases"]


@remembered
def cases(profile: str = "attention") -> tuple[Case, ...]:
    """All cases of a profile, in a fixed order; raises SpecError for an unknown profile."""
    declared = known_profiles().get(profile)
    if declared is None:
        raise SpecError(f"unknown profile {profile!r}; choose from {', '.join(known_profiles())}")
    if declared.base in gradient_cases.MADE:
        return tuple(gradient_cases.all_cases(declared.base, cases(declared.base)))
    if profile in _OF_PROFILE:
        return tuple(_OF_PROFILE[profile]())
    return derived_cases.all_cases(declared)


def _attention() -> tuple[Case, ...]:
    return (
        *generic_cases.plain(),
        *generic_cases.stressed(),
        *exact_cases.sums(),
        *exact_cases.lookups(),
        *exact_cases.layouts(),
        *generic_cases.further(),
        *exact_cases.further(),
        *profile_cases.batches(),
    )


_OF_PROFILE: Final[Mapping[str, Callable[[], Sequence[Case]]]] = MappingProxyType(
    {
        "attention": _attention,
        "dot_product_attention": profile_cases.no_weights,
        "causal_attention": causal_cases.all_cases,
        "scaled_dot_product_attention": head_cases.all_cases,
        "multi_head_attention": multi_head_cases.all_cases,
        "attention_linear_layers": profile_cases.linear,
        "embedding": profile_cases.embedding,
    }
)
