"""A folder with everything that is made of a run: what `--report DIR` leaves."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qkvac.publication.output import emit
from qkvac.usage import UsageError

RECORD: Final = "record.jsonl"


@dataclass(frozen=True)
class Folder:
    """Where the files go, and where the record is written while the run goes on."""

    path: Path
    record: Path

    @classmethod
    def made(cls, path: Path, record: Path | None) -> Folder:
        """Makes the folder, before anything runs; raises UsageError if that is not possible.

        A `record` that was asked for besides is copied into the folder afterwards.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder {path} cannot be made: {error.strerror}; choose another with --report"
            ) from error
        return cls(path, record or path / RECORD)

    def fill(self) -> None:
        """Writes everything that is made of the record; raises UsageError.

        Of a run that was interrupted, all of it says so.
        """
        from qkvac.publication import badge, html, markdown
        from qkvac.publication.archive import read

        if self.record != self.path / RECORD:
            try:
                shutil.copyfile(self.record, self.path / RECORD)
            except OSError as error:
                raise UsageError(
                    f"the record {self.record} cannot be copied to {self.path}: {error.strerror}"
                ) from error
        archive = read(self.record, allow_truncated=True)
        made = badge.badge(archive)
        for name, text in (
            ("report.html", html.render(archive)),
            ("report.md", markdown.render(archive)),
            ("badge.json", badge.endpoint(made)),
            ("badge.svg", badge.svg(made)),
        ):
            emit([text], self.path / name)
