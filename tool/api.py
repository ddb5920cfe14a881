"""The suite from Python: check a port, or assert that it conforms, in somebody's own tests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from qkvac.engine import Engine
from qkvac.execution import execute
from qkvac.report import Report
from qkvac.selection import Options, Selection, size


def check(
    port: str | os.PathLike[str],
    *,
    profiles: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    devices: Iterable[str] = (),
    cases: Iterable[str] = (),
    tier: str = "default",
    seeds: int = 0,
    strict: bool = False,
    workers: int = 0,
    timeout: float = 60.0,
    memory: str | int = 0,
    record: str | os.PathLike[str] | None = None,
    known_deviations: str | os.PathLike[str] | None = None,
) -> Report:
    """Checks a port in a process of its own and reports what was found.

    `port` is a Python file or the name of a module; the other arguments are the options of
    `qkvac check`. A crash or a hang of the port is a result. Raises UsageError where an argument
    makes no sense or the port cannot be loaded, and KeyboardInterrupt.
    """
    selection = Selection(
        port=os.fspath(port),
        profiles=tuple(profiles),
        dtypes=tuple(dtypes),
        devices=tuple(devices),
        cases=tuple(cases),
        tier=tier,
        seeds=seeds,
    )
    options = Options(
        workers=workers,
        timeout=timeout,
        memory=size(memory) if isinstance(memory, str) else memory,
        strict=strict,
        deviations=Path(known_deviations) if known_deviations is not None else None,
    )
    done = execute(Engine(selection, options), Path(record) if record is not None else None)
    if done.interrupted:
        raise KeyboardInterrupt
    return done.report


def assert_conforms(port: str | os.PathLike[str], **options: object) -> None:
    """Checks a port; raises AssertionError, with the summary, unless it passes decisively."""
    report = check(port, **options)  # type: ignore[arg-type]
    if not report.passed:
        raise AssertionError(str(report))
