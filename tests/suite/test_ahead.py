"""Results that are there before they are asked for: the same, in any order, and until the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qkvac.engine.ahead import Ahead
from qkvac.engine.engine import Engine
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write

QUIET = Options(workers=1)


def engine_of(port: str) -> Engine:
    cases = tuple(f"attention/{name}" for name in (SMALL, MAIN))
    return Engine(Selection(port=port, dtypes=("float32",), cases=cases), QUIET)


def test_results_are_those_of_single_cells_in_any_order(tmp_path: Path) -> None:
    with engine_of(write(tmp_path)) as engine:
        asked = {cell.id: engine.result(cell).digest for cell in engine.cells}
    with engine_of(write(tmp_path)) as engine:
        ahead = Ahead(engine, engine.plan.jobs)
        found = {cell.id: ahead.result(cell).digest for cell in reversed(engine.cells)}
        again = [ahead.result(cell) for cell in engine.cells]
        ahead.close()
    assert found == asked
    assert len(again) == len(asked)
    assert list(engine.starts.values()) == [1]


def test_nothing_but_the_jobs_is_run(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    port = write(
        tmp_path,
        f"""
        def attention(X, *W):
            with open({str(log)!r}, "a") as file:
                file.write(f"{{len(X)}}\\n")
            return plain(X, *W)
        """,
    )
    with engine_of(port) as engine:
        jobs = [job for job in engine.plan.jobs if job.case.id.endswith(SMALL)]
        ahead = Ahead(engine, jobs)
        assert ahead.result(jobs[0].cells[0]).ok
        with pytest.raises(KeyError):
            ahead.result(engine.plan.jobs[-1].cells[0])
        ahead.close()
    assert set(log.read_text().split()) == {"6"}


def test_closing_ends_a_call_that_would_not_end(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    port = write(
        tmp_path,
        f"""
        def attention(X, *W):
            if len(X) > 6:
                open({str(started)!r}, "w").close()
                time.sleep(3600)
            return plain(X, *W)
        """,
    )
    with engine_of(port) as engine:
        ahead = Ahead(engine, engine.plan.jobs)
        small, *_, main = engine.plan.jobs
        assert ahead.result(small.cells[0]).ok
        started.read_text()  # blocks until the call has begun
        ahead.close()
        with pytest.raises(InterruptedError, match="ended"):
            ahead.result(main.cells[0])


def test_what_goes_wrong_with_the_run_is_raised_where_a_result_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(write(tmp_path)) as engine:

        def broken(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(engine, "finish", broken)
        ahead = Ahead(engine, engine.plan.jobs)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            ahead.result(engine.cells[0])
        ahead.close()
