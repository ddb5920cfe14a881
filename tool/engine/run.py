"""A whole run: cells run, judged, recorded and summed up. The command line and Python use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkvac.cells import Result, Status
from qkvac.engine.endings import exit_status
from qkvac.engine.engine import Engine
from qkvac.execution.shards import due, header
from qkvac.records.environment import describe
from qkvac.records.record import Recorder, RecordError, roster_json
from qkvac.records.report import Report
from qkvac.records.words import USAGE
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.equations import told

Watch = Callable[[Result], None]


class _FirstFailureError(Exception):
    """Ends a run at its first failure."""


@dataclass(frozen=True)
class Execution:
    """What a run found, and what kept it from ending as it should."""

    report: Report
    interrupted: int = 0
    """The exit status that the interruption calls for; 0 where there was none."""
    record_error: str = ""

    @property
    def exit_status(self) -> int:
        if self.interrupted:
            return self.interrupted
        return USAGE if self.record_error else self.report.exit_status


def execute(engine: Engine, record: Path | None = None, watch: Watch | None = None) -> Execution:
    """Runs all cells of an engine and closes it.

    `watch` sees every result as it comes. Raises UsageError if the record cannot be begun; if it
    cannot be continued, the run goes on without it. Ctrl-C, and `Ended`,
    end the run and not this function.
    """
    started = time.monotonic()
    results = list[Result]()
    failing = Report((), strict=engine.options.strict).is_failure
    trouble = list[str]()
    interrupted = 0
    with engine:
        recorder = begin_record(engine, record) if record is not None else None

        def write(result: Result) -> None:
            if recorder is not None and not trouble:
                try:
                    recorder.write(result)
                except RecordError as error:
                    trouble.append(str(error))

        def take(result: Result) -> None:
            results.append(result)
            # What failed is diagnosed once all is known, and recorded then.
            if result.status != Status.FAILED:
                write(result)
            if watch is not None:
                watch(result)
            if engine.options.fail_fast and failing(result):
                raise _FirstFailureError

        try:
            with suppress(_FirstFailureError):
                engine.run(take)
            results = engine.evidence.diagnosed(results)
        except KeyboardInterrupt as error:
            interrupted = exit_status(error)
        for result in results:
            if result.status == Status.FAILED:
                write(result)
    report = summarise(engine, results, time.monotonic() - started)
    if recorder is not None:
        complete = len(results) == len(engine.cells) and not trouble
        trouble += end_record(recorder, report if complete else None, engine.settings)
    return Execution(report, interrupted, trouble[0] if trouble else "")


def summarise(engine: Engine, results: list[Result], seconds: float) -> Report:
    """The report, its results in the order of the plan whatever order they came in."""
    order = {cell: place for place, cell in enumerate(engine.cells)}
    return Report(
        tuple(sorted(results, key=lambda result: order[result.cell])),
        engine.roster,
        engine.selection,
        strict=engine.options.strict,
        planned=len(engine.cells),
        left_out=engine.plan.left_out,
        not_exercised=due(engine.deviations.not_exercised, engine.plan, engine.whole),
        warnings=tuple(engine.warnings),
        seconds=seconds,
        shard=engine.shard,
        whole=len(engine.whole.cells),
    )


def begin_record(engine: Engine, path: Path) -> Recorder:
    """A record with the header of the engine's run; raises UsageError if it cannot be written."""
    selection: Selection = engine.selection
    options: Options = engine.options
    run: dict[str, Any] = {
        "backends": list(selection.backends),
        **({"port": selection.port} if selection.port is not None else {}),
        "profiles": list(selection.profiles),
        "dtypes": list(selection.dtypes),
        "devices": list(selection.devices),
        "cases": list(selection.cases),
        "tier": selection.tier,
        "seeds": selection.seeds,
        **({"entropy": selection.entropy} if selection.entropy else {}),
        "strict": options.strict,
        "timeout": options.timeout,
        "cells": len(engine.cells),
        "left_out": engine.plan.left_out,
        "notes": list(engine.roster.notes),
        "subjects": roster_json(engine.roster.entries),
    }
    if equations := told():
        run["equations"] = equations
    if engine.shard is not None:
        run["shard"] = header(engine.shard, engine.whole)
    return Recorder(path, describe(engine.roster.entries, options), run)


def end_record(
    recorder: Recorder, report: Report | None, settings: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Closes the record, with a footer if the run is complete; what went wrong, if anything.

    `settings` are what subjects said of themselves, by id.
    """
    if report is None:
        recorder.close()
        return []
    footer = {
        "counts": dict(report.counts),
        "exit_status": report.exit_status,
        "cells": len(report.results),
        "seconds": round(report.seconds, 3),
        "warnings": list(report.warnings),
        "settings": {id: dict(told) for id, told in sorted(settings.items())},
    }
    try:
        recorder.finish(footer)
    except RecordError as error:
        recorder.close()
        return [str(error)]
    return []
