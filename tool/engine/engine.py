"""The engine: runs a plan's jobs and has them judged.

`run` keeps several subjects and several judges busy at a time; `result` answers for one cell, in
the calling process, by running the case that the cell belongs to. Both go through the same
runner, judge and composition of results.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from types import TracebackType

from qkvac.cells import COMMAND, FOLDER, LOADED, Cell, Result
from qkvac.diagnosis.evidence import Evidence
from qkvac.engine.cache import default_folder
from qkvac.engine.judging import Judge, Judged, Judges, Task
from qkvac.engine.results import compose
from qkvac.execution.batches import CommandRunner, FolderRunner, Kept
from qkvac.execution.costs import milliseconds
from qkvac.execution.plan import Job, Plan, plan
from qkvac.execution.runner import Answer, Runner
from qkvac.execution.shards import Shard, split
from qkvac.execution.survey import survey
from qkvac.isolation.process import Worker
from qkvac.records.deviations import Deviations
from qkvac.spec.conventions import of_values
from qkvac.subjects.roster import Entry, Roster
from qkvac.subjects.selection import Options, Selection

Report = Callable[[Result], None]
AnyRunner = Runner | CommandRunner | FolderRunner


class Engine:
    """Runs a selection; a context manager, since it owns processes.

    Raises UsageError for a selection or options that make no sense, or a port that cannot be
    loaded. A roster that was made elsewhere is taken over as it is; a `resident` is the process
    of the selection's port, and is the calling one. With a `shard` only its part of the `whole`
    plan is run.
    """

    def __init__(
        self,
        selection: Selection,
        options: Options | None = None,
        roster: Roster | None = None,
        resident: Worker | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.selection = selection
        self.shard = shard
        self.options = options or Options()
        self.deviations = Deviations.load(self.options.deviations)
        self.starts = dict[str, int]()
        """Processes that were started, by subject id."""
        self.settings = dict[str, Mapping[str, str]]()
        """What subjects said of their code paths and precision settings, by id."""
        self.evidence = Evidence(self.options)
        """Answers that a diagnosis is made from."""
        self.warnings = list[str]()
        """What went wrong without changing a result, one line each."""
        self._ready: Kept = {}
        self._runner: tuple[Entry, AnyRunner] | None = None
        self._running: _Run | None = None
        self._current: tuple[Job, dict[str, Result]] | None = None
        self.roster = roster or survey(selection, self.options, self._ready, resident)
        try:
            self.whole: Plan = plan(self.roster, selection)
            self.plan: Plan = split(self.whole, shard)
        except BaseException:
            self.close()
            raise

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells in the order in which a single process would run them."""
        return self.plan.cells

    @property
    def folder(self) -> Path | None:
        """Where certified values are kept, None where that is not wanted."""
        return default_folder() if self.options.cache else None

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Ids of the subjects, those that take longest first, so that none is left at the end."""
        total = Counter[str]()
        for job in self.plan.jobs:
            total[job.entry.subject.id] += milliseconds(job)
        return tuple(sorted(total, key=lambda id: -total[id]))

    def run(self, report: Report, jobs: Collection[Job] | None = None) -> None:
        """Runs everything, or some jobs of the plan, and hands each result over to `report`.

        That is called in the calling thread. Results of a case come together and in order, cases
        as they are finished. An exception of `report`, KeyboardInterrupt included, ends all
        processes and goes on to the caller.
        """
        chosen = self.plan.jobs if jobs is None else jobs
        judged = {(job.case.id, job.dtype) for job in chosen if not job.status}
        with Judges(min(self.options.parallel, len(judged)), self.folder) as judges:
            judges.start()
            run = self._running = _Run(self, judges, chosen)
            if any(entry.subject.form == LOADED for entry in self.roster.entries):
                run.run_here(report)
            else:
                run.run(report)

    def interrupt(self) -> None:
        """Makes a `run` in another thread end, which raises InterruptedError there."""
        if self._running is not None:
            self._running.interrupt()

    def result(self, cell: Cell | str) -> Result:
        """The result of one cell; runs its case unless it was the last one that was run.

        Raises KeyError for a cell that is not in the plan.
        """
        id = cell if isinstance(cell, str) else cell.id
        job = self.plan.job_of[id]
        if self._current is None or self._current[0] is not job:
            answer = self._runner_of(job.entry).answer(job)
            task = _task(job, answer)
            judged = self._judge.judge(task) if task is not None else None
            self._current = job, {r.cell.id: r for r in self.finish(job, answer, judged)}
        return self._current[1][id]

    def finish(self, job: Job, answer: Answer, judged: Judged | None) -> list[Result]:
        """The results of a job, known deviations taken into account."""
        if judged is not None:
            self.warnings += [text for text in judged.warnings if text not in self.warnings]
        results = compose(job, answer, judged)
        self.evidence.note(job, answer, results)
        return [self.deviations.apply(result, job.entry) for result in results]

    def runner(self, entry: Entry) -> AnyRunner:
        """A runner of a subject, with the process that the survey left, if it left one."""
        subject = entry.subject
        if subject.form == FOLDER:
            return FolderRunner(entry, Path(self.selection.graded[1]))
        ready = self._ready.pop(subject.id, None)
        if subject.form == COMMAND:
            kept = ready if isinstance(ready, CommandRunner) else None
            command = kept or CommandRunner(entry, self.options)
            command.expect(job for job in self.plan.jobs if job.entry.subject == subject)
            return command
        return Runner(entry, self.options, ready if isinstance(ready, Worker) else None)

    def end(self, id: str, runner: AnyRunner) -> None:
        """Ends what ran a subject, and keeps what it said of itself."""
        self.starts[id] = runner.starts
        if isinstance(runner, Runner) and runner.settings:
            self.settings[id] = runner.settings
        runner.close()

    def close(self) -> None:
        """Ends all processes."""
        if self._runner is not None:
            entry, runner = self._runner
            self.end(entry.subject.id, runner)
            self._runner = None
        for process in self._ready.values():
            process.close()
        self._ready.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self.folder)

    def _runner_of(self, entry: Entry) -> AnyRunner:
        if self._runner is None or self._runner[0] is not entry:
            if self._runner is not None:
                before, runner = self._runner
                self.end(before.subject.id, runner)
            self._runner = entry, self.runner(entry)
        return self._runner[1]


def _task(job: Job, answer: Answer) -> Task | None:
    """What there is to judge about an answer."""
    if answer.outcome.status != "ok":
        return None
    arithmetic = job.entry.arithmetic(job.dtype)
    conventions = of_values(job.entry.declaration.conventions)
    outcome = answer.outcome
    asked = job.case.id, job.dtype, arithmetic, outcome.outputs
    return Task(*asked, conventions, outcome.excess)


class _Run:
    """One parallel run: threads that drive subjects, and the queue of what they finished."""

    def __init__(self, engine: Engine, judges: Judges, jobs: Collection[Job]) -> None:
        self._engine = engine
        self._judges = judges
        self._all = jobs
        self._jobs = dict[str, list[Job]]()
        for job in jobs:
            self._jobs.setdefault(job.entry.subject.id, []).append(job)
        self._waiting = [id for id in engine.order if id in self._jobs]
        self._runners = list[AnyRunner]()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[list[Result] | BaseException] = queue.SimpleQueue()

    def run(self, report: Report) -> None:
        count = min(self._engine.options.parallel, len(self._waiting))
        threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            for _ in self._all:
                self._hand_over(report)
        finally:
            self._stopped.set()
            with self._lock:
                for runner in self._runners:
                    runner.interrupt()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def interrupt(self) -> None:
        """Ends the run instead of handing over what comes next; from any thread."""
        self._done.put(InterruptedError("the run was ended"))

    def run_here(self, report: Report) -> None:
        """The same for a loaded port, which is called by the thread that asks."""
        runner = self._engine.runner(next(iter(self._all)).entry)
        waiting = 0
        try:
            for job in self._all:
                self._put(job, runner.answer(job))
                waiting += 1
                while waiting and not self._done.empty():
                    self._hand_over(report)
                    waiting -= 1
            for _ in range(waiting):
                self._hand_over(report)
        finally:
            runner.close()

    def _hand_over(self, report: Report) -> None:
        """Reports the results that come next; raises what went wrong with them."""
        results = self._done.get()
        if isinstance(results, BaseException):
            raise results
        for result in results:
            report(result)

    def _drive(self) -> None:
        """Runs subjects until none is waiting."""
        while not self._stopped.is_set():
            with self._lock:
                if not self._waiting:
                    return
                id = self._waiting.pop(0)
                try:
                    runner = self._engine.runner(self._jobs[id][0].entry)
                except BaseException as error:  # such as no room for temporary files
                    self._done.put(error)
                    return
                self._runners.append(runner)
            try:
                for job in self._jobs[id]:
                    if self._stopped.is_set():
                        return
                    self._put(job, runner.answer(job))
            except BaseException as error:  # handed to the thread that waits for results
                self._done.put(error)
                return
            finally:
                self._engine.end(id, runner)

    def _put(self, job: Job, answer: Answer) -> None:
        task = _task(job, answer)
        if task is None:
            self._done.put(self._engine.finish(job, answer, None))
            return

        def finished(judged: Future[Judged]) -> None:
            if judged.cancelled():
                return
            try:
                self._done.put(self._engine.finish(job, answer, judged.result()))
            except BaseException as error:  # handed to the thread that waits for results
                self._done.put(error)

        self._judges.submit(task).add_done_callback(finished)
