"""Drift: what changed between versions of a framework, where only versions changed.

A record merged of several environments may hold a framework in several versions. Those on the
same processor, with as many threads and the same settings, can be compared bit for bit: from
each version to the next, what has other bits, and whose errors grew. Everything else differs for
reasons that nobody has to look for, and is said not to be comparable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

from qkvac.cells import Result, Subject
from qkvac.publication.archive import Archive, Environment
from qkvac.publication.comparison import grew
from qkvac.publication.matching import results_of
from qkvac.publication.naming import version_place
from qkvac.publication.order import Place, profile_place, quantity_place
from qkvac.publication.surroundings import Move, incomparable, moves
from qkvac.targets.declaration import DTYPES

Results: TypeAlias = Mapping[tuple[str, str], Sequence[Result]]


@dataclass(frozen=True)
class Change:
    """What became of a quantity of a profile in a dtype, over all its cases."""

    profile: str
    dtype: str
    quantity: str
    compared: int
    """Cells that have bits in both versions."""
    changed: int
    """Those whose bits are others."""
    grown: int
    """Those whose error grew towards its bound."""
    old_ratio: float
    new_ratio: float
    """Largest error over bound of the compared cells, in either version."""


@dataclass(frozen=True)
class Drift:
    """A subject in two versions that follow each other."""

    subject: Subject
    old: Environment
    new: Environment
    old_version: str
    new_version: str
    reason: str
    """Why they are not comparable; "" if they are."""
    changes: tuple[Change, ...] = ()
    """Quantities of which something changed."""
    compared: int = 0
    """Cells whose bits were compared."""
    changed: int = 0
    """Those whose bits are others."""

    @property
    def moves(self) -> tuple[Move, ...]:
        """Everything that moved between the two, the version itself included."""
        return moves(self.old, self.new)


def drift(archive: Archive) -> tuple[Drift, ...]:
    """The drift of every subject that an archive holds in several versions."""
    results = results_of(archive)
    environments = {environment.id: environment for environment in archive.environments}
    holders = defaultdict[str, list[Environment]](list)
    for id, subject in results:
        holders[subject].append(environments[id])
    return tuple(
        found
        for id, where in holders.items()
        for found in _of_subject(where[0].subjects[id], where, results)
    )


def _of_subject(
    subject: Subject, environments: Iterable[Environment], results: Results
) -> Iterator[Drift]:
    versions = defaultdict[str, list[Environment]](list)
    for environment in environments:
        versions[_version(environment, subject)].append(environment)
    for one, other in pairwise(sorted(versions, key=version_place)):
        old, new = min(
            product(versions[one], versions[other]),
            key=lambda pair: (bool(incomparable(subject, *pair)), len(moves(*pair))),
        )
        reason = incomparable(subject, old, new)
        if reason:
            yield Drift(subject, old, new, one, other, reason)
            continue
        changes, compared, changed = _compared(
            results[old.id, subject.id], results[new.id, subject.id]
        )
        yield Drift(subject, old, new, one, other, "", changes, compared, changed)


def _version(environment: Environment, subject: Subject) -> str:
    """The version of what is tested."""
    entry = next(e for e in environment.entries if e.subject.id == subject.id)
    return entry.versions.get(subject.backend, "")


def _compared(old: Sequence[Result], new: Sequence[Result]) -> tuple[tuple[Change, ...], int, int]:
    """Quantities that changed; how many cells were compared, and how many have other bits."""
    before = {(r.cell.dtype, r.cell.case, r.cell.quantity): r for r in old}
    compared, changed, grown = (Counter[tuple[str, str, str]]() for _ in range(3))
    ratios = defaultdict[tuple[str, str, str], list[tuple[float, float]]](list)
    for result in new:
        cell = result.cell
        was = before.get((cell.dtype, cell.case, cell.quantity))
        if was is None or None in (was.digest, result.digest):
            continue
        key = cell.profile, cell.dtype, cell.quantity
        compared[key] += 1
        changed[key] += was.digest != result.digest
        grown[key] += grew(was.ratio, result.ratio)
        ratios[key].append((was.ratio or 0.0, result.ratio or 0.0))
    changes = [
        Change(
            *key,
            compared[key],
            changed[key],
            grown[key],
            max(ratio for ratio, _ in ratios[key]),
            max(ratio for _, ratio in ratios[key]),
        )
        for key in compared
        if changed[key] or grown[key]
    ]
    changes.sort(key=_place)
    return tuple(changes), compared.total(), changed.total()


def _place(change: Change) -> tuple[Place, int, Place]:
    return (
        profile_place(change.profile),
        DTYPES.index(change.dtype),
        quantity_place(change.profile, change.quantity),
    )
