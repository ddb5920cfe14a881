"""Where what is made of records goes: a file, or the standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from qkvac.files import beside
from qkvac.usage import UsageError


def emit(parts: Iterable[str], path: Path | None, kept: Iterable[Path] = ()) -> None:
    """Writes text to a file, or to the standard output for None and "-"; raises UsageError.

    A file among those that are `kept`, which the text was made from, is not overwritten.
    """
    if path is None or str(path) == "-":
        sys.stdout.flush()
        for part in parts:
            sys.stdout.buffer.write(part.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return
    if any(source.exists() and path.exists() and source.samefile(path) for source in kept):
        raise UsageError(f"{path} is the record itself; choose another file with -o")
    try:
        _store(parts, path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}; choose another file with -o"
        ) from error


def _store(parts: Iterable[str], path: Path) -> None:
    """Writes a file as a whole: until it is complete, what was there before stays."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="replace", newline="\n") as device:
            device.writelines(parts)
        return
    file, name = beside(path)
    try:
        with file:
            file.writelines(parts)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
