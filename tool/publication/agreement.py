"""Which subjects agree bit for bit, quantity by quantity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkvac.publication.runs import Row, Run
from qkvac.records.identity import Identity
from qkvac.spec.formats import DTYPES


@dataclass(frozen=True)
class Letter:
    """The class of a subject: equal letters of a column have equal bits."""

    letter: str
    shared: bool
    """Whether another subject has the same bits."""


@dataclass(frozen=True)
class Agreement:
    """The classes of a profile in an environment."""

    run: Run
    profile: str
    columns: tuple[Identity, ...]
    rows: tuple[tuple[Row, tuple[Letter | None, ...]], ...]

    @property
    def dtypes(self) -> tuple[tuple[str, int], ...]:
        """Each dtype with the number of its columns."""
        names = dict.fromkeys(column.dtype for column in self.columns)
        return tuple((n, sum(c.dtype == n for c in self.columns)) for n in names)

    @property
    def summary(self) -> str:
        """How far the agreement goes, in words."""
        whole = sum(len(column.classes) == 1 for column in self.columns)
        return f"{whole} of {len(self.columns)} columns have the same bits everywhere"


def agreements(rows: Sequence[Row], profiles: Sequence[str]) -> tuple[Agreement, ...]:
    """Classes of equal bits, of each profile in each environment with at least two subjects."""
    found = []
    for profile in profiles:
        for run in dict.fromkeys(row.run for row in rows):
            columns = tuple(i for i in run.report.identities if i.profile == profile)
            columns = tuple(sorted(columns, key=lambda column: DTYPES.index(column.dtype)))
            own = [row for row in rows if row.run is run]
            lines = tuple((row, tuple(_letter(column, row) for column in columns)) for row in own)
            lines = tuple(line for line in lines if any(line[1]))
            if lines:
                found.append(Agreement(run, profile, columns, lines))
    return tuple(found)


def _letter(identity: Identity, row: Row) -> Letter | None:
    letter = identity.letter(row.subject)
    return Letter(letter, identity.shared(row.subject)) if letter else None
