"""What a page is made of: the runs of an archive, one of each environment, and their rows.

A row is a subject in an environment. Rows of one subject stand together, so that the versions of
a framework can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from qkvac.cells import Result
from qkvac.publication import naming, surroundings
from qkvac.publication.archive import Archive, Environment
from qkvac.publication.marks import Mark, mark
from qkvac.publication.surroundings import FEATURES
from qkvac.records.report import Report
from qkvac.subjects.roster import Entry

NAMED: Final = 3
"""Differences that the name of an environment tells."""


@dataclass(frozen=True, eq=False)
class Run:
    """What was found in one environment."""

    label: str
    """What the environment is called."""
    environment: Environment
    report: Report
    complete: bool
    """Whether it ended by itself."""

    @property
    def id(self) -> str:
        return self.environment.id

    @property
    def results(self) -> Sequence[Result]:
        return self.report.results

    def entry(self, subject: str) -> Entry:
        """What the roster says of a subject; raises KeyError."""
        for entry in self.environment.entries:
            if entry.subject.id == subject:
                return entry
        raise KeyError(subject)


@dataclass(frozen=True, eq=False)
class Row:
    """A subject in an environment, with the results of its cells."""

    run: Run
    entry: Entry
    label: str
    results: tuple[Result, ...]

    @property
    def subject(self) -> str:
        return self.entry.subject.id

    @property
    def versions(self) -> str:
        """What was tested: `torch 2.13.0`, or the version that a port declares."""
        found = {name: version for name, version in self.entry.versions.items() if version}
        return ", ".join(f"{name} {version}" for name, version in found.items())

    @property
    def mark(self) -> Mark:
        return mark(self.results, self.run.report.strict)

    @cached_property
    def by_profile(self) -> Mapping[str, Sequence[Result]]:
        """The results of every profile."""
        found = dict[str, list[Result]]()
        for result in self.results:
            found.setdefault(result.cell.profile, []).append(result)
        return found


def runs(archive: Archive) -> tuple[Run, ...]:
    """The runs of an archive, in its order."""
    environments = {environment.id: environment for environment in archive.environments}
    called = naming.names(tuple(environments.values()))
    return tuple(
        Run(called[id], environment, archive.reports[id], id in archive.footers)
        for id, environment in environments.items()
    )


def rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """All rows, in the order in which subjects appear, then by environment."""
    found = dict[str, dict[Run, list[Result]]]()
    for run in runs:
        for result in run.results:
            own = found.setdefault(result.cell.subject.id, {})
            own.setdefault(run, []).append(result)
    subjects = {result.cell.subject for run in runs for result in run.results}
    names = {s.id: s.name if {t.device for t in subjects} == {"cpu"} else s.id for s in subjects}
    return tuple(
        Row(run, run.entry(id), names[id], tuple(results))
        for id, by_run in found.items()
        for run, results in by_run.items()
    )


def facts(run: Run) -> dict[str, str]:
    """Everything that two environments may differ in, by name."""
    return surroundings.facts(run.environment)


def title(run: Run, differing: Sequence[str]) -> str:
    """What tells an environment from the others: `torch 2.4.1, other processor features`."""
    known = facts(run)
    names = [name for name in differing if name in known and name != FEATURES]
    own = {name for entry in run.environment.entries for name in entry.versions}
    # The versions of what was tested say most; what was selected only matters without them.
    names.sort(key=lambda name: name not in own)
    names = [name for name in names if not name.startswith("selected ")] or names
    parts = [f"{name} {known[name]}" for name in names[:NAMED]]
    if len(names) > NAMED:
        parts.append(f"{len(names) - NAMED} more")
    if FEATURES in differing:
        parts.append(f"{len(known.get(FEATURES, '').split())} {FEATURES}")
    return ", ".join(parts)
