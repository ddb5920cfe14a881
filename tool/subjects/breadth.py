"""How many cases a mode runs in the default tier, where every new shape costs much.

Compilers and interpreters of graphs take seconds for a shape that they have not met. Such a mode
declares that it runs few shapes: the cases that are marked so, those of the mission's own profile
in every dtype, of the others two in each dtype and the rest in one. Where it is single operations
that are compiled, some more are worth while: one case of every kind, in one dtype. Two are of a
kind if only their sizes differ, and no more has to be supported for one than for the other.
"""

from __future__ import annotations

from typing import Final

from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.registry import remembered

ALL: Final = "all"
SOME: Final = "some"
FEW: Final = "few"

MISSION: Final = "attention"
IN_A_DTYPE: Final = 2
"""Cases of a profile that are run in a dtype which most of them are left out in."""


def includes(shapes: str, case: Case, dtype: str) -> bool:
    """Whether a mode that runs ALL, SOME or FEW shapes runs a case of the default tier."""
    if shapes == ALL or (case.compiled and case.profile == MISSION):
        return True
    if dtype == _one_dtype(case):
        return case.compiled or (shapes == SOME and case.id in _one_of_a_kind(case.profile))
    return case.compiled and _shape(case) in _in_dtype(case.profile, dtype)


def _one_dtype(case: Case) -> str:
    """The dtype that everything offers, or the widest that the case is for."""
    return "float32" if "float32" in case.dtypes else case.dtypes[0]


def _shape(case: Case) -> tuple[object, ...]:
    """What further draws of a case have in common with it."""
    return case.family, case.variant, tuple(case.sizes.items()), case.batch


@remembered
def _in_dtype(profile: str, dtype: str) -> frozenset[tuple[object, ...]]:
    """The first few of the cases that are marked and for a dtype, generic ones before others."""
    marked = [c for c in cases(profile) if c.compiled and c.tier == "default" and dtype in c.dtypes]
    marked.sort(key=lambda case: not case.generic)
    return frozenset(map(_shape, marked[:IN_A_DTYPE]))


@remembered
def _one_of_a_kind(profile: str) -> frozenset[str]:
    """Ids of the first case of every kind, or of one among the few."""
    kinds = dict[tuple[object, ...], Case]()
    for case in cases(profile):
        layouts = tuple(case.layouts.items())
        kind = case.family, case.variant, case.dtypes, case.needs, layouts
        if case.tier == "default" and (kind not in kinds or case.compiled):
            kinds[kind] = case
    return frozenset(case.id for case in kinds.values())
