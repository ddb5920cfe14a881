"""Which subjects agree bit for bit, quantity by quantity, and what each of them declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkvac.identity import Identity
from qkvac.publication.runs import Row, Run
from qkvac.publication.texts import visible
from qkvac.spec.attention import CONVENTIONS
from qkvac.spec.formats import DTYPES
from qkvac.summary import model_words


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
        return f"{whole} of {len(self.columns)} quantities are the same bits everywhere"


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
    if not letter:
        return None
    members = next(members for members in identity.classes if row.subject in members)
    return Letter(letter, len(members) > 1)


@dataclass(frozen=True)
class Choice:
    """What a subject does where reasonable systems differ."""

    value: str
    own: bool
    """Whether it is another than the spec's own choice."""


@dataclass(frozen=True)
class Declared:
    """What a row declares: conventions, and the arithmetic that its bounds are made from."""

    row: Row
    choices: tuple[Choice, ...]
    arithmetic: tuple[str, ...]
    supports: str


def declared(rows: Sequence[Row]) -> tuple[Declared, ...]:
    """The declarations of all rows."""
    return tuple(map(_declared, rows))


def _declared(row: Row) -> Declared:
    chosen = row.entry.declaration.conventions
    choices = []
    for name, convention in CONVENTIONS.items():
        value = str(chosen.get(name, convention.options[0]))
        choices.append(Choice(visible(value), value != convention.options[0]))
    present = {result.cell.dtype for result in row.results}
    models = dict.fromkeys(
        model_words(row.entry.arithmetic(dtype), dtype)
        for dtype in row.entry.dtypes
        if dtype in present
    )
    supports = ", ".join(sorted(row.entry.declaration.supports)) or "nothing besides"
    return Declared(row, tuple(choices), tuple(map(visible, models)), visible(supports))
