"""The record of a run: JSON Lines, a header, one line per cell, a footer.

Lines are written as they come, so that a run that ends early leaves what it found; the missing
footer shows that it ended early. `record.schema.json` describes every line.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TextIO

import qkvac
from qkvac.cells import Cell, Result, Subject
from qkvac.environment import identity
from qkvac.spec.attention import SPEC_VERSION
from qkvac.usage import UsageError

FORMAT: Final = 1
"""Version of the record's form."""

NOT_WRITTEN: Final = ("cell", "detail")
FLOATS: Final = ("ratio", "resolution", "ulp", "z", "rms", "bits", "seconds")


class RecordError(Exception):
    """The record cannot be written any more; the message is one line."""


class Recorder:
    """Writes the record of a run. The file is opened at once, before anything runs."""

    def __init__(self, path: Path, environment: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Writes the header; raises UsageError if the file cannot be written.

        `run` says what was selected: roster, tier, threads and the like.
        """
        self._path = path
        self._environment = identity(environment)
        header = {
            "kind": "header",
            "format": FORMAT,
            "spec_version": SPEC_VERSION,
            "qkvac_version": qkvac.__version__,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "environment_id": self._environment,
            "environment": environment,
            "run": run,
        }
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
            self._line(header)
        except OSError as error:
            raise UsageError(
                f"the record {path} cannot be written: {error.strerror}; "
                "choose another file with --record"
            ) from error

    def write(self, result: Result) -> None:
        """Appends a result; raises RecordError."""
        self._append(to_json(result, self._environment))

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
        json.dump(line, self._file, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._file.write("\n")
        self._file.flush()

    def _error(self, error: OSError) -> RecordError:
        return RecordError(
            f"the record {self._path} is incomplete, writing it failed: {error.strerror}"
        )


def to_json(result: Result, environment: str) -> dict[str, Any]:
    """A result as the record holds it: cell and environment ids, and all that is known."""
    cell = result.cell
    line = {
        "kind": "result",
        "environment_id": environment,
        "cell": cell.id,
        "subject": {name: value for name, value in vars(cell.subject).items() if value},
        "dtype": cell.dtype,
        "case": cell.case,
        "quantity": cell.quantity,
    }
    for field in fields(Result):
        value = getattr(result, field.name)
        if field.name not in NOT_WRITTEN and value is not None:
            line[field.name] = _plain(value)
    return line


def from_json(line: Mapping[str, Any]) -> Result:
    """The result of a line that `to_json` made."""
    subject = Subject(**{"port": None, **line["subject"]})
    cell = Cell(subject, line["dtype"], line["case"], line["quantity"])
    known = {f.name for f in fields(Result)} - {"cell"}
    values = {name: value for name, value in line.items() if name in known}
    values.update({name: float(values[name]) for name in FLOATS if name in values})
    return Result(cell, **values)


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN; they are written as text that `float` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
