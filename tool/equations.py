"""Equations of somebody's own: profiles of files, and those that installed packages register."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from qkvac.spec import registry, validation
from qkvac.spec.syntax import SpecError
from qkvac.usage import UsageError


def use(files: Iterable[str | Path] = ()) -> None:
    """Adds the profiles of files, and of installed packages, to the suite's own.

    Raises UsageError, with the place, for what cannot be run or makes no sense.
    """
    named = [str(file) for file in files]
    for file in named:
        if not file.endswith(".py"):
            raise UsageError(f"{file} is no Python file; equations are declared in FILE.py")
    modules = (entry.value for entry in metadata.entry_points(group=registry.GROUP))
    try:
        for source in registry.choose((*sorted(set(modules)), *named)).sources:
            validation.check(source)
    except SpecError as error:
        raise UsageError(str(error)) from error
