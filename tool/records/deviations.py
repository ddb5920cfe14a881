"""Known deviations: failures that were looked into, written down, and have to go on failing.

An entry excuses the cells that it covers, and only in the way it says: a covered cell that passes
or fails otherwise is an unexpected result, because then the entry is no longer true. Where a
deviation depends on the processor, the entry says on which it was seen: a pass on one of another
kind does not speak against it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from qkvac.cells import Result, Status, Subject
from qkvac.records.environment import processor
from qkvac.spec.verdicts import clauses
from qkvac.subjects.roster import Entry
from qkvac.texts import line, short
from qkvac.toml import TOMLDecodeError, loads, text_of
from qkvac.usage import UsageError

LISTS: Final = ("cases", "cpu_features", "seen_on")
"""Fields that are lists of texts."""


@dataclass(frozen=True)
class Deviation:
    """One entry. Empty fields match everything; patterns are shell patterns."""

    backend: str
    """Subject without device: "jax/jit", "torch/*"."""
    clause: str
    reason: str
    link: str
    versions: str = ""
    """PEP 440 specifiers of the backend's version."""
    device: str = ""
    cpu_features: tuple[str, ...] = ()
    """Features that the CPU has to have; with "!" in front, must not have."""
    seen_on: tuple[str, ...] = ()
    """Kinds of processors that it was seen on, each as words that have to hold of one: features,
    its architecture, its maker; with "!" in front, not so. Empty: it does not depend on that."""
    dtype: str = ""
    quantity: str = ""
    cases: tuple[str, ...] = ()
    reason_matches: str = ""
    """A regular expression that the reason of a failure without an answer has to contain."""
    source: str = field(default="", compare=False)

    def covers(self, result: Result, entry: Entry) -> bool:
        """Whether the entry speaks of this cell, in this run's environment."""
        cell = result.cell
        return (
            self.speaks_of(cell.dtype, cell.case)
            and _matches(cell.quantity, self.quantity)
            and self.covers_subject(entry)
        )

    def speaks_of(self, dtype: str, case: str) -> bool:
        """Whether the entry speaks of a case in a dtype, whoever is asked."""
        return _matches(dtype, self.dtype) and self.covers_case(case)

    def covers_subject(self, entry: Entry) -> bool:
        """Whether the entry speaks of any cell of a subject, in this run's environment."""
        subject = entry.subject
        return (
            _matches(subject.name, self.backend)
            and _matches(subject.device, self.device)
            and self._in_versions(entry.versions.get(subject.backend, ""))
            and all(_is(feature) for feature in self.cpu_features)
        )

    @property
    def due_here(self) -> bool:
        """Whether it was seen on a processor like this one, or does not depend on that."""
        return not self.seen_on or any(all(map(_is, kind.split())) for kind in self.seen_on)

    def covers_case(self, case: str) -> bool:
        return not self.cases or any(fnmatch.fnmatchcase(case, pattern) for pattern in self.cases)

    def fits(self, result: Result) -> bool:
        """Whether a cell failed in the way that the entry says."""
        if self.clause in Status.UNANSWERED:
            said = re.search(self.reason_matches, result.reason or "") is not None
            return result.status == self.clause and said
        return result.status == Status.FAILED and result.clause == self.clause

    def _in_versions(self, version: str) -> bool:
        if not self.versions:
            return True
        try:
            return Version(version) in SpecifierSet(self.versions, prereleases=True)
        except InvalidVersion:
            return False


def _matches(text: str, pattern: str) -> bool:
    return not pattern or fnmatch.fnmatchcase(text, pattern)


def _is(word: str) -> bool:
    """Whether a word holds of this processor."""
    return (word.lstrip("!").upper() in processor()) != word.startswith("!")


class Deviations:
    """All entries of a run; remembers which of them were met."""

    def __init__(self, entries: tuple[Deviation, ...]) -> None:
        self.entries = entries
        self._exercised = set[Deviation]()
        self._of_subject = dict[Subject, tuple[Deviation, ...]]()

    @classmethod
    def load(cls, extra: Path | None = None) -> Deviations:
        """The suite's own entries and those of a file; raises UsageError where one is wrong."""
        own = resources.files("qkvac.records") / "known-deviations.toml"
        entries = read(own.read_text(encoding="utf-8"), "known-deviations.toml")
        if extra is not None:
            try:
                text = text_of(extra)
            except (OSError, ValueError) as error:
                raise UsageError(f"--known-deviations {extra}: {line(error)}") from error
            entries += read(text, str(extra))
        return cls(entries)

    def apply(self, result: Result, entry: Entry) -> Result:
        """The result in the light of the entries that cover its cell."""
        if result.status in Status.NOT_REQUIRED:
            return result
        if entry.subject not in self._of_subject:
            found = tuple(known for known in self.entries if known.covers_subject(entry))
            self._of_subject[entry.subject] = found
        about = self._of_subject[entry.subject]
        covering = [known for known in about if known.covers(result, entry)]
        if not covering:
            return result
        self._exercised.update(covering)
        for known in covering:
            if known.fits(result):
                return replace(
                    result, status=Status.KNOWN_DEVIATION, reason=f"{known.reason} ({known.link})"
                )
        if result.status in Status.BAD:
            return result
        if not any(known.due_here for known in covering):
            return _not_seen(result, covering[0])
        expected = " or ".join(known.clause for known in covering)
        return replace(
            result,
            status=Status.UNEXPECTED_PASS,
            reason=f"{result.status}, but {covering[0].source} expects {expected} to fail here",
        )

    @property
    def not_exercised(self) -> tuple[Deviation, ...]:
        """Entries that no executed cell of the run was covered by."""
        return tuple(known for known in self.entries if known not in self._exercised)


def _not_seen(result: Result, known: Deviation) -> Result:
    """The result of a cell in which other processors deviate."""
    if result.status != Status.PASSED:
        return result
    where = " or ".join(known.seen_on)
    return replace(
        result, status=Status.NOT_SEEN, reason=f"{known.source} was seen on {where}: {known.reason}"
    )


def read(text: str, source: str) -> tuple[Deviation, ...]:
    """The entries of a TOML text; raises UsageError naming the entry and what is wrong with it."""
    try:
        table = loads(text)
    except TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {line(error)}") from error
    unknown = table.keys() - {"deviation"}
    rows = table.get("deviation", [])
    if unknown or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{source} holds something besides [[deviation]] tables")
    return tuple(_entry(row, f"{source}, entry {count}") for count, row in enumerate(rows, 1))


def _entry(row: Mapping[str, Any], source: str) -> Deviation:
    known = {f.name for f in fields(Deviation)} - {"source"}
    required = ("backend", "clause", "reason", "link")
    for name in required:
        if not row.get(name):
            raise UsageError(f"{source}: {name} is missing")
    for name, value in row.items():
        if name not in known:
            options = ", ".join(sorted(known))
            raise UsageError(f"{source}: unknown key {short(name)!r} (known: {options})")
        several = name in LISTS
        if not (isinstance(value, list) if several else isinstance(value, str)):
            raise UsageError(f"{source}: {name} is a {'list of texts' if several else 'text'}")
    clause, ways = clauses.word(row["clause"]), (*clauses.words(), *Status.UNANSWERED)
    if clause not in ways:
        raise UsageError(f"{source}: clause is one of {', '.join(ways)}")
    try:
        SpecifierSet(row.get("versions", ""))
        re.compile(row.get("reason_matches", ""))
    except (InvalidSpecifier, re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{source}: {line(error)}") from error
    lists = {name: tuple(map(str, row[name])) for name in LISTS if name in row}
    if not all(kind.split() for kind in lists.get("seen_on", ())):
        raise UsageError(f"{source}: seen_on holds an empty text, which is every processor")
    return Deviation(**{**row, **lists, "clause": clause, "source": source})
