"""The order in which cells are told: that of the spec, and names after that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from qkvac.cells import CHECKS, Cell
from qkvac.draw import draw_of
from qkvac.spec.cases.catalogue import cases, crossed_cases
from qkvac.spec.registry import known_profiles, remembered
from qkvac.targets.declaration import DTYPES

Place: TypeAlias = tuple[int, str]

UNKNOWN: Final = 1 << 30
"""The place of what this version of the spec does not have."""


def profile_place(name: str) -> Place:
    """Where a profile stands among those of the spec."""
    return _profiles().get(name, UNKNOWN), name


def quantity_place(profile: str, name: str) -> Place:
    """Where a quantity or check of a profile stands."""
    return _quantities(profile).get(name, UNKNOWN), name


def case_place(id: str) -> Place:
    """Where a case stands among those of its profile; further draws follow the first."""
    known = _cases(id.partition("/")[0])
    place = known.get(id, known.get(draw_of(id)[0], UNKNOWN))
    return place, id


def cell_place(cell: Cell) -> tuple[int | Place, ...]:
    """Where a cell stands among those of its subject."""
    return (
        DTYPES.index(cell.dtype),
        profile_place(cell.profile),
        case_place(cell.case),
        quantity_place(cell.profile, cell.quantity),
    )


@remembered
def _profiles() -> Mapping[str, int]:
    return _numbered(known_profiles())


@remembered
def _quantities(profile: str) -> Mapping[str, int]:
    declared = known_profiles()[profile].quantities if profile in known_profiles() else ()
    return _numbered((*declared, *CHECKS))


@remembered
def _cases(profile: str) -> Mapping[str, int]:
    if profile not in known_profiles():
        return {}
    return _numbered(case.id for case in (*cases(profile), *crossed_cases(profile)))


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}
