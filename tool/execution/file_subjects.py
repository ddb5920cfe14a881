"""The roster of ports that work on files: what a command or a folder of outputs offers.

Neither can be asked for its functions, so the declaration says what is offered: `port.toml`, or
`--declare`. Without dtypes in it, the first case in float64 shows whether that is one of them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from qkvac.cells import COMMAND, FOLDER, Subject
from qkvac.execution.batches import CommandRunner, FolderRunner, Kept
from qkvac.execution.plan import Job, jobs_of
from qkvac.execution.vectors import read_manifest
from qkvac.isolation.commands import check_program, short_name, words_of
from qkvac.isolation.process import Outcome
from qkvac.subjects.roster import Entry, Roster, wanted
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.declaration import DTYPES, FILE, Declaration, DeclarationError, find, load, parse
from qkvac.texts import short
from qkvac.usage import UsageError, unknown

DECLARATION_LIMIT: Final = 1 << 20
"""Bytes that a declaration in a folder of outputs may have."""


def survey(selection: Selection, options: Options, keep: Kept | None) -> Roster:
    """The roster of a selection that names a command, or folders of inputs and outputs.

    Raises UsageError for a program that cannot be started, a folder that does not exist, and a
    manifest or declaration that is none.
    """
    if selection.graded:
        return _folder(selection)
    return _command(selection, options, keep)


def _command(selection: Selection, options: Options, keep: Kept | None) -> Roster:
    text = selection.port or ""
    words = words_of(text)
    check_program(words)
    raw, declaration = _declared(find(words), selection.declare, text)
    name = short(short_name(words))
    version = {declaration.name or name: declaration.version}
    entries = [
        Entry(
            Subject(name, mode, device, text, COMMAND, selection.declared),
            raw,
            declaration.profiles,
            version,
        )
        for mode in declaration.modes
        for device in _devices(selection, declaration)
    ]
    if not _is_float64_open(selection, declaration):
        return Roster(tuple(entries))
    with ExitStack() as stack:
        runner = CommandRunner(entries[0], options)
        stack.callback(runner.close)
        first = islice(_float64_jobs(entries[0], selection), 1)
        refused = _refused(runner.answer(job).outcome for job in first)
        entries = [replace(entry, refused=refused) for entry in entries]
        if keep is not None:
            stack.pop_all()
            keep[entries[0].subject.id] = runner
    return Roster(tuple(entries))


def _folder(selection: Selection) -> Roster:
    folder, outputs = map(Path, selection.graded)
    manifest = read_manifest(folder)
    if not outputs.is_dir():
        raise UsageError(f"{outputs}: no such folder")
    raw, declaration = _declared(_declaration_in(outputs), selection.declare, str(outputs))
    name = short(outputs.resolve().name)
    subject = Subject(
        name,
        declaration.modes[0],
        (*_devices(selection, declaration), *declaration.devices)[0],
        shlex.join(selection.graded),
        FOLDER,
        selection.declared,
    )
    version = {declaration.name or name: declaration.version}
    entry = Entry(subject, raw, declaration.profiles, version, exported=manifest.digests)
    if _is_float64_open(selection, declaration):
        runner = FolderRunner(entry, outputs)
        jobs = _float64_jobs(entry, selection)
        entry = replace(entry, refused=_refused(runner.answer(job).outcome for job in jobs))
    written = [dtype for dtype in DTYPES if any(outputs.glob(f"*.{dtype}.safetensors"))]
    unread = [dtype for dtype in written if dtype not in declaration.dtypes]
    notes = (f"outputs in {d} are not graded: the port does not declare {d}" for d in unread)
    return Roster((entry,), tuple(notes))


def _declared(
    file: Path | None, assignments: Sequence[str], source: str
) -> tuple[dict[str, Any], Declaration]:
    try:
        raw = load(file=file, assignments=assignments)
        return raw, parse(raw, source=source)
    except DeclarationError as error:
        raise UsageError(str(error)) from error


def _declaration_in(outputs: Path) -> Path | None:
    """The declaration in a folder that somebody else may have filled."""
    file = outputs / FILE
    if not os.path.lexists(file):
        return None
    if file.is_symlink() or not file.is_file() or file.stat().st_size > DECLARATION_LIMIT:
        raise UsageError(f"{file} is not a plain file of reasonable size")
    return file


def _devices(selection: Selection, declaration: Declaration) -> tuple[str, ...]:
    for device in selection.devices:
        if not wanted((device,), declaration.devices):
            raise unknown("device", device, declaration.devices)
    return wanted(selection.devices or ("cpu",), declaration.devices)


def _is_float64_open(selection: Selection, declaration: Declaration) -> bool:
    """Whether only an answer can show if float64 is offered."""
    return not declaration.dtypes_declared and "float64" in (selection.dtypes or DTYPES)


def _float64_jobs(entry: Entry, selection: Selection) -> Iterator[Job]:
    return (job for job in jobs_of(entry, "float64", selection)[0] if not job.status)


def _refused(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Whether float64 is offered: what comes back in the first answer that there is.

    Accuracy plays no part. A program that dies on it, or a file that cannot be read, is no reason
    to leave it out.
    """
    status = "ok"
    for outcome in outcomes:
        status = outcome.status
        if status in ("error", "unsupported") and outcome.seconds:
            return {"float64": f"float64 in, {outcome.reason}"}
        for array in list(outcome.outputs.values())[-1:]:
            given = array.dtype.name
            return {} if given == "float64" else {"float64": f"float64 in, {given} out"}
    return {"float64": "float64 in, nothing out"} if status == "ok" else {}
