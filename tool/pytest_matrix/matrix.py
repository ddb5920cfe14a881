"""The matrix under pytest: cells to parametrise over, their outcomes, and the summary.

The engine does the work; this module says what its results mean to pytest. With xdist the
controller surveys once and sends the roster to its workers, each of which runs whole subjects;
results travel back as a property of the test reports, so that summary, record and exit status
are made in one place, the same with and without xdist. The engine is imported when the first
cell is asked for: a run of the suite's own tests does without.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.pytest_matrix import ROSTER
from qkvac.spec.verdicts import statuses
from qkvac.usage import UsageError

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling
    from xdist.workermanage import WorkerController

    from qkvac.engine.ahead import Ahead
    from qkvac.engine.engine import Engine
    from qkvac.execution.plan import Job
    from qkvac.records.record import Recorder
    from qkvac.records.report import Report
    from qkvac.subjects.roster import Roster
    from qkvac.subjects.selection import Options, Selection

PROPERTY: Final = "qkvac"
"""Name of the test property that holds a cell's result as JSON."""

OUTPUT: Final = "qkvac"
"""Key of a worker's output that holds what it says about its cells as a whole."""

ENTROPY: Final = "qkvac_entropy"
"""Key of a worker's input that holds what further draws come from."""


def label(cell: Cell) -> str:
    """The cell's id in ASCII, as pytest would otherwise escape it: scores stands for Ω."""
    return cell.id.replace("Ω", "scores")


class Matrix:
    """The hooks of a run of the matrix; raises pytest.UsageError for a wrong option."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.results = list[Result]()
        self._own = list[Result]()
        """Results of cells that ran in this process."""
        self._failing = dict[str, pytest.TestReport]()
        """Reports of cells that may be diagnosed, by the id of the cell."""
        self._outputs = list[dict[str, Any]]()
        """What every process that ran cells says about them as a whole."""
        self._recorder: Recorder | None = None
        self._trouble = list[str]()
        """What went wrong with the record."""
        self._begin = time.monotonic()
        self._engine: Engine | None = None
        self._wanted: list[Job] = []
        """What has to be run for the tests that are left after deselection."""
        self._ahead: Ahead | None = None

    @cached_property
    def selection(self) -> Selection:
        from qkvac.subjects.selection import Selection
        from qkvac.targets.equations import use

        given = self.config.option
        use(given.qkvac_spec)
        return Selection(
            backends=tuple(given.qkvac_backend),
            port=given.qkvac_port,
            profiles=tuple(given.qkvac_profile),
            dtypes=tuple(given.qkvac_dtype),
            devices=tuple(given.qkvac_device),
            cases=tuple(given.qkvac_case),
            tier=given.qkvac_tier,
            seeds=given.qkvac_seeds,
            declare=tuple(given.qkvac_declare),
            entropy=self._entropy(),
        )

    def _entropy(self) -> str:
        """What xdist's controller has drawn once for all its workers, or what is drawn here."""
        from qkvac.draw import entropy

        given = self.config.option
        if self.worker:
            return str(self._channels.workerinput[ENTROPY])
        try:
            sharded = given.qkvac_shard is not None
            return entropy(given.qkvac_secret, given.qkvac_entropy, sharded)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error

    @cached_property
    def options(self) -> Options:
        from qkvac.subjects.selection import Options, size

        given = self.config.option
        deviations = given.qkvac_known_deviations
        return Options(
            timeout=given.qkvac_timeout,
            threads=given.qkvac_threads,
            memory=size(given.qkvac_memory) if given.qkvac_memory else 0,
            strict=given.qkvac_strict,
            deviations=Path(deviations) if deviations else None,
        )

    @cached_property
    def _subjects(self) -> dict[str, Subject]:
        """The subjects of the run by id."""
        return {entry.subject.id: entry.subject for entry in self.engine.roster.entries}

    @property
    def worker(self) -> bool:
        """Whether this process is a worker of xdist."""
        return hasattr(self.config, "workerinput")

    @property
    def _channels(self) -> Any:
        """The configuration with the attributes that xdist gives it in a worker."""
        return self.config

    @cached_property
    def engine(self) -> Engine:
        from qkvac.engine.engine import Engine
        from qkvac.execution.shards import Shard

        text = self.config.option.qkvac_shard
        try:
            shard = Shard.parse(text) if text is not None else None
            self._engine = Engine(self.selection, self.options, self._roster(), shard=shard)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        return self._engine

    def _roster(self) -> Roster | None:
        """The subjects of the run, which xdist's controller finds out once for all its workers.

        Without xdist that is left to the engine, which keeps the processes that it had to start.
        """
        from qkvac.execution.survey import survey
        from qkvac.subjects.roster import Roster

        if self._distributes:
            return survey(self.selection, self.options)
        text = str(self._channels.workerinput[ROSTER]) if self.worker else ""
        return Roster.from_json(text) if text else None

    @property
    def report(self) -> Report:
        """What the run has found so far."""
        from qkvac.engine.run import summarise
        from qkvac.execution.shards import due

        entries = self.engine.deviations.entries
        texts = [set(found["not_exercised"]) for found in self._outputs]
        unmet = [known for known in entries if all(known.source in text for text in texts)]
        warnings = dict.fromkeys(text for found in self._outputs for text in found["warnings"])
        return replace(
            summarise(self.engine, self.results, time.monotonic() - self._begin),
            planned=len(self.results),
            not_exercised=due(unmet, self.engine.plan, self.engine.whole),
            warnings=(*warnings, *self._trouble),
        )

    @property
    def starts(self) -> Counter[str]:
        """Processes started, by subject id, in this process and in the workers of xdist."""
        total = Counter[str]()
        for found in self._outputs:
            total.update(found["starts"])
        return total

    @property
    def cells(self) -> list[Cell]:
        """The cells to parametrise over, subjects in the order in which they are begun."""
        place = {id: index for index, id in enumerate(self.engine.order)}
        return sorted(self.engine.cells, key=lambda cell: place[cell.subject.id])

    def result(self, cell: Cell) -> Result:
        """The result of a cell that was collected.

        A worker of xdist is one of several already, and runs one case after another.
        """
        if self.worker:
            return self.engine.result(cell)
        if self._ahead is None:
            from qkvac.engine.ahead import Ahead

            self._ahead = Ahead(self.engine, self._wanted)
        return self._ahead.result(cell)

    def settle(self, result: Result) -> None:
        """Ends a cell's test with the outcome that its status stands for."""
        self._own.append(result)
        reason = f"{result.status}: {result.reason}" if result.reason else result.status
        outcome = statuses.named(result.status).outcome
        if outcome == "skipped":
            pytest.skip(reason)
        if outcome == "xfailed":
            pytest.xfail(reason)
        if not result.ok or (self.options.strict and result.grade == "suspicious"):
            from qkvac.records.report import explain

            pytest.fail(explain(result), pytrace=False)

    @property
    def _distributes(self) -> bool:
        """Whether this process is xdist's controller, which runs no test itself."""
        return bool(self.config.pluginmanager.hasplugin("dsession"))

    def _leads_here(self) -> bool:
        """Whether the arguments can lead to the matrix, going by their paths alone."""
        for argument in self.config.args:
            name = argument.partition("::")[0].partition("[")[0]
            module = self.config.option.pyargs and "/" not in name
            parts = name.split(".") if module else Path(name).parts
            if not {"suite", "benchmarks", "browser"} & set(parts[-2:]):
                return True
        return False

    # --- hooks --------------------------------------------------------------------------------

    def pytest_sessionstart(self) -> None:
        # Later, during collection, a wrong option would look like a broken test file.
        if not self.worker and self._leads_here():
            self._open_record()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        leads = self._leads_here()
        node.workerinput[ENTROPY] = self.selection.entropy if leads else ""
        node.workerinput[ROSTER] = self.engine.roster.to_json() if leads else ""

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> Scheduling | None:
        if config.getvalue("dist") == "each":
            return None
        from qkvac.pytest_matrix.scheduler import SubjectScheduling

        return SubjectScheduling(config, log)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # A test without parameters has no callspec.
        params = (getattr(item, "callspec", None) for item in session.items)
        cells = (spec.params.get("cell") for spec in params if spec is not None)
        ids = {cell.id for cell in cells if isinstance(cell, Cell)}
        if ids:
            jobs = self.engine.plan.jobs
            self._wanted = [job for job in jobs if any(cell.id in ids for cell in job.cells)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties).get(PROPERTY)
        if self.worker or found is None:
            return
        if report.when == "teardown":
            # These are the properties that --junitxml writes; a few words are enough for a cell.
            others = [pair for pair in report.user_properties if pair[0] != PROPERTY]
            report.user_properties = [*others, (PROPERTY, brief(str(found)))]
        if report.when != "call":
            return
        from qkvac.records.record import from_json

        result = from_json(json.loads(str(found)), self._subjects)
        self.results.append(result)
        if result.status == Status.FAILED:
            # It is diagnosed once all is known, and recorded then.
            self._failing[result.cell.id] = report
        else:
            self._append(result)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object) -> None:
        output: dict[str, Any] = getattr(node, "workeroutput", {})
        if OUTPUT in output:
            self._outputs.append(output[OUTPUT])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._engine is not None and (self.worker or not self._distributes):
            if self._ahead is not None:
                self._ahead.close()
            diagnosed = self._diagnosed(session)
            self._engine.close()
            own = {
                "diagnosed": diagnosed,
                "starts": self._engine.starts,
                "settings": dict(self._engine.settings),
                "not_exercised": [d.source for d in self._engine.deviations.not_exercised],
                "warnings": self._engine.warnings,
            }
            if self.worker:
                self._channels.workeroutput[OUTPUT] = own
                return
            self._outputs.append(own)
        if not self.results:
            return
        from qkvac.records.words import INDECISIVE

        self._explain()
        self._close_record(session)
        if session.exitstatus == pytest.ExitCode.OK:
            if self._trouble:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
            elif self.report.exit_status == INDECISIVE:
                session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        if self.results:
            terminalreporter.section("qkvac")
            terminalreporter.write_line(str(self.report))
            if terminalreporter.verbosity > 0:
                started = ", ".join(f"{id} {count}" for id, count in sorted(self.starts.items()))
                terminalreporter.write_line(f"processes started: {started}")

    def _diagnosed(self, session: pytest.Session) -> list[str]:
        """The failures of this process with what is probably wrong, as JSON, but for a stopped run.

        All cells of a subject run in one process, so that each has the evidence that there is.
        """
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            return []
        found = self.engine.evidence.diagnosed(self._own)
        return [to_property(r, detail=True) for r in found if r.status == Status.FAILED]

    def _explain(self) -> None:
        """Says in every failure what is probably wrong, and records it."""
        from qkvac.records.record import from_json
        from qkvac.records.report import explain

        texts = [text for output in self._outputs for text in output["diagnosed"]]
        found = [from_json(json.loads(text), self._subjects) for text in texts]
        known = {result.cell.id: result for result in found}
        self.results = [known.get(result.cell.id, result) for result in self.results]
        for result in self.results:
            report = self._failing.get(result.cell.id)
            if report is None:
                continue
            if result.cell.id in known:
                report.longrepr = explain(result)
            self._append(result)

    def _open_record(self) -> None:
        """Raises pytest.UsageError, before anything runs, for any option that makes no sense."""
        from qkvac.engine.run import begin_record

        engine, path = self.engine, self.config.option.qkvac_record
        if path is not None:
            try:
                self._recorder = begin_record(engine, Path(path))
            except UsageError as error:
                raise pytest.UsageError(str(error)) from error

    def _append(self, result: Result) -> None:
        """Writes a result to the record; a full disk ends the record and not the run."""
        from qkvac.records.record import RecordError

        if self._recorder is not None and not self._trouble:
            try:
                self._recorder.write(result)
            except RecordError as error:
                self._trouble.append(str(error))

    def _close_record(self, session: pytest.Session) -> None:
        from qkvac.engine.run import end_record

        if self._recorder is not None:
            ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
            cut = session.shouldstop or session.shouldfail or self._trouble
            settings = {id: told for own in self._outputs for id, told in own["settings"].items()}
            report = self.report if ended and not cut else None
            self._trouble += end_record(self._recorder, report, settings)


def to_property(result: Result, detail: bool = False) -> str:
    """A result as text, for the property of a test, or with its longer text."""
    from qkvac.records.record import to_json

    longer = {"detail": result.detail} if detail and result.detail else {}
    return json.dumps({**to_json(result), **longer}, ensure_ascii=False)


def brief(found: str) -> str:
    """The property of a test in a few words: `faithful, 0.31 of the bound`."""
    line = json.loads(found)
    parts = [line.get("grade") or line["status"]]
    if "clause" in line:
        parts.append(line["clause"])
    if "ratio" in line and line.get("grade") != "exact":
        parts.append(f"{float(line['ratio']):.2g} of the bound")
    return ", ".join(parts)
