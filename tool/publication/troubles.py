"""What did not pass, and why: failures, known deviations, and what was not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qkvac.cells import NO_FUNCTION, Result, Status
from qkvac.diagnosis.failures import command, groups, telling, what, worst
from qkvac.publication.runs import Run
from qkvac.publication.strips import family_of
from qkvac.publication.texts import listed
from qkvac.targets.declaration import DTYPES
from qkvac.texts import parted

LISTED: Final = 60
"""Failing cells that the page lists of a group; the table of all cells has every one."""


@dataclass(frozen=True)
class Instance:
    """A failing cell."""

    run: Run
    result: Result

    @property
    def where(self) -> str:
        """Its worst entry, or what was wrong before there was one."""
        return worst(self.result) or self.result.reason or ""

    @property
    def why(self) -> str:
        """Why the case is there."""
        return family_of(self.result.cell.case)[1]


@dataclass(frozen=True)
class Trouble:
    """Failures that are alike: of a subject, in a dtype and quantity, by the same clause."""

    anchor: str
    first: Instance
    what: str
    diagnosis: str
    command: str
    snippet: str
    detail: str
    """A traceback, or the output of a process that died."""
    instances: tuple[Instance, ...]
    more: int
    """How many there are besides."""


@dataclass(frozen=True)
class Known:
    """A known deviation, with the cells that it was met in."""

    reason: str
    link: str
    environments: str
    subjects: str
    profiles: str
    dtypes: str
    quantities: str
    cells: int


@dataclass(frozen=True)
class Absence:
    """Cells that were not run, or prove nothing, for the same reason."""

    status: str
    reason: str
    environments: str
    subjects: str
    profiles: str
    cells: int


def troubles(runs: Sequence[Run]) -> tuple[Trouble, ...]:
    """Failures by what is alike about them, in the order of the record."""
    found = [(run, group) for run in runs for group in groups(run.report.failures)]
    return tuple(_trouble(number, run, group) for number, (run, group) in enumerate(found, 1))


def _trouble(number: int, run: Run, group: Sequence[Result]) -> Trouble:
    first = telling(group)
    instances = [Instance(run, result) for result in group]
    judged = first.status == Status.FAILED
    detail = first.detail or ""
    return Trouble(
        f"failure-{number}",
        Instance(run, first),
        what(first),
        first.diagnosis or "",
        again(first),
        detail if judged else "",
        "" if judged else detail,
        tuple(instances[:LISTED]),
        len(instances[LISTED:]),
    )


def again(result: Result) -> str:
    """The command that runs the case again; "" where a record names a port that cannot be."""
    try:
        return command(result)
    except ValueError:
        return ""


def known(runs: Sequence[Run]) -> tuple[Known, ...]:
    """Known deviations, those with most cells first."""
    found = dict[str, list[tuple[Run, Result]]]()
    for run, result in _all(runs):
        if result.status == Status.KNOWN_DEVIATION:
            found.setdefault(result.reason or "", []).append((run, result))
    entries = [
        Known(
            *parted(reason),
            listed(_names(run.label for run, _ in pairs)),
            ", ".join(_names(r.cell.subject.id for _, r in pairs)),
            ", ".join(_names(r.cell.profile for _, r in pairs)),
            ", ".join(d for d in DTYPES if any(r.cell.dtype == d for _, r in pairs)),
            ", ".join(_names(r.cell.quantity for _, r in pairs)),
            len(pairs),
        )
        for reason, pairs in found.items()
    ]
    return tuple(sorted(entries, key=lambda entry: -entry.cells))


def absences(runs: Sequence[Run]) -> tuple[Absence, ...]:
    """What was not run or proves nothing, by status and reason; most cells first in a status."""
    found = dict[tuple[str, str], list[tuple[Run, Result]]]()
    for run, result in _all(runs):
        if result.status in Status.SKIPPING:
            found.setdefault((result.status, unrun(result)), []).append((run, result))
    order = Counter[str]()
    entries = []
    for (status, reason), pairs in found.items():
        order[status] += len(pairs)
        absence = Absence(
            status,
            reason,
            listed(_names(run.label for run, _ in pairs)),
            ", ".join(_names(r.cell.subject.id for _, r in pairs)),
            ", ".join(_names(r.cell.profile for _, r in pairs)),
            len(pairs),
        )
        entries.append(absence)
    return tuple(sorted(entries, key=lambda a: (-order[a.status], a.status, -a.cells)))


def unrun(result: Result) -> str:
    """Why a cell was not run or proves nothing, in words that many cells share."""
    return NO_FUNCTION if result.absent else result.reason or ""


def _all(runs: Sequence[Run]) -> Iterator[tuple[Run, Result]]:
    return ((run, result) for run in runs for result in run.results)


def _names(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))
