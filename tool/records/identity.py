"""Pairwise identity: which subjects agree bit for bit, on which quantity.

Agreement is looked at over the cases that all subjects of a dtype answered, so that it is an
equivalence: subjects of one class gave the same bits everywhere, subjects of different classes
differ somewhere. Different bits are no fault: rounding errors may differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from qkvac.cells import Result


@dataclass(frozen=True)
class Identity:
    """Classes of subjects that agree on a quantity of a profile in a dtype, by subject id."""

    profile: str
    dtype: str
    quantity: str
    cases: int
    """How many cases were compared."""
    classes: tuple[tuple[str, ...], ...]

    def letter(self, subject: str) -> str:
        """A, B, C, … for the class of a subject; "" if it has none."""
        for index, members in enumerate(self.classes):
            if subject in members:
                return numbered(index)
        return ""

    def shared(self, subject: str) -> bool:
        """Whether another subject has the same bits."""
        return any(subject in members and len(members) > 1 for members in self.classes)


def numbered(place: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    return (numbered(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def identities(results: Iterable[Result]) -> tuple[Identity, ...]:
    """The classes of every quantity and dtype that at least two subjects answered."""
    digests: dict[tuple[str, str, str], dict[str, dict[str, str]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for result in results:
        if result.digest is not None:
            cell = result.cell
            key = (cell.profile, cell.dtype, cell.quantity)
            digests[key][cell.subject.id][cell.case] = result.digest
    found = []
    for key, subjects in digests.items():
        common = sorted(set.intersection(*(set(answers) for answers in subjects.values())))
        if len(subjects) < 2 or not common:
            continue
        classes: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for subject, answers in subjects.items():
            classes[tuple(answers[case] for case in common)].append(subject)
        members = tuple(tuple(same) for same in classes.values())
        found.append(Identity(*key, len(common), members))
    return tuple(found)
