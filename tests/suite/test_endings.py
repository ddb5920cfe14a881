"""Ends: of daemons that nothing marks any more, of judges that are stuck, of runs by signals."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from qkvac.engine.engine import Engine
from qkvac.engine.judging import Judge, JudgeProcess, Judges, Room, Task
from qkvac.isolation import descendants
from qkvac.spec.attention import Arithmetic
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write
from qkvac.tests.suite.hostile import MARK, PRELUDE, bad, outlived
from qkvac.tests.suite.workers import Ports, ask, closing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", f"echo $$ > {__file__}.pid; exec sleep 600"], {})
    os._exit(0)
while not os.path.exists(__file__ + ".pid"): time.sleep(0.01)
"""
"""Leaves session, parent and environment behind; its number is in a file beside the port."""


def number(folder: Path) -> int:
    """The number of the daemon that a port in a folder has started."""
    return int(next(folder.glob("*.pid")).read_text())


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- daemons ---------------------------------------------------------------------------------


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    with closing(tmp_path) as made:
        yield made


def test_a_daemon_that_nothing_marks_ends_with_its_worker(ports: Ports, tmp_path: Path) -> None:
    worker = ports(bad(DAEMON))
    assert ask(worker, 1).ok
    pid = number(tmp_path)
    assert lives(pid)
    assert not Path(f"/proc/{pid}/environ").read_bytes().count(b"QKVAC")
    worker.close()
    assert eventually(lambda: not lives(pid), 5.0)


def test_the_mark_alone_does_not_find_it(
    ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvac.isolation.supervised.kill_descendants", lambda pid: None)
    worker = ports(bad(DAEMON))
    assert ask(worker, 1).ok
    worker.close()
    pid = number(tmp_path)
    try:
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


CRASHING = PRELUDE + bad(DAEMON + "os._exit(3)")

PROGRAM = f"import os, time\n{DAEMON}raise SystemExit(3)\n"


@pytest.mark.parametrize("form", ["port", "program"])
def test_a_daemon_of_one_that_died_ends_with_the_command(tmp_path: Path, form: str) -> None:
    file = tmp_path / "my_port.py"
    file.write_text(CRASHING if form == "port" else PROGRAM, encoding="utf-8")
    words = "--profile attention --dtype float32 --case normal/1x20x7 -n 1"
    named = [str(file)] if form == "port" else ["--", sys.executable, str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "qkvac", "check", *shlex.split(words), *named],
        capture_output=True,
        text=True,
    )
    assert "exit status 3" in done.stdout, done
    assert done.returncode == 1
    assert not lives(number(tmp_path))


def test_children_of_others_are_left_alone() -> None:
    """A process that does not adopt, such as one that uses the library, kills no child of its."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        descendants.kill_orphans()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


# --- judges ----------------------------------------------------------------------------------


def task(case: str = f"attention/{SMALL}", rows: int = 6) -> Task:
    arithmetic = Arithmetic.for_dtype("float32")
    return Task(case, "float32", arithmetic, {"C": np.zeros((rows, 2), np.float32)})


def test_a_judge_that_is_stopped_costs_one_answer() -> None:
    judge = JudgeProcess(None, patience=120.0)
    try:
        assert not judge.judge(task()).error
        assert judge._process is not None
        judge._patience = 0.5
        os.kill(judge._process.pid, signal.SIGSTOP)
        assert judge.judge(task()).error.startswith("a judging process gave no answer within 0.5 s")
        judge._patience = 120.0
        assert judge.judge(task()).verdicts["C"]["status"] == "failed"
    finally:
        judge.close()


def test_a_judge_that_ends_costs_one_answer() -> None:
    judge = JudgeProcess(None)
    try:
        judge.start()
        assert judge._process is not None
        os.kill(judge._process.pid, signal.SIGKILL)
        assert judge.judge(task()).error.startswith("a judging process ended")
        assert not judge.judge(task()).error
    finally:
        judge.close()


def test_a_stopped_judge_does_not_keep_a_run_from_ending() -> None:
    judge = JudgeProcess(None)
    assert not judge.judge(task()).error
    process = judge._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")
    assert eventually(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    judge.close()
    assert process.returncode == -signal.SIGKILL


def test_there_are_no_more_judges_than_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    real = Judges.__init__

    def count(self: Judges, number: int, *given: object) -> None:
        counts.append(number)
        real(self, number, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Judges, "__init__", count)
    selection = Selection(port=write(tmp_path), dtypes=("float32",), profiles=("attention",))
    for cases in ((SMALL,), (SMALL, MAIN)):
        chosen = Selection(**{**vars(selection), "cases": cases})
        with Engine(chosen, Options(cache=False, workers=4)) as engine:
            engine.run(lambda result: None)
    assert counts == [1, 2]


def test_at_most_one_large_answer_waits() -> None:
    room = Room(100)
    for weight in (40, 40):
        room.enter(weight)
    entered = list[int]()

    def enter(weight: int) -> None:
        room.enter(weight)
        entered.append(weight)

    threads = [threading.Thread(target=enter, args=(w,), daemon=True) for w in (1000, 2000)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert not entered
    room.leave(40)
    time.sleep(0.1)
    assert not entered
    room.leave(40)
    assert eventually(lambda: len(entered) == 1)
    time.sleep(0.1)
    assert len(entered) == 1
    room.leave(entered[0])
    assert eventually(lambda: len(entered) == 2)


# --- large answers ---------------------------------------------------------------------------

LARGE = "return {'C': np.zeros((1 << 12, 1 << 12), X.dtype), 'Q': X @ Wq}"


def test_what_is_larger_than_declared_does_not_travel(ports: Ports) -> None:
    worker = ports(bad(LARGE))
    asked = {"limits": {"Q": 100, "C": 100}}
    outcome = ask(worker, 1, **asked)
    assert outcome.ok
    assert outcome.outputs.keys() == {"Q"}
    assert outcome.excess == {"C": ("float32", (1 << 12, 1 << 12))}
    assert ask(worker, 4, **asked).outputs.keys() == {"Q", "K", "V", "A", "C"}
    assert ask(worker, 1, limits={}).outputs["C"].nbytes == 1 << 26


def test_its_verdict_tells_its_shape() -> None:
    small = task()
    judge = Judge(None)
    shape = (1 << 20, 1 << 20)
    large = Task(small.case, small.dtype, small.arithmetic, {}, {}, {"C": ("float32", shape)})
    process = JudgeProcess(None)
    try:
        for judged in (judge.judge(large), process.judge(large)):
            assert not judged.error
            verdict = judged.verdicts["C"]
            assert (verdict["status"], verdict["clause"]) == ("failed", "contract")
            assert verdict["reason"] == (
                "C: axis 0 (n) is 1048576, expected 6; axis 1 (c) is 1048576, expected 2"
            )
    finally:
        process.close()


def test_a_port_that_returns_far_too_much_fails_its_contract(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        def attention(X, *W):
            Q, K, V, A, C = plain(X, *W)
            return Q, K, V, A, np.broadcast_to(C[:1, :1], (1 << 18, 1 << 18))
        """,
    )
    results = {}
    selection = Selection(port=port, profiles=("attention",), dtypes=("float32",), cases=(SMALL,))
    with Engine(selection, Options(cache=False, workers=1)) as engine:
        engine.run(lambda result: results.update({result.cell.quantity: result}))
    assert (results["C"].status, results["C"].clause) == ("failed", "contract")
    assert "axis 0 (n) is 262144, expected 6" in (results["C"].reason or "")
    assert {results[name].status for name in "QKVA"} == {"passed"}


# --- signals ---------------------------------------------------------------------------------

SLOW = """
def attention(X, *W):
    if len(X) > 6:
        open(os.environ["QKVAC_TEST_SIGNAL"], "w").close()
        time.sleep(600)
    return plain(X, *W)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_run_with_what_was_found(tmp_path: Path, sent: signal.Signals) -> None:
    port = write(tmp_path, SLOW)
    now, record, temporary = tmp_path / "now", tmp_path / "run.jsonl", tmp_path / "tmp"
    temporary.mkdir()
    environment = {"QKVAC_TEST_SIGNAL": str(now), "TMPDIR": str(temporary), MARK: str(tmp_path)}
    words = f"check {port} --profile attention --dtype float32 --case {SMALL} --case {MAIN}"
    process = subprocess.Popen(
        [sys.executable, "-m", "qkvac", *shlex.split(words), "--record", str(record)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        # A shell in the background has Ctrl-C ignored, `nohup` the end of a terminal.
        preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL),
    )
    judged = f'{SMALL}","quantity":"C"'
    assert eventually(lambda: now.exists() and judged in record.read_text(encoding="utf-8"))
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + sent, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert "cells" in out
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert {line["kind"] for line in lines} == {"header", "result"}
    assert not outlived(str(tmp_path))
    assert not list(temporary.iterdir())


def test_a_signal_while_a_port_is_loaded_ends_the_command(tmp_path: Path) -> None:
    text = 'open(os.environ["QKVAC_TEST_SIGNAL"], "w").close(); time.sleep(600)'
    port, now = write(tmp_path, text), tmp_path / "now"
    process = subprocess.Popen(
        [sys.executable, "-m", "qkvac", "check", port],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "QKVAC_TEST_SIGNAL": str(now), MARK: str(tmp_path)},
    )
    assert eventually(now.exists)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (143, "")
    assert not outlived(str(tmp_path))


def test_what_is_ignored_stays_ignored() -> None:
    program = (
        "import os, signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from qkvac.engine.endings import Ended, endings\n"
        "with endings():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except Ended as error:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print(error.number)\n"
        "print(signal.getsignal(signal.SIGTERM).name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["15", "SIG_DFL"], "")
