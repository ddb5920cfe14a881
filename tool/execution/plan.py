"""The plan: which cells a run has, in which order, before anything runs.

Cells of a subject, of a dtype and of a case lie side by side, because a case is one call.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from qkvac.cells import Cell, Status, no_function
from qkvac.checks import registry
from qkvac.spec.cases.catalogue import Case, profiles_with_cases
from qkvac.spec.registry import known_profiles
from qkvac.subjects.roster import Entry, Roster
from qkvac.subjects.selection import Selection
from qkvac.targets.declaration import DTYPES
from qkvac.usage import UsageError


@dataclass(frozen=True)
class Job:
    """One case in one dtype, asked of one subject: one call, and all that is judged about it."""

    entry: Entry
    dtype: str
    case: Case
    quantities: tuple[str, ...]
    checks: tuple[str, ...] = ()
    status: str = ""
    """What is known without asking, "unsupported" or "skipped"; "" if it has to be asked."""
    reason: str = ""
    offered: bool = True
    """Whether the subject offers the profile in this dtype at all."""

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        names = (*self.quantities, *self.checks)
        return tuple(Cell(self.entry.subject, self.dtype, self.case.id, name) for name in names)


@dataclass(frozen=True)
class Plan:
    """The jobs of a run in order."""

    jobs: tuple[Job, ...]
    left_out: dict[str, int] = field(hash=False)
    """Cases times dtypes that the tier leaves out, by subject id."""

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for job in self.jobs for cell in job.cells)

    @cached_property
    def job_of(self) -> dict[str, Job]:
        """Cell id → job."""
        return {cell.id: job for job in self.jobs for cell in job.cells}


def plan(roster: Roster, selection: Selection) -> Plan:
    """The cells of a selection; raises UsageError if there are none."""
    jobs = list[Job]()
    left_out = dict[str, int]()
    for entry in roster.entries:
        count = 0
        for dtype in _dtypes(entry, selection):
            found, skipped = jobs_of(entry, dtype, selection)
            jobs += found
            count += skipped
        if count:
            left_out[entry.subject.id] = count
    if not jobs:
        raise UsageError(
            "no case is left: the selected cases are not for the selected dtypes"
            + ("" if selection.tier == "full" else ", or only in --tier full")
        )
    return Plan(tuple(jobs), left_out)


def _crosses(
    entry: Entry, case: Case, dtype: str, offered: tuple[str, ...], everything: bool
) -> bool:
    """Whether a crossed case is put to a subject in a dtype: one of those offered is enough.

    Of ports all are. Adapters, whose deviations are listed case by case, have the few that hold
    every value, and only where everything is asked for.
    """
    if entry.subject.port is None:
        return case.core and everything and dtype == _first(case, offered)
    return everything or dtype == _first(case, offered)


def _first(case: Case, offered: tuple[str, ...]) -> str:
    return next((dtype for dtype in case.dtypes if dtype in offered), "")


def _dtypes(entry: Entry, selection: Selection) -> tuple[str, ...]:
    known = (*entry.dtypes, *entry.refused)
    return tuple(d for d in DTYPES if d in known and d in (selection.dtypes or DTYPES))


def jobs_of(entry: Entry, dtype: str, selection: Selection) -> tuple[list[Job], int]:
    """The jobs of a subject in a dtype, and how many cases the tier leaves out."""
    jobs = list[Job]()
    left_out = 0
    dtypes = _dtypes(entry, selection)
    for name in profiles_with_cases():
        profile = known_profiles()[name]
        offered = name in entry.declaration.profiles
        for case in selection.chosen(name, profile.shapes - entry.declaration.supports):
            if dtype not in case.dtypes:
                continue
            if entry.exported is not None and case.id not in entry.exported.get(dtype, ()):
                continue
            refused = entry.refused.get(dtype, "" if offered else no_function(name))
            if refused:
                # One cell says it for all.
                status = Status.UNSUPPORTED
                jobs.append(Job(entry, dtype, case, (profile.last,), (), status, refused, False))
                break
            if case.crossed:
                if not _crosses(entry, case, dtype, dtypes, selection.tier == "full"):
                    continue
                if case.layouts and entry.lays_out_nothing:
                    case = replace(case, layouts={})
            elif not selection.runs(case, dtype, entry.shapes):
                left_out += selection.runs(case, dtype)
                continue
            status, reason = "", ""
            if entry.skipped:
                status, reason = Status.SKIPPED, entry.skipped
            elif lacking := entry.lacks(case):
                status, reason = Status.UNSUPPORTED, lacking
            tried = () if status else registry.names(entry, dtype, case)
            jobs.append(Job(entry, dtype, case, case.quantities, tried, status, reason))
    return jobs, left_out
