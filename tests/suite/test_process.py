"""Workers: whatever a port does, a call has an outcome and nothing is left running."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkvac.isolation import fpenv
from qkvac.isolation.process import (
    PortError,
    Target,
    Worker,
    WorkerCrash,
    WorkerTimeout,
)
from qkvac.isolation.worker import BACKENDS
from qkvac.tests.suite.hostile import HARMLESS, HOSTILE, bad
from qkvac.tests.suite.workers import Ports, arrays, ask, closing

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    with closing(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_call_has_an_outcome_and_the_next_one_works(ports: Ports, name: str) -> None:
    body, status, words, starts = HOSTILE[name]
    # A busy machine needs a while to hand out memory: no more of it than shows.
    patience = 1.0 if status == "timeout" else 60.0
    worker = ports(bad(body), timeout=patience, memory=2 << 30)
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
    worker = ports(body, load_timeout=1.0 if error is WorkerTimeout else 60.0)
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


def test_the_judging_process_imports_no_port(ports: Ports) -> None:
    worker = ports("attention = good")
    worker.hello()
    assert Path(str(worker.target.port)).stem not in sys.modules
