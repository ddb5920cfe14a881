"""The commands about vectors: write them, and say which of them a folder of outputs answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from qkvac.cells import FOLDER, Subject
from qkvac.engine.cache import Certifier, default_folder
from qkvac.execution.plan import Job, plan
from qkvac.execution.vectors import EXPECTED, MANIFEST, Vector, expected, file_name, vectors, write
from qkvac.spec.cases.catalogue import profiles_with_cases
from qkvac.subjects.roster import Entry, Roster
from qkvac.subjects.selection import Selection
from qkvac.targets.declaration import DTYPES, DeclarationError, load, parse
from qkvac.usage import UsageError


def export(folder: Path, selection: Selection, with_expected: bool) -> None:
    """Writes the selected cases; raises UsageError where that cannot be done.

    A folder that holds anything but files of the same names is not written to, so that no input
    of another selection is left in it.
    """
    chosen = jobs(selection)
    every = [vector for job in chosen for vector in vectors(job)]
    try:
        _prepare(folder, {MANIFEST, EXPECTED, *(vector.file for vector in every)})
        count = write(folder, every, selection.entropy)
        if with_expected:
            _write_expected(folder / EXPECTED, chosen)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    click.echo(f"{count} files and {MANIFEST} written to {folder}")


def jobs(selection: Selection) -> tuple[Job, ...]:
    """The selected cases in every dtype that they are for; raises UsageError if there are none.

    What the selection declares leaves out what such a port is not asked for.
    """
    selection.check()
    everything = {
        "dtypes": list(DTYPES),
        "profiles": list(profiles_with_cases()),
        "supports": "all",
    }
    subject = Subject("files", "default", "cpu", "", FOLDER)
    try:
        declaration = load(everything, assignments=selection.declare)
        profiles = parse(declaration).profiles
    except DeclarationError as error:
        raise UsageError(str(error)) from error
    entry = Entry(subject, declaration, profiles, {})
    return tuple(job for job in plan(Roster((entry,)), selection).jobs if not job.status)


def exported(selection: Selection) -> Iterator[Vector]:
    """The vectors that an export of a selection consists of, in order."""
    return (vector for job in jobs(selection) for vector in vectors(job))


def _prepare(folder: Path, names: set[str]) -> None:
    """Makes the folder; raises UsageError for one that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    other = min((path.name for path in folder.iterdir() if path.name not in names), default=None)
    if other is not None:
        raise UsageError(
            f"{folder} holds {other}, which is not of this export; name another folder"
        )


def _write_expected(folder: Path, chosen: tuple[Job, ...]) -> None:
    folder.mkdir(exist_ok=True)
    certify = Certifier(default_folder())
    for job in chosen:
        data = expected(job.case, job.dtype, certify)
        (folder / file_name(job.case.id, job.dtype)).write_bytes(data)
    for warning in certify.warnings:
        click.echo(f"qkvac: {warning}", err=True)
