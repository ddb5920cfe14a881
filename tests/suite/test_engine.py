"""The engine: cells in order, processes that may die, and one judge that loads no framework."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from qkvac.cells import Cell, Result, Status
from qkvac.engine.engine import Engine
from qkvac.engine.judging import JudgeProcess
from qkvac.execution.plan import plan
from qkvac.execution.survey import survey
from qkvac.isolation.process import BackendError, Target, Worker
from qkvac.isolation.worker import BACKENDS
from qkvac.spec.cases.catalogue import cases
from qkvac.subjects.registry import backend
from qkvac.subjects.roster import Roster
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.packages import OWN
from qkvac.targets.ports import FRAMEWORKS
from qkvac.tests.suite.engine_ports import MAIN, ONE, SMALL, run, statuses, write
from qkvac.usage import UsageError

QUIET = Options(workers=1)
NARROW = next(case for case in cases() if "float64" not in case.dtypes)
OK = (Status.PASSED, Status.NOT_REPORTED)


@pytest.fixture(scope="module")
def numpy_engine() -> Iterator[Engine]:
    cases = ("attention/normal/*", "attention/layout-X-F/*", "embedding/normal/*")
    selection = Selection(backends=("numpy/eager",), cases=cases)
    with Engine(selection, QUIET) as made:
        yield made


def test_cells_of_a_subject_a_dtype_and_a_case_lie_side_by_side(numpy_engine: Engine) -> None:
    def part(cell: Cell) -> tuple[str, str, str]:
        return cell.subject.id, cell.dtype, cell.case

    runs = [key for key, _ in groupby(numpy_engine.cells, part)]
    assert len(runs) == len(set(runs))
    dtypes = [key for key, _ in groupby(numpy_engine.cells, lambda cell: cell.dtype)]
    assert dtypes == ["float64", "float32", "bfloat16", "float16"]


def test_a_cells_id_names_all_of_it(numpy_engine: Engine) -> None:
    assert numpy_engine.cells[0].id == f"numpy/eager@cpu-float64-attention/{SMALL}-Q"
    assert len({cell.id for cell in numpy_engine.cells}) == len(numpy_engine.cells)


def test_a_run_and_single_results_agree(numpy_engine: Engine) -> None:
    ran = list[Result]()
    numpy_engine.run(ran.append)
    asked = [numpy_engine.result(cell) for cell in numpy_engine.cells]

    def essence(result: Result) -> tuple[object, ...]:
        # Bounds are sums by BLAS, whose order depends on its number of threads.
        ratio = f"{result.ratio or 0.0:.9g}"
        return result.cell, result.status, result.grade, result.digest, ratio, result.reason

    assert set(map(essence, ran)) == set(map(essence, asked))
    assert len(ran) == len(asked)


def test_a_single_result_starts_one_process(numpy_engine: Engine) -> None:
    with Engine(numpy_engine.selection, QUIET) as engine:
        for cell in engine.cells[:60]:
            engine.result(cell)
        engine.result(engine.cells[0].id)
    assert engine.starts == {"numpy/eager@cpu": 1}


def test_an_unknown_cell_is_a_key_error(numpy_engine: Engine) -> None:
    with pytest.raises(KeyError):
        numpy_engine.result("numpy/eager@cpu-float64-attention/normal/6x3x2-Z")


def test_several_workers_find_the_same(tmp_path: Path) -> None:
    port = write(tmp_path)

    def found(workers: int) -> list[tuple[str, str, str | None]]:
        results = run(port, "normal/*", dtypes=("float64", "float32"), workers=workers)
        return sorted((r.cell.id, r.status, r.digest) for r in results)

    assert found(1) == found(3)


# --- ports that die ------------------------------------------------------------------------


def test_a_crash_costs_the_cells_of_its_case(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        def attention(X, *W):
            if len(X) == 33:
                os.kill(os.getpid(), signal.SIGSEGV)
            return plain(X, *W)
        """,
    )
    selection = Selection(port=port, dtypes=("float32",), cases=(SMALL, MAIN, ONE))
    results = list[Result]()
    with Engine(selection, QUIET) as engine:
        engine.run(results.append)
    assert set(statuses(results, MAIN).values()) == {Status.CRASH}
    assert len(statuses(results, MAIN)) > 6
    for case in (SMALL, ONE):
        assert set(statuses(results, case).values()) <= set(OK)
    assert engine.starts == {"my_port@cpu": 2}
    crash = next(result for result in results if result.status == Status.CRASH)
    assert "SIGSEGV" in (crash.reason or "")


def test_a_hang_costs_the_cells_of_its_case(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        def attention(X, *W):
            while len(X) == 1:
                time.sleep(1)
            return plain(X, *W)
        """,
    )
    results = run(port, SMALL, ONE, timeout=1.0)
    assert set(statuses(results, ONE).values()) == {Status.TIMEOUT}
    assert set(statuses(results, SMALL).values()) <= set(OK)


def test_the_rest_is_skipped_after_three_silent_cases(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(X, *W): os._exit(9)")
    results = run(port, "normal/*", dtypes=("float32",))
    by_case = [next(iter(group)) for _, group in groupby(results, lambda r: r.cell.case)]
    assert [r.status for r in by_case[:4]] == [Status.CRASH] * 3 + [Status.SKIPPED]
    assert {r.reason for r in by_case[3:]} == {"port unresponsive"}


def test_an_exception_is_an_answer(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(X, *W): raise ValueError('no such luck')")
    results = run(port, "normal/*")
    assert {result.status for result in results} == {Status.ERROR}
    assert "no such luck" in (results[0].reason or "")
    assert "no such luck" in (results[0].detail or "")


def test_a_crash_in_a_check_is_the_checks_alone(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        calls = 0
        def attention(X, *W):
            global calls
            calls += 1
            once = __file__ + ".once"
            if calls == 3 and not os.path.exists(once):
                open(once, "x").close()  # the first call of `state`, after two of `repeat`
                os._exit(1)
            return plain(X, *W)
        """,
    )
    found = statuses(run(port, MAIN), MAIN)
    assert found["state"] == Status.CRASH
    assert {found[name] for name in ("Q", "K", "V", "A", "C", "repeat", "scaling")} == {"passed"}


def test_memory_is_limited(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(X, *W): return np.ones(1 << 31, np.uint8)")
    results = run(port, SMALL, memory=1 << 30)
    assert {result.status for result in results} == {Status.ERROR}
    assert "out of memory" in (results[0].reason or "")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_exception_of_the_receiver_ends_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKVAC_TEST_RUN", str(tmp_path))
    port = write(
        tmp_path,
        """
        def attention(X, *W):
            time.sleep(60 if len(X) > 6 else 0)
            return plain(X, *W)
        """,
    )

    def interrupt(result: Result) -> None:
        raise KeyboardInterrupt

    selection = Selection(port=port, dtypes=("float32",), cases=("normal/*",))
    with Engine(selection, QUIET) as engine, pytest.raises(KeyboardInterrupt):
        engine.run(interrupt)
    deadline = time.monotonic() + 20
    while started_with("QKVAC_TEST_RUN", str(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def started_with(name: str, value: str) -> list[str]:
    """Living processes, this one apart, that have a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{name}={value}".encode() in environment and path.name != str(os.getpid()):
            found.append(path.name)
    return found


# --- what is offered -----------------------------------------------------------------------


def test_float64_is_offered_where_it_comes_back(tmp_path: Path) -> None:
    results = run(write(tmp_path), SMALL, dtypes=())
    assert {result.cell.dtype for result in results} == {"float64", "float32"}
    assert {result.status for result in results} <= set(OK)


def test_float64_that_comes_back_as_float32_is_one_cell(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        "def attention(*arrays): return plain(*(a.astype(np.float32) for a in arrays))",
    )
    results = run(port, SMALL, MAIN, dtypes=())
    wide = [result for result in results if result.cell.dtype == "float64"]
    assert [(r.status, r.reason) for r in wide] == [("unsupported", "float64 in, float32 out")]
    assert {r.status for r in results if r.cell.dtype == "float32"} <= set(OK)


def test_declared_dtypes_are_tested_as_declared(tmp_path: Path) -> None:
    results = run(write(tmp_path, "QKVAC = {'dtypes': ['float16']}"), SMALL, dtypes=())
    assert {result.cell.dtype for result in results} == {"float16"}


def test_what_a_port_does_not_support_is_counted(tmp_path: Path) -> None:
    found = run(write(tmp_path), "empty/*", "layout-X-F/*", SMALL)
    reasons = {(r.cell.case, r.status, r.reason) for r in found if r.status == "unsupported"}
    assert reasons == {
        ("attention/empty/0x20x7", "unsupported", "empty"),
        ("attention/layout-X-F/33x20x7", "unsupported", "layouts"),
    }
    declared = write(tmp_path, "QKVAC = {'supports': 'all'}", "declared")
    assert "unsupported" not in statuses(run(declared, "layout-X-F/*")).values()


def test_not_implemented_is_unsupported_with_its_message(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(X, *W): raise NotImplementedError('only on Sundays')")
    results = run(port, SMALL)
    assert {(r.status, r.reason) for r in results} == {("unsupported", "only on Sundays")}


def test_modes_of_a_port_are_subjects(tmp_path: Path) -> None:
    text = """
    QKVAC = {"modes": ["slow", "fast"]}
    def attention(X, *W):
        Q, K, V, A, C = plain(X, *W)
        return Q, K, V, A, C if os.environ["QKVAC_MODE"] == "slow" else 2 * C
    """
    results = run(write(tmp_path, text), SMALL)
    last = {r.cell.subject.id: r.status for r in results if r.cell.quantity == "C"}
    assert last == {"my_port/slow@cpu": "passed", "my_port/fast@cpu": "failed"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def attention(:", "cannot be imported"),
        ("raise RuntimeError('broken')", "broken"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("def atention(X, Wq, Wk, Wv): pass\ndel attention", "did you mean `attention`"),
        ("QKVAC = {'dtypes': ['float31']}", "float31"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
def test_a_port_that_cannot_be_loaded_is_one_clear_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Engine(Selection(port=write(tmp_path, text)), QUIET)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- adapters ------------------------------------------------------------------------------


def test_compiled_modes_run_marked_cases_and_count_the_rest() -> None:
    roster = survey(Selection(backends=("numpy",)), QUIET)
    entry = roster.entries[0]
    compiled = entry.subject.__class__("numpy", "jit", "cpu")
    raw = {**entry.raw, "modes": ["jit"], "shapes": {"jit": "few"}, "evidence": {}}
    twin = Roster((entry, type(entry)(compiled, raw, entry.functions, {})))
    mission = Selection(profiles=("attention",))
    made = plan(twin, mission)
    ran = {job.case.id for job in made.jobs if job.entry.subject.mode == "jit"}
    assert ran == {case.id for case in cases() if case.compiled}
    every = sum(len(case.dtypes) for case in cases() if case.tier == "default")
    few = sum(len(case.dtypes) for case in cases() if case.compiled)
    assert made.left_out == {"numpy/jit@cpu": every - few}
    assert plan(twin, replace(mission, tier="full")).left_out == {}


def test_a_roster_survives_being_sent(tmp_path: Path) -> None:
    for selection in (Selection(backends=("numpy",)), Selection(port=write(tmp_path))):
        roster = survey(selection, QUIET)
        sent = Roster.from_json(roster.to_json())
        assert sent == roster
        assert plan(sent, selection).cells == plan(roster, selection).cells


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(backends=("trch",)), "did you mean torch?"),
        (Selection(backends=("torch/jit",)), "torch/compile"),
        (Selection(dtypes=("flaot32",)), "did you mean float32?"),
        (Selection(profiles=("atention",)), "did you mean attention?"),
        (Selection(cases=("normal/33x20x8",)), "did you mean"),
        (Selection(backends=("numpy",), devices=("cuda",)), "unknown device 'cuda'"),
        (Selection(cases=(NARROW.id,), dtypes=("float64",)), "no case is left"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(selection: Selection, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Engine(selection, QUIET)
    assert message in str(caught.value)


def test_without_frameworks_numpy_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OWN[1:]:
        monkeypatch.setitem(backend(name).__dict__, "lacking", (name,))
        monkeypatch.setitem(backend(name).__dict__, "installed", False)
    roster = survey(Selection(), QUIET)
    assert [entry.subject.id for entry in roster.entries] == ["numpy/eager@cpu", "numpy/loop@cpu"]
    assert roster.notes == tuple(f"{name} is not installed" for name in OWN[1:])


def test_what_is_not_installed_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OWN[1:]:
        monkeypatch.setitem(backend(name).__dict__, "lacking", ("torch",))
        monkeypatch.setitem(backend(name).__dict__, "installed", False)
    without = ", ".join(name for name in OWN[1:] if name != "torch")
    assert survey(Selection(), QUIET).notes == (f"torch is not installed: without {without}",)


def test_a_mode_that_cannot_run_here_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(backend("numpy").__dict__, "unavailable", lambda mode: "needs an abacus")
    results = run(None, SMALL, backends=("numpy",))
    assert {(r.status, r.reason) for r in results} == {("skipped", "needs an abacus")}


# --- which process imports what ------------------------------------------------------------


def test_judging_processes_import_no_framework() -> None:
    judge = JudgeProcess(None)
    try:
        assert not (FRAMEWORKS - {"numpy"}) & set(judge.modules())
    finally:
        judge.close()


def test_a_check_imports_no_framework(tmp_path: Path) -> None:
    program = (
        "import sys, qkvac\n"
        f"report = qkvac.check({write(tmp_path)!r}, cases=[{SMALL!r}])\n"
        "assert report.passed, report\n"
        "print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    environment = {**os.environ, "QKVAC_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert not (FRAMEWORKS - {"numpy"}) & set(done.stdout.split())


@pytest.mark.parametrize("name", OWN)
def test_no_two_frameworks_share_a_process(name: str) -> None:
    found = backend(name)
    if not found.installed:
        pytest.skip(f"{name} is not installed")
    with Worker(Target(backend=name, mode=found.modes[0])) as worker:
        try:
            loaded = set(worker.hello().environment["frameworks"])
        except BackendError as error:
            pytest.skip(str(error))
    heavy = loaded & BACKENDS
    assert len(heavy) <= 1
    assert name not in BACKENDS or heavy == {name}
    if name == "numpy":
        assert not loaded
