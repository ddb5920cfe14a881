"""Results before they are asked for: an engine that runs in a thread of its own.

pytest asks for one cell at a time. Behind it the engine keeps as many subjects and judges busy as
there are cores, so that a run in one process of pytest takes no longer than `qkvac run`, and
nothing has to travel between processes of pytest.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from qkvac.cells import Cell, Result
from qkvac.engine.engine import Engine
from qkvac.execution.plan import Job


class Ahead:
    """The results of some jobs of an engine; has to be closed before the engine is."""

    def __init__(self, engine: Engine, jobs: Collection[Job]) -> None:
        """Starts to run the jobs."""
        self._engine = engine
        self._jobs = jobs
        self._results = dict[str, Result]()
        self._ending: BaseException | None = None
        self._closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def result(self, cell: Cell) -> Result:
        """The result of a cell of the jobs, when it is there; raises what ended the run."""
        with self._news:
            self._news.wait_for(lambda: cell.id in self._results or self._ending is not None)
            if cell.id not in self._results and self._ending is not None:
                raise self._ending
            return self._results[cell.id]

    def close(self) -> None:
        """Ends what is still running."""
        self._closed = True
        self._engine.interrupt()
        self._thread.join()

    def _run(self) -> None:
        ending: BaseException = KeyError("no cell of these jobs")
        try:
            self._engine.run(self._take, self._jobs)
        except BaseException as error:  # raised where results are waited for
            ending = error
        with self._news:
            self._ending = ending
            self._news.notify_all()

    def _take(self, result: Result) -> None:
        if self._closed:
            raise InterruptedError("the run was ended")
        with self._news:
            self._results[result.cell.id] = result
            self._news.notify_all()
