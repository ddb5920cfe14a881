"""What changed for a subject from one environment to the next, version by version.

Other bits are told only where processor, threads and settings are the same; elsewhere they are
not comparable, since frameworks choose their code by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from packaging.version import InvalidVersion, Version

from qkvac.cells import Result
from qkvac.publication.archive import Archive, Line
from qkvac.publication.comparison import FAILING, KINDS, SAME, compare
from qkvac.publication.runs import Row
from qkvac.publication.surroundings import moves
from qkvac.publication.texts import visible

TOLD: Final = tuple(kind for kind in KINDS if kind not in (SAME, FAILING))
"""What can become of a cell that is told, in words."""


@dataclass(frozen=True)
class Step:
    """A subject in two environments that follow each other."""

    old: Row
    new: Row
    moved: tuple[str, ...]
    """What differs between the environments: `torch 2.4.1 → 2.13.0`."""
    compared: int
    """Results whose bits were compared."""
    changed: tuple[tuple[str, int], ...]
    """Profile and quantity, and in how many results the bits are others."""
    incomparable: str
    """Why bits say nothing; "" where they do."""
    outcomes: tuple[tuple[str, int], ...]
    """What became of cells, in words, and of how many."""

    @property
    def others(self) -> int:
        """Results with other bits."""
        return sum(count for _, count in self.changed)


def steps(rows: Sequence[Row]) -> tuple[Step, ...]:
    """The steps of every subject, from its oldest version to its newest."""
    return tuple(_step(old, new) for own in _subjects(rows) for old, new in pairwise(own))


def _subjects(rows: Sequence[Row]) -> Iterator[list[Row]]:
    found = dict[str, list[Row]]()
    for row in rows:
        found.setdefault(row.subject, []).append(row)
    return (sorted(own, key=_age) for own in found.values())


def _age(row: Row) -> tuple[tuple[Version, ...], int]:
    """Sorts by version; where versions are equal, or none, as in the archive."""
    versions = []
    for text in row.entry.versions.values():
        try:
            versions.append(Version(text))
        except InvalidVersion:
            versions.append(Version("0"))
    return tuple(versions), row.run.number


def _step(old: Row, new: Row) -> Step:
    found = compare(_archive(old), _archive(new))
    changed = Counter(_named(change.cell.profile, change.cell.quantity) for change in found.bits)
    moved = moves(old.run.environment, new.run.environment)
    return Step(
        old,
        new,
        tuple(visible(str(move)) for move in moved),
        found.comparable,
        tuple(changed.most_common()),
        visible(", ".join(found.incomparable)),
        tuple((KINDS[kind], found.counts[kind]) for kind in TOLD if found.counts.get(kind)),
    )


def _named(profile: str, quantity: str) -> str:
    return f"{quantity} of {profile}"


def _archive(row: Row) -> Archive:
    """The row alone."""
    environment, results = row.run.environment, row.results
    return Archive((environment,), tuple(_lines(environment.id, results)), {})


def _lines(environment: str, results: Sequence[Result]) -> Iterator[Line]:
    return (Line(environment, result) for result in results)
