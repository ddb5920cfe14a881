"""The cases of each profile.

Frameworks compile for every shape anew, so the cases vary the data and share about a dozen shapes;
n, d and c differ in all but the shape for exact ties, where every axis is 16. The inputs are the
same bits on every platform: see `draws`. What a case claims to be exact is proved by `exactness`
before it is used.
"""

from __future__ import annotations

from qkvac.spec.cases import derived_cases, derived_gradients
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.crossed import adaptable, crossed, without_of
from qkvac.spec.cases.special_cases import special_cases, special_gradients
from qkvac.spec.grammar.syntax import SpecError
from qkvac.spec.registry import known_profiles, remembered

__all__ = ["Case", "cases", "crossed_cases", "find", "known_ids", "profiles_with_cases"]


@remembered
def cases(profile: str = "attention") -> tuple[Case, ...]:
    """The named cases of a profile, in a fixed order; raises SpecError for an unknown profile."""
    declared = known_profiles().get(profile)
    if declared is None:
        raise SpecError(f"unknown profile {profile!r}; choose from {', '.join(known_profiles())}")
    if declared.of is not None:
        sent = special_gradients(declared.base)
        if sent is not None:
            return tuple(sent(cases(declared.base)))
        return derived_gradients.all_cases(declared.of)
    made = special_cases(profile)
    return tuple(made()) if made is not None else derived_cases.all_cases(declared)


def crossed_cases(profile: str, without: frozenset[str] = frozenset()) -> tuple[Case, ...]:
    """The rows of a profile's covering array as cases, if it has cases.

    They are adapted to a port that lacks what is named in `without`, as far as that can be done.
    """
    return _crossed(profile, without & adaptable(known_profiles()[profile]))


@remembered
def _crossed(profile: str, without: frozenset[str]) -> tuple[Case, ...]:
    return crossed(known_profiles()[profile], without) if cases(profile) else ()


@remembered
def profiles_with_cases() -> tuple[str, ...]:
    """Profiles that have cases."""
    return tuple(name for name in known_profiles() if cases(name))


@remembered
def known_ids() -> tuple[str, ...]:
    """The ids of all named cases, but for further draws."""
    return tuple(case.id for name in known_profiles() for case in cases(name))


def find(id: str) -> Case | None:
    """The case of an id; None for an unknown one, or that of a further draw."""
    profile, _, rest = id.partition("/")
    if profile not in known_profiles():
        return None
    return _by_id(profile).get(id) or (
        _crossed_by_id(profile, without_of(id)).get(id) if rest.startswith("crossed") else None
    )


@remembered
def _by_id(profile: str) -> dict[str, Case]:
    return {case.id: case for case in cases(profile)}


@remembered
def _crossed_by_id(profile: str, without: frozenset[str]) -> dict[str, Case]:
    return {case.id: case for case in crossed_cases(profile, without)}
