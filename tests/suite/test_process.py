"""Workers: whatever a port does, a call has an outcome and nothing is left running."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qkvac.worker
from qkvac import fpenv
from qkvac.packages import adapter
from qkvac.process import (
    BackendError,
    Outcome,
    PortError,
    Target,
    Worker,
    WorkerCrash,
    WorkerTimeout,
    default_memory,
)
from qkvac.protocol import Message
from qkvac.tests.suite.hostile import HARMLESS, HOSTILE, MARK, PRELUDE, bad, marked
from qkvac.worker import BACKENDS, Server, plain

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def arrays(n: int, dtype: Any = "f4") -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(n).standard_normal
    return {
        "X": draw((n, 5)).astype(dtype),
        **{name: draw((5, 3)).astype(dtype) for name in ("Wq", "Wk", "Wv")},
    }


class Ports:
    """Writes ports to files and gives workers for them, which all carry one mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.workers: list[Worker] = []

    def __call__(self, body: str, **options: Any) -> Worker:
        """A worker for a port of which `attention` is `good` unless `body` says otherwise."""
        path = self.folder / f"port{len(self.workers)}.py"
        path.write_text(PRELUDE + textwrap.dedent(body), encoding="utf-8")
        environment = {MARK: self.mark, **options.pop("environment", {})}
        self.workers.append(
            Worker(
                Target(port=str(path)),
                **{"timeout": 20.0, "memory": 4 << 30, **options},
                environment=environment,
            )
        )
        return self.workers[-1]


def test_an_interrupt_ends_the_call_that_waits_and_refuses_later_ones(ports: Ports) -> None:
    worker = ports("def attention(*arrays): time.sleep(60)")
    worker.hello()
    killer = threading.Timer(0.3, worker.interrupt)
    started = time.monotonic()
    killer.start()
    assert worker.call("attention", arrays(4)).status == "crash"
    assert time.monotonic() - started < 15
    again = worker.call("attention", arrays(4))
    assert (again.status, again.reason) == ("crash", "the run was ended")


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    made = Ports(tmp_path)
    yield made
    for worker in made.workers:
        worker.close()
    if sys.platform == "linux":
        assert not marked(made.mark), "something is left running"


def ask(worker: Worker, n: int, **options: Any) -> Outcome:
    return worker.call("attention", arrays(n), dtype="float32", **options)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_call_has_an_outcome_and_the_next_one_works(ports: Ports, name: str) -> None:
    body, status, words, starts = HOSTILE[name]
    worker = ports(bad(body), timeout=1.0 if status == "timeout" else 20.0)
    worker.hello()
    outcome = ask(worker, 1)

    assert re.fullmatch(status, outcome.status), outcome
    assert re.search(words, outcome.reason), outcome
    assert len(outcome.reason.splitlines()) == 1
    assert not outcome.outputs
    after = ask(worker, 4, timeout=20.0)
    assert after.ok, after
    assert after.outputs["C"].shape == (4, 3)
    assert worker.starts <= starts


def test_a_traceback_shows_the_port_and_nothing_of_ours(ports: Ports) -> None:
    outcome = ask(ports(bad("1 / 0")), 1)
    assert "port0.py" in outcome.traceback
    assert "worker.py" not in outcome.traceback
    assert outcome.traceback.rstrip().endswith("division by zero")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_port_does_besides_harms_nothing(ports: Ports, name: str) -> None:
    worker = ports(bad(HARMLESS[name]))
    for n in (1, 4, 4):
        outcome = ask(worker, n)
        assert outcome.ok, outcome
        assert outcome.outputs["C"].shape == (n, 3)
    assert worker.starts == 1
    assert len(worker.output) <= 64 << 10


def test_a_crash_ends_with_forked_children_that_hold_the_pipes(ports: Ports) -> None:
    worker = ports(bad("if os.fork(): os._exit(5)\nwhile True: print('quack')"))
    start = time.monotonic()
    assert "exit status 5" in ask(worker, 1).reason
    assert time.monotonic() - start < 5


def test_what_a_dying_port_printed_is_kept(ports: Ports) -> None:
    outcome = ask(ports(bad("print('a' * 99_999 + 'last words', flush=True); os._exit(1)")), 1)
    assert outcome.output.rstrip().endswith("last words")
    assert len(outcome.output) <= 64 << 10


ENVIRONMENT = {
    "upward": ("libm.fesetround(0x800)", "rounding upward"),
    "downward": ("libm.fesetround(0x400)", "rounding downward"),
    "toward-zero": ("libm.fesetround(0xC00)", "rounding toward zero"),
    "flushes": (
        "state = ctypes.create_string_buffer(64); libm.fegetenv(state)\n"
        "raw = bytearray(state.raw); raw[28] |= 0x40; raw[29] |= 0x80; libm.fesetenv(bytes(raw))",
        "subnormals flushed",
    ),
}


@pytest.mark.skipif(
    os.uname().machine != "x86_64" or sys.platform != "linux", reason="sets x86-64 registers"
)
@pytest.mark.parametrize("name", ENVIRONMENT)
def test_a_changed_floating_point_environment_is_reported_and_undone(
    ports: Ports, name: str
) -> None:
    body, words = ENVIRONMENT[name]
    worker = ports("libm = ctypes.CDLL('libm.so.6')\n" + bad(body))
    assert ask(worker, 1).fp_environment == words
    after = ask(worker, 4)
    assert after.fp_environment == "unchanged"
    assert worker.starts == 1
    assert fpenv.describe() == ""


def test_an_environment_set_while_loading_is_what_the_port_runs_in(ports: Ports) -> None:
    if os.uname().machine != "x86_64" or sys.platform != "linux":
        pytest.skip("sets x86-64 registers")
    worker = ports("ctypes.CDLL('libm.so.6').fesetround(0x800)\nattention = good\n")
    assert worker.hello().environment["fp_environment"] == "rounding upward"
    assert ask(worker, 4).fp_environment == "unchanged"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("X[0, 0] = 0", {"X"}, id="entry"),
        pytest.param("Wk *= -1; Wk *= -1", set(), id="there-and-back"),
        pytest.param("Wq += 0", set(), id="same-bits"),
        pytest.param("X[X == X] = -0.0", {"X"}, id="sign-of-zero"),
        pytest.param("X.flags.writeable = False", {"X"}, id="flag"),
        pytest.param("Wv.shape = (3, 5); Wv = Wv.reshape(5, 3)", {"Wv"}, id="shape"),
        pytest.param("X.base is not None and X.base.fill(7)", {"X"}, id="base"),
    ],
)
def test_changed_inputs_are_named(ports: Ports, body: str, expected: set[str]) -> None:
    layouts = {"X": "strided"} if "base" in body else {}
    outcome = ask(ports(bad(body)), 1, layouts=layouts)
    assert outcome.ok, outcome
    assert set(outcome.mutated) == expected


def test_a_read_only_input_stays_as_it_is(ports: Ports) -> None:
    worker = ports(bad("X *= 2"))
    assert ask(worker, 1).mutated == ("X",)
    outcome = ask(worker, 1, layouts={"X": "readonly"})
    assert "read-only" in outcome.reason
    forced = ports(bad("X.flags.writeable = True; X *= 2"))
    assert ask(forced, 1, layouts={"X": "readonly"}).mutated == ("X",)


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed", "offset", "readonly"])
def test_layouts_reach_the_port_with_equal_values(ports: Ports, layout: str) -> None:
    body = "def attention(X, Wq, Wk, Wv):\n    print(X.strides, X.flags.writeable)\n    return X\n"
    worker = ports(body)
    inputs = arrays(4)
    outcome = worker.call("attention", inputs, layouts={"X": layout})
    assert outcome.ok, outcome
    assert outcome.outputs["C"].tobytes() == inputs["X"].tobytes()
    assert outcome.outputs["C"].flags.c_contiguous
    assert (layout == "C") == (worker.output.strip() == "(20, 4) True")


def test_shared_memory_is_named(ports: Ports) -> None:
    worker = ports(
        "held = np.zeros((4, 3), 'f4')\n"
        "def attention(X, Wq, Wk, Wv):\n"
        "    held[:] = (X @ Wv)[:4]\n"
        "    return {'Q': X[:, :3], 'V': X[:, 3:], 'K': held, 'C': held[:2]}\n"
    )
    first = ask(worker, 4)
    assert set(first.aliases) == {("Q", "X"), ("V", "X"), ("C", "K")}
    second = ask(worker, 4)
    assert {("K", "earlier K"), ("C", "earlier K")} <= set(second.aliases)


def test_repetitions_are_compared(ports: Ports) -> None:
    worker = ports(
        "count = 0\nheld = np.zeros((4, 3), 'f4')\n"
        "def attention(X, Wq, Wk, Wv):\n"
        "    global count\n    count += 1\n    held[:] = count\n"
        "    return {'Q': X @ Wq, 'V': held, 'C': held.copy()}\n"
    )
    outcome = ask(worker, 4, repeat=3)
    assert len(outcome.times) == 3
    assert outcome.unstable == ("V", "C")
    assert outcome.overwritten == ("V",)
    assert outcome.outputs["V"].max() == outcome.outputs["C"].max() == 1.0


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ml_dtypes.bfloat16])
def test_every_dtype_crosses_both_ways(ports: Ports, dtype: Any) -> None:
    worker = ports("def attention(X, Wq, Wk, Wv): return {'C': X, 'scores': Wq.astype('f4')}\n")
    inputs = arrays(4, dtype)
    outcome = worker.call("attention", inputs)
    assert outcome.outputs["C"].dtype == np.dtype(dtype)
    assert outcome.outputs["C"].tobytes() == inputs["X"].tobytes()
    assert outcome.outputs["Ω"].dtype == np.dtype("f4")


def test_large_arrays_cross_while_the_port_prints(ports: Ports) -> None:
    worker = ports("def attention(X, Wq, Wk, Wv):\n    print('q' * 999_999)\n    return X\n")
    X = np.random.default_rng(0).standard_normal((700, 900))
    weights = np.ones((900, 2))
    outcome = worker.call("attention", {"X": X, "Wq": weights, "Wk": weights, "Wv": weights})
    assert outcome.outputs["C"].tobytes() == X.tobytes()


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        pytest.param("1 / 0", PortError, "ZeroDivisionError", id="raises"),
        pytest.param("x = 1", PortError, "offers no function", id="nothing"),
        pytest.param("os._exit(0)", WorkerCrash, "exit status 0", id="leaves"),
        pytest.param("ctypes.string_at(0)", WorkerCrash, "killed by SIGSEGV", id="segfault"),
        pytest.param("time.sleep(60)", WorkerTimeout, "within 1 s", id="hangs"),
    ],
)
def test_a_port_that_does_not_load(
    ports: Ports, body: str, error: type[Exception], words: str
) -> None:
    worker = ports(body, load_timeout=1.0)
    with pytest.raises(error, match=words):
        worker.hello()
    outcome = ask(worker, 4)
    assert outcome.status in ("error", "crash", "timeout")
    assert words in outcome.reason
    assert worker.starts == 2


def test_the_greeting(ports: Ports) -> None:
    worker = ports(
        "QKVAC = {'dtypes': ['float32']}\n"
        "attention = good\n"
        "def dot_product_atention(X): pass\n"
        "print(os.environ['QKVAC_MODE'], os.environ['QKVAC_DEVICE'], os.environ['OMP_NUM_THREADS'])"
    )
    greeting = worker.hello()
    assert greeting.functions == ("attention",)
    assert greeting.declaration == {"dtypes": ["float32"]}
    assert greeting.notes == (
        "found `dot_product_atention`, did you mean `dot_product_attention`?",
    )
    assert greeting.environment["frameworks"] == []
    assert greeting.environment["pid"] != os.getpid()
    assert greeting.environment["fp_environment"] == ""
    assert worker.hello() is greeting
    assert worker.starts == 1
    assert worker.output.split() == ["default", "cpu", "1"]
    assert worker.call("embedding", {}).status == "unsupported"


def test_a_worker_starts_about_as_quickly_as_its_imports(ports: Ports) -> None:
    def imports() -> float:
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", "import numpy, ml_dtypes"], check=True)
        return time.monotonic() - start

    times = [(ports("attention = good").hello().seconds, imports()) for _ in range(4)]
    assert min(start for start, _ in times) < 3 * min(least for _, least in times)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_a_framework_loads_alone_and_within_the_limits(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    with Worker(Target(backend=name, mode="eager"), memory=2 << 30) as worker:
        loaded = worker.hello().environment["frameworks"]
        assert BACKENDS.intersection(loaded) == {name}
        assert ask(worker, 4).ok


def test_a_closed_worker_starts_again(ports: Ports) -> None:
    worker = ports("attention = good")
    with worker:
        pid = worker.hello().environment["pid"]
    worker.close()
    assert ask(worker, 4).ok
    assert worker.hello().environment["pid"] != pid
    assert worker.starts == 2


def test_an_interrupted_wait_leaves_nothing(ports: Ports) -> None:
    worker = ports(bad("time.sleep(60)"))
    worker.hello()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(worker, 1)
    finally:
        signal.signal(signal.SIGALRM, previous)
    if sys.platform == "linux":
        assert not marked(ports.mark)
    assert ask(worker, 4).ok


HOST = """
import sys
from qkvac.process import Target, Worker
import numpy as np
worker = Worker(Target(port={port!r}), environment={{{mark_name!r}: {mark!r}}})
print(worker.hello().environment["pid"], flush=True)
X, W = np.ones((1, 5), "f4"), np.ones((5, 3), "f4")
{then}
"""


@LINUX
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_workers_die_with_a_killed_judge(ports: Ports, busy: bool) -> None:
    port = ports(bad("subprocess.Popen(['sleep', '60'])\nwhile True: pass"))
    call = 'worker.call("attention", {"X": X, "Wq": W, "Wk": W, "Wv": W})'
    source = HOST.format(
        port=port.target.port,
        mark_name=MARK,
        mark=ports.mark,
        then=call if busy else "import time; time.sleep(60)",
    )
    host = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    assert int(host.stdout.readline()) > 0
    time.sleep(0.5)
    assert len(marked(ports.mark)) == (2 if busy else 1)
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 5
    while marked(ports.mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not marked(ports.mark)


def test_workers_end_when_the_judge_exits(ports: Ports) -> None:
    port = ports("attention = good\nthreading.Thread(target=time.sleep, args=(60,)).start()")
    source = HOST.format(port=port.target.port, mark_name=MARK, mark=ports.mark, then="")
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.DEVNULL)
    assert time.monotonic() - start < 10


def test_a_forked_judge_does_not_end_the_worker(ports: Ports) -> None:
    worker = ports("attention = good")
    worker.hello()
    child = os.fork()
    if child == 0:
        worker.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert ask(worker, 4).ok
    assert worker.starts == 1


def test_descriptors_are_given_back(ports: Ports) -> None:
    worker = ports(bad("os._exit(1)"))
    ask(worker, 1)
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        ask(worker, 1)
    assert len(os.listdir("/dev/fd")) == before


def test_memory_is_limited(ports: Ports) -> None:
    small = ports(bad("np.ones(1 << 28)"), memory=1 << 30)
    assert ask(small, 1).reason.startswith("out of memory")
    assert ask(small, 4).ok
    assert small.starts == 1
    assert 0 < default_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def test_a_target_is_one_thing() -> None:
    with pytest.raises(ValueError, match="either"):
        Target()
    with pytest.raises(ValueError, match="either"):
        Target(backend="numpy", port="a.py")


def test_the_judging_process_imports_no_port(ports: Ports) -> None:
    worker = ports("attention = good")
    worker.hello()
    assert Path(str(worker.target.port)).stem not in sys.modules


def test_an_adapter_is_called_like_a_port() -> None:
    with Worker(Target(backend="numpy", mode="eager")) as worker:
        greeting = worker.hello()
        assert set(greeting.functions) == set(adapter("numpy").QKVAC["profiles"])
        assert greeting.declaration["name"] == "numpy"
        assert "cpu" in greeting.devices
        assert greeting.versions["numpy"] == np.__version__
        outcome = ask(worker, 4)
        assert outcome.outputs.keys() == {"Q", "K", "V", "Ω", "A", "C"}
        budget = worker.budget("attention", arrays(4))
        assert budget is not None
        assert len(budget["contractions"]) == 5
        assert budget["contractions"][0]["out"] == [4, 3]


def test_a_backend_that_cannot_run_says_why() -> None:
    with Worker(Target(backend="numpy", mode="warp")) as worker:
        with pytest.raises(BackendError, match="warp"):
            worker.hello()
        assert ask(worker, 4).status == "error"


class Failing:
    """An adapter of which every call fails in its own way."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def attention(self, *inputs: Any) -> Any:
        raise self.error


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module that this process's workers know as the backend `failing`."""
    module = SimpleNamespace(QKVAC={})
    monkeypatch.setitem(sys.modules, "qkvac.backends.failing", module)
    monkeypatch.setattr(qkvac.worker, "BACKENDS", frozenset())
    monkeypatch.setenv("QKVAC_MODE", "eager")
    monkeypatch.setenv("QKVAC_DEVICE", "cpu")
    return module


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        pytest.param(NotImplementedError("no float16"), "unsupported", "no float16", id="refuses"),
        pytest.param(RuntimeError("ran eagerly"), "error", "RuntimeError: ran", id="mode"),
        pytest.param(RuntimeError("CUDA out of memory."), "error", "out of memory: R", id="memory"),
    ],
)
def test_the_status_of_an_adapters_exception(
    backend: SimpleNamespace, error: Exception, status: str, words: str
) -> None:
    backend.open = lambda mode, device: Failing(error)
    server = Server()
    assert server.answer(Message({"op": "hello", "backend": "failing"})).header["ok"]
    header = server.answer(Message({"op": "call", "profile": "attention"}, arrays(2))).header
    assert (header["ok"], header["status"]) == (False, status)
    assert header["reason"].startswith(words)


def test_a_framework_that_is_not_installed_is_skipped(backend: SimpleNamespace) -> None:
    def fail(mode: str, device: str) -> None:
        raise ModuleNotFoundError("No module named 'frame'")

    backend.open = fail
    header = Server().answer(Message({"op": "hello", "backend": "failing"})).header
    assert (header["status"], header["reason"]) == (
        "skipped",
        "ModuleNotFoundError: No module named 'frame'",
    )


def test_unknown_requests_are_refused() -> None:
    assert not Server().answer(Message({"op": "quack"})).header["ok"]
    assert not Server().answer(Message({"op": ["call"]})).header["ok"]


def test_evidence_becomes_plain_values() -> None:
    value = {
        "graphs": np.int64(2),
        3: (np.float32(0.5), {"b", "a"}),
        "infinite": float("inf"),
        "device": object,
    }
    assert plain(value) == {
        "graphs": 2,
        "3": [0.5, ["a", "b"]],
        "infinite": "inf",
        "device": "<class 'object'>",
    }
    nested: Any = 1
    for _ in range(50):
        nested = [nested]
    assert plain(nested)


def test_a_default_environment_has_no_description() -> None:
    assert fpenv.describe() == ""
