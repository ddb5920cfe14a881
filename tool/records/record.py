"""The record of a run: JSON Lines, a header, one line per cell, a footer.

Lines are written as they come, so that a run that ends early leaves what it found; the missing
footer shows that it ended early. `record.schema.json` describes every line. A line belongs to the
last header above it and names its subject as that header's roster does: what 100,000 lines would
repeat is said once.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, TextIO

import qkvac
from qkvac import jsons
from qkvac.cells import COMMAND, LOADED, Cell, Result, Status, Subject
from qkvac.files import beside
from qkvac.records.environment import identity
from qkvac.spec.attention import SPEC_VERSION
from qkvac.spec.verdicts import clauses
from qkvac.subjects.roster import Entry
from qkvac.usage import UsageError

FORMAT: Final = 3
"""Version of the record's form."""
READ: Final = (2, FORMAT)
"""Forms that can be read; the first names clauses by their letters."""

NOT_WRITTEN: Final = ("cell", "detail")
FLOATS: Final = ("ratio", "resolution", "ulp", "z", "rms", "bits", "seconds")
DIGITS: Final = 6
"""Significant digits of measured numbers; values of outputs are written in full."""
DETAIL: Final = 4000
"""Characters of a traceback or of a snippet that are kept; of a longer one the end."""


BEGINNING: Final = b'{"kind":"header"'
"""What a record begins with: nothing else is replaced by one."""


class RecordError(Exception):
    """The record cannot be written any more; the message is one line."""


class Recorder:
    """Writes the record of a run. The file is opened at once, before anything runs."""

    def __init__(self, path: Path, environment: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Writes the header; raises UsageError if the file cannot be written.

        `run` says what was selected: roster, tier, threads and the like.
        """
        self._path = path
        self._details = set[str]()
        environment = jsons.loads(jsons.dumps(environment))
        header = {
            "kind": "header",
            "format": FORMAT,
            "spec_version": SPEC_VERSION,
            "qkvac_version": qkvac.__version__,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "environment_id": identity(environment),
            "environment": environment,
            "run": run,
        }
        try:
            self._file, name = _opened(path)
            try:
                self._line(header)
                if name:
                    os.replace(name, path)
            except BaseException:
                if name:
                    with suppress(OSError):
                        os.unlink(name)
                raise
        except OSError as error:
            raise UsageError(
                f"the record {path} cannot be written: {error.strerror}; "
                "choose another file with --record"
            ) from error

    def write(self, result: Result) -> None:
        """Appends a result; raises RecordError."""
        line = to_json(result)
        detail = (result.detail or "")[-DETAIL:]
        # All cells of a case share it; the first of them says it.
        if detail and result.status in Status.BAD and detail not in self._details:
            self._details.add(detail)
            line["detail"] = detail
        self._append(line)

    def finish(self, footer: Mapping[str, Any]) -> None:
        """Writes the footer and closes the file; raises RecordError."""
        self._append({"kind": "footer", **footer})
        try:
            self._file.close()
        except OSError as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Closes the file as it is, without a footer."""
        try:
            self._file.close()
        except OSError:
            return

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            self._line(line)
        except OSError as error:
            raise self._error(error) from error

    def _line(self, line: Mapping[str, Any]) -> None:
        self._file.write(text(line))
        self._file.flush()

    def _error(self, error: OSError) -> RecordError:
        return RecordError(
            f"the record {self._path} is incomplete, writing it failed: {error.strerror}"
        )


def _opened(path: Path) -> tuple[TextIO, str]:
    """A file for a record, and the name that it has until it takes its place; "" for a device.

    Raises UsageError where something else would be lost, or written to through a link.
    """
    if path.is_symlink() and (path.is_file() or not path.exists()):
        raise UsageError(f"the record {path} is a link; name the file itself with --record")
    if path.exists() and not path.is_file():
        return path.open("w", encoding="utf-8", errors="replace"), ""
    if path.exists():
        with path.open("rb") as file:
            found = file.read(len(BEGINNING))
        if found not in (b"", BEGINNING):
            raise UsageError(f"{path} is no record and stays; choose another file with --record")
    return beside(path)


def text(line: Mapping[str, Any]) -> str:
    """A line of a record, with its end."""
    return jsons.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"


def to_json(result: Result) -> dict[str, Any]:
    """A result as the record holds it: what is not known, or false, is left out."""
    cell = result.cell
    line: dict[str, Any] = {
        "kind": "result",
        "subject": cell.subject.id,
        "dtype": cell.dtype,
        "case": cell.case,
        "quantity": cell.quantity,
    }
    for field in fields(Result):
        value = getattr(result, field.name)
        if field.name in NOT_WRITTEN or value is None or value is False:
            continue
        if field.name in FLOATS:
            value = _rounded(value)
        elif field.name == "worst":
            value = {**value, **{k: _rounded(value[k]) for k in ("error", "bound") if k in value}}
        line[field.name] = _plain(value)
    return line


def from_json(line: Mapping[str, Any], subjects: Mapping[str, Subject]) -> Result:
    """The result of a line that `to_json` made; `subjects` by id.

    Raises OverflowError for an integer that is no float.
    """
    cell = Cell(subjects[line["subject"]], line["dtype"], line["case"], line["quantity"])
    values = {name: value for name, value in line.items() if name in _FIELDS}
    for name in FLOATS:
        if name in values:
            values[name] = float(values[name])
    if "clause" in values:
        values["clause"] = clauses.word(values["clause"])
    if "worst" in values:
        worst = values["worst"]
        values["worst"] = {n: v if n == "index" else float(v) for n, v in worst.items()}
    return Result(cell, **values)


_FIELDS: Final = frozenset(field.name for field in fields(Result)) - {"cell"}


def roster_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """The subjects of a run as a header holds them, with all that they were judged by."""
    return [
        {
            "id": entry.subject.id,
            **{name: value for name, value in vars(entry.subject).items() if value},
            **({"source": source} if (source := _source(entry.subject)) else {}),
            "versions": dict(entry.versions),
            "functions": list(entry.functions),
            "declaration": dict(entry.raw),
            "arithmetic": {dtype: asdict(entry.arithmetic(dtype)) for dtype in entry.dtypes},
            "conventions": dict(entry.declaration.conventions),
            "skipped": entry.skipped,
            "refused": dict(entry.refused),
        }
        for entry in entries
    ]


def _source(subject: Subject) -> str:
    """SHA-256 of the file that a port is, or that its command names first; "" if there is none."""
    if subject.form == LOADED or subject.port is None:
        return ""
    try:
        words = shlex.split(subject.port) if subject.form == COMMAND else [subject.port]
        # What stands behind a colon is an object of the file.
        names = (name for word in words for name in (word, word.rpartition(":")[0]) if name)
        path = next((Path(name) for name in names if Path(name).is_file()), None)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else ""
    except (OSError, ValueError):
        return ""


def entry_from_json(line: Mapping[str, Any]) -> Entry:
    """The entry of a roster that `roster_json` made."""
    words = ("backend", "mode", "device", "port", "form", "declare")
    return Entry(
        Subject(**{name: line[name] for name in words if name in line}),
        line["declaration"],
        tuple(line["functions"]),
        line["versions"],
        line["skipped"],
        line["refused"],
    )


def _rounded(value: Any) -> Any:
    """A measured number without digits that mean nothing."""
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else number


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN; they are written as text that `float` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
