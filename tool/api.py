"""The suite from Python: check a port, or assert that it conforms, in somebody's own tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qkvac import draw
from qkvac.engine.engine import Engine
from qkvac.engine.run import execute
from qkvac.isolation.commands import text_of
from qkvac.isolation.resident import Resident, name_of, port_of
from qkvac.records.report import Report
from qkvac.subjects.selection import Options, Selection, size
from qkvac.targets.declaration import DeclarationError, assignments
from qkvac.targets.equations import use
from qkvac.usage import UsageError


def check(
    port: object,
    *,
    profile: str = "",
    spec: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    declare: Mapping[str, Any] | Iterable[str] = (),
    profiles: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    devices: Iterable[str] = (),
    cases: Iterable[str] = (),
    tier: str = "default",
    seeds: int = 0,
    secret: bool = False,
    entropy: str = "",
    strict: bool = False,
    workers: int = 0,
    timeout: float = 60.0,
    memory: str | int = 0,
    record: str | os.PathLike[str] | None = None,
    known_deviations: str | os.PathLike[str] | None = None,
) -> Report:
    """Checks a port and reports what was found.

    A `port` that is named, by a Python file, a module or an ONNX file as for `qkvac check`, or by
    the list of the words of a command, runs in a process of its own, where a crash or a hang is a
    result. A loaded module, a mapping from the names of functions to callables, an object that
    has them, or a single function is called here, on the calling thread: what crashes, hangs or
    exhausts the memory does so to the caller, and `timeout` and `memory` have no effect. Judging
    is done in other processes either way. `profile` says what a single function computes, where
    its name does not; `spec` is a file that declares profiles of your own, or several. `declare` is
    a table like QKVAC, or dotted TOML as for `--declare`; the other arguments are the options of
    `qkvac check`.

    Raises UsageError where an argument makes no sense or the port cannot be loaded, and
    KeyboardInterrupt.
    """
    lists = {"profiles": profiles, "dtypes": dtypes, "devices": devices, "cases": cases}
    for name, given in lists.items():
        if isinstance(given, str):
            raise UsageError(f"{name}={given!r} is a text and has to be a list: [{given!r}]")
    files = [spec] if isinstance(spec, str | os.PathLike) else spec
    use([os.fspath(file) for file in files])
    resident = None
    if isinstance(port, list | tuple):
        text = text_of([os.fspath(word) for word in port])
    elif isinstance(port, str | os.PathLike):
        text = os.fspath(port)
    else:
        text = name_of(port)
        resident = Resident(text, port_of(port, profile))
    if profile and resident is None:
        raise UsageError(f"profile={profile!r} is for a single function, not for {text}")
    try:
        declared = tuple(assignments(declare) if isinstance(declare, Mapping) else declare)
    except DeclarationError as error:
        raise UsageError(str(error)) from error
    selection = Selection(
        port=text,
        profiles=tuple(profiles),
        dtypes=tuple(dtypes),
        devices=tuple(devices),
        cases=tuple(cases),
        tier=tier,
        seeds=seeds,
        entropy=draw.entropy(secret, entropy),
        declare=declared,
    )
    options = Options(
        workers=workers,
        timeout=timeout,
        memory=size(memory) if isinstance(memory, str) else memory,
        strict=strict,
        deviations=Path(known_deviations) if known_deviations is not None else None,
    )
    engine = Engine(selection, options, resident=resident)
    done = execute(engine, Path(record) if record is not None else None)
    if done.interrupted:
        raise KeyboardInterrupt
    return done.report


def assert_conforms(port: object, **options: Any) -> None:
    """Checks a port; raises AssertionError, with the summary, unless it passes decisively.

    The options are those of `check`, as keywords: `profile`, `spec`, `declare`, `profiles`,
    `dtypes=["float32"]`, `devices`, `cases=["normal/*"]`, `tier`, `seeds`, `secret`, `entropy`,
    `strict`, `workers`, `timeout`, `memory`, `record` and `known_deviations`. Raises UsageError
    where `check` does.
    """
    # pytest leaves this frame out, so that the summary is all that a failing test shows.
    __tracebackhide__ = True
    report = check(port, **options)
    if not report.passed:
        raise AssertionError(f"{report.sentence}\n\n{report}")
