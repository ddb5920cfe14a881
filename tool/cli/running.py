"""The commands that run cells: progress while they run, the summary afterwards."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import click

from qkvac import draw, jsons
from qkvac.cells import Result
from qkvac.engine.engine import Engine
from qkvac.engine.run import Execution, execute
from qkvac.execution.shards import Shard
from qkvac.publication.folder import Folder
from qkvac.records.record import to_json
from qkvac.streams import silence
from qkvac.subjects.selection import Options, Selection, size
from qkvac.terminal import Terminal
from qkvac.texts import line, short, visible
from qkvac.usage import UsageError

PATIENCE: Final = 1.0
"""Seconds that a run may take before it shows how far it is."""


def run_cells(
    *,
    backends: tuple[str, ...],
    port: str | None,
    profiles: tuple[str, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    cases: tuple[str, ...],
    tier: str,
    seeds: int,
    secret: bool,
    entropy: str,
    strict: bool,
    record: Path | None,
    known_deviations: Path | None,
    workers: int,
    fail_fast: bool,
    timeout: float,
    memory: str | None,
    threads: int,
    listing: bool,
    form: str,
    shard: str | None = None,
    published: Path | None = None,
    declare: tuple[str, ...] = (),
    graded: tuple[str, ...] = (),
) -> int:
    """Runs what the options select and prints it; returns the exit status."""
    for name, value, least in (("-n", workers, 0), ("--threads", threads, 1)):
        if value < least:
            raise UsageError(f"{name} {value}: it is at least {least}")
    if not timeout > 0:
        raise UsageError(f"--timeout {timeout:g}: it is a time in seconds, more than 0")
    drawn_from = draw.entropy(secret, entropy, shard is not None)
    selected = (backends, port, profiles, dtypes, devices, cases, tier, seeds, declare, graded)
    selection = Selection(*selected, drawn_from)
    options = Options(
        workers=workers,
        timeout=timeout,
        memory=size(memory) if memory else 0,
        threads=threads,
        strict=strict,
        fail_fast=fail_fast,
        deviations=known_deviations,
    )
    part = Shard.parse(shard) if shard is not None else None
    engine = Engine(selection, options, shard=part)
    if listing:
        with engine:
            _list(engine, form)
        return 0
    folder = Folder.made(published, record) if published is not None else None
    with Progress(len(engine.cells)) as progress:
        done = execute(engine, folder.record if folder else record, progress.watch)
    try:
        _print(done, form)
        sys.stdout.flush()
    except BrokenPipeError:
        silence()
    if folder is not None and not done.record_error:
        folder.fill()
        if form == "text":
            click.echo(f"report: {line(folder.path)}")
    return done.exit_status


def _list(engine: Engine, form: str) -> None:
    ids = [cell.id for cell in engine.cells]
    if form == "json":
        click.echo(jsons.dumps(ids, indent=1))
    else:
        for id in ids:
            click.echo(visible(id))


def _print(done: Execution, form: str) -> None:
    report = done.report
    if form == "json":
        results = [{"cell": r.cell.id, **to_json(r)} for r in report.results]
        for row in results:
            del row["kind"]
        click.echo(jsons.dumps({**report.to_json(), "results": results}))
    else:
        from qkvac.records.summary import show

        show(report, Terminal(soft_wrap=False))
    if done.record_error:
        click.echo(f"qkvac: {line(done.record_error)}", err=True)
    if done.interrupted:
        click.echo("qkvac: interrupted; what had been found until then is above", err=True)


class Progress:
    """A bar on a terminal, once the run takes longer than a moment; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._count = 0
        self._failures = 0
        self._bar: Any = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE, self._start)
        self._timer.daemon = True

    def watch(self, result: Result) -> None:
        self._count += 1
        self._failures += not result.ok
        with self._lock:
            if self._bar is not None:
                failed = f"[red]{self._failures} failed[/]" if self._failures else ""
                what = short(f"{result.cell.subject.id} {result.cell.dtype}")
                self._bar.update(self._task, completed=self._count, what=what, failed=failed)

    def _start(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        with self._lock:
            self._bar = Bar(
                BarColumn(20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[failed]}"),
                TextColumn("{task.fields[what]}", markup=False),
                console=Terminal(stderr=True),
                transient=True,
            )
            start = {"completed": self._count, "what": "", "failed": ""}
            self._task = self._bar.add_task("", total=self._total, **start)
            self._bar.start()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
