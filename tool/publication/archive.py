"""Records that were read: their environments, and a result for every line.

A record may come from anybody. Its size is looked at before it is read, every line has to fit
the schema, and what its header and footer say of it has to be true. No path that it names is
opened, and nothing in it is run.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from qkvac import jsons
from qkvac.cells import FOLDER, Result, Subject
from qkvac.publication.order import cell_place
from qkvac.publication.validation import accepts, complaint
from qkvac.records.conclusion import CONCLUSIONS, Conclusion
from qkvac.records.environment import NAMED_LATER, identity
from qkvac.records.record import FORMAT, READ, entry_from_json, from_json
from qkvac.records.report import Report
from qkvac.spec.grammar.equations import SpecError
from qkvac.subjects.roster import Entry, Roster
from qkvac.targets.declaration import DeclarationError
from qkvac.targets.equations import recall
from qkvac.texts import line as line_of
from qkvac.texts import short
from qkvac.usage import UsageError

LONGEST: Final = 8 << 20
"""Bytes of a line."""
LARGEST: Final = 1 << 30
"""Bytes of a record, unless more are allowed."""
KINDS: Final = ("header", "result", "footer")


@dataclass(frozen=True)
class Environment:
    """Where results come from: a machine with its software, and what was run on it."""

    id: str
    header: Mapping[str, Any] = field(hash=False)

    @property
    def surroundings(self) -> Mapping[str, Any]:
        """The machine and its software, of which the id is a digest.

        Of the processor's features those that every NumPy names: one machine is to look the same
        from all of them.
        """
        found: Mapping[str, Any] = self.header["environment"]
        features = [name for name in found["cpu_features"] if name not in NAMED_LATER]
        return {**found, "cpu_features": features}

    @property
    def run(self) -> Mapping[str, Any]:
        """What was selected, and the subjects."""
        found: Mapping[str, Any] = self.header["run"]
        return found

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The roster of the run."""
        return tuple(map(entry_from_json, self.run["subjects"]))

    @cached_property
    def subjects(self) -> Mapping[str, Subject]:
        """The subjects of the run, by id."""
        return {entry.subject.id: entry.subject for entry in self.entries}

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class Line:
    """A result, and the environment that it was found in."""

    environment: str
    result: Result

    @property
    def key(self) -> tuple[str, str]:
        """Equal for lines that speak of the same cell in the same environment."""
        return self.environment, self.result.cell.id


@dataclass(frozen=True)
class Archive:
    """Everything that one or more records say."""

    environments: tuple[Environment, ...]
    """One for each header, in the order of the file. Only shards of a run share an id."""
    lines: tuple[Line, ...]
    footers: Mapping[str, Mapping[str, Any]] = field(hash=False)
    """The footer of every environment that has one, by id."""
    truncated: bool = False
    """Whether a run ended before its time, or part of it is missing."""
    sources: tuple[str, ...] = ()

    @cached_property
    def by_environment(self) -> Mapping[str, tuple[Result, ...]]:
        """The results of every environment, by id: in the order of its plan.

        The lines of a record stand in the order in which results came.
        """
        found = dict[str, list[Result]]({environment.id: [] for environment in self.environments})
        for line in self.lines:
            found[line.environment].append(line.result)
        for environment in self.environments:
            found[environment.id].sort(key=partial(_place, tuple(environment.subjects)))
        return {id: tuple(results) for id, results in found.items()}

    @cached_property
    def reports(self) -> Mapping[str, Report]:
        """The report of every environment, by id: counts, verdict, identities."""
        return {
            e.id: report(e, self.by_environment[e.id], e.id in self.footers)
            for e in self.environments
        }

    @property
    def conclusion(self) -> Conclusion:
        """What all its runs come to."""
        found = [report.conclusion for report in self.reports.values()]
        return max(found, key=CONCLUSIONS.index)

    @property
    def results(self) -> Iterator[Result]:
        """All results, whatever the environment."""
        return (line.result for line in self.lines)


def _place(subjects: Sequence[str], result: Result) -> tuple[Any, ...]:
    return subjects.index(result.cell.subject.id), *cell_place(result.cell)


def report(environment: Environment, results: tuple[Result, ...], ended: bool = True) -> Report:
    """The report of a run, made from its record."""
    run = environment.run
    return Report(
        results,
        Roster(environment.entries, tuple(run.get("notes", ()))),
        strict=run["strict"],
        planned=run["cells"],
        left_out=run.get("left_out", {}),
        ended=ended,
    )


def read(path: Path, *, allow_truncated: bool = False, largest: int = LARGEST) -> Archive:
    """The record in a file.

    Raises UsageError, in one line with the file, the line's number and what to do: for what
    cannot be read, is no record, is larger than `largest` bytes, or contradicts itself; also for
    a record that ends early, unless that is allowed. Of a record that ends in the middle of a
    line, the rest of that line is left out.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file, allow_truncated, largest).archive()
    except OSError as error:
        raise UsageError(f"the record {path} cannot be read: {error.strerror}") from error


class _Reader:
    """Reads a record line by line."""

    def __init__(self, path: Path, file: BinaryIO, allow_truncated: bool, largest: int) -> None:
        self._path = path
        self._file = file
        self._allow_truncated = allow_truncated
        self._largest = largest
        self._number = 0
        self._environments = list[Environment]()
        self._lines = list[Line]()
        self._footers = dict[str, Mapping[str, Any]]()
        self._open: Environment | None = None
        """The environment of the last header, until its footer."""
        self._seen = set[tuple[str, str]]()
        self._counts = Counter[str]()

    def archive(self) -> Archive:
        for kind, line in self._parsed():
            if kind == "header":
                self._header(line)
            elif kind == "result":
                self._result(line)
            else:
                self._footer(line)
        if not self._environments:
            self._number = 1
            self._refuse("it is no record: there is no header; write one with --record")
        truncated = len(self._footers) < len(self._environments)
        if truncated and not self._allow_truncated:
            self._refuse(
                "it ends without a footer: the run ended early; run it again, or read what there "
                "is with --allow-truncated"
            )
        return Archive(
            tuple(self._environments),
            tuple(self._lines),
            self._footers,
            truncated,
            (str(self._path),),
        )

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{self._path}, line {self._number}: {what}")

    def _parsed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Kind and value of every line, checked against the schema."""
        for raw in self._raw():
            line = self._value(raw)
            kind = line.get("kind") if isinstance(line, dict) else None
            if kind not in KINDS:
                self._refuse(
                    "it is no line of a record; give a file that --record or `qkvac report merge` "
                    "wrote"
                )
            if kind == "header" and line.get("format") not in READ:
                readable = " and ".join(map(str, READ))
                self._refuse(
                    f"the record has format {str(line.get('format'))[:20]}, and this qkvac reads "
                    f"{readable}; make the record anew, or read it with the version of qkvac that "
                    "wrote it"
                )
            if not accepts(kind)(line):
                self._refuse(
                    f"the {kind} does not fit the record's schema ({complaint(kind, line)}); "
                    "make the record anew"
                )
            yield kind, line

    def _raw(self) -> Iterator[bytes]:
        """The lines as they are; what a killed run left of its last line is no line."""
        total = os.fstat(self._file.fileno()).st_size
        limit = f"the limit is {self._largest} bytes; allow more with --max-size"
        if total > self._largest:
            raise UsageError(f"{self._path} has {total} bytes, {limit}")
        read = 0
        while raw := self._file.readline(LONGEST + 1):
            self._number += 1
            read += len(raw)
            if len(raw) > LONGEST:
                self._refuse(f"it is longer than {LONGEST} bytes, which no line of a record is")
            if read > self._largest:
                self._refuse(f"the record goes on after {self._largest} bytes, {limit}")
            if not raw.endswith(b"\n"):
                return
            yield raw

    def _value(self, raw: bytes) -> Any:
        try:
            return jsons.loads(raw)
        except ValueError as error:
            self._refuse(f"it is no JSON ({short(error)}); give a file that --record wrote")

    def _header(self, line: dict[str, Any]) -> None:
        if self._open is not None and not self._allow_truncated:
            self._refuse(
                "the run before it has no footer: it ended early; run it again, or read what there "
                "is with --allow-truncated"
            )
        # What has been read is in the present form, and is written so.
        environment = Environment(line["environment_id"], {**line, "format": FORMAT})
        if identity(line["environment"]) != environment.id:
            self._refuse(
                "the environment is not the one that its id stands for: the header was changed; "
                "make the record anew"
            )
        if any(environment.id == other.id for other in self._environments):
            self._refuse(
                "there is a header of the same environment above; make one record of several "
                "with `qkvac report merge`"
            )
        try:
            recall(environment.run.get("equations", ()))
        except UsageError as error:
            self._refuse(f"{error}; make the record anew")
        try:
            ids = [entry.subject.id for entry in environment.entries]
            for entry in environment.entries:
                for dtype in entry.dtypes:
                    entry.arithmetic(dtype)
                # They become words of a command line that runs a case again.
                shlex.split(entry.subject.declare)
                if entry.subject.form == FOLDER:
                    shlex.split(entry.subject.port or "")
        except (DeclarationError, SpecError, ValueError) as error:
            self._refuse(f"a declaration is wrong ({line_of(error)}); make the record anew")
        if ids != [subject["id"] for subject in environment.run["subjects"]]:
            self._refuse("a subject has another id than its parts make; make the record anew")
        if len(set(ids)) < len(ids):
            self._refuse("a subject is there twice; make the record anew")
        self._environments.append(environment)
        self._open = environment
        self._counts = Counter()

    def _result(self, line: dict[str, Any]) -> None:
        environment = self._open
        if environment is None:
            self._refuse("no header comes before this result; give the whole record")
        if line["subject"] not in environment.subjects:
            self._refuse("the header has no such subject as this result's; make the record anew")
        try:
            result = from_json(line, environment.subjects)
        except OverflowError:
            self._refuse("a number is larger than any result can be; make the record anew")
        found = Line(environment.id, result)
        if found.key in self._seen:
            self._refuse(f"a second result for {short(result.cell.id)}; make the record anew")
        self._seen.add(found.key)
        self._lines.append(found)
        self._counts[result.status] += 1

    def _footer(self, line: dict[str, Any]) -> None:
        environment = self._open
        if environment is None:
            self._refuse("no header comes before this footer; give the whole record")
        counted = {status: count for status, count in line["counts"].items() if count}
        if line["cells"] != self._counts.total() or counted != dict(self._counts):
            self._refuse(
                f"the footer counts {line['cells']} results and there are "
                f"{self._counts.total()}, or not of these statuses: lines are missing or were "
                "changed; make the record anew"
            )
        self._footers[environment.id] = line
        self._open = None
