"""How long a check takes, and how long a graded quantity, beside another suite for attention.

The other suite is onnx's backend tests of the operator Attention on onnxruntime, which compare
one output with stored values at a fixed tolerance. Both run here, one after the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qkvac.cells import Result
from qkvac.engine.engine import Engine
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import write

CHECK_SECONDS = 5.0
"""What `qkvac check` of a NumPy port may take on 2 cores with a cold cache."""
HELP_SECONDS = 0.4
SHARE = 1 / 5
"""What a graded quantity may take of the time of one of onnx's tests."""


def graded(port: str) -> int:
    """Runs a check without a cache; how many quantities were graded."""
    results = list[Result]()
    with Engine(Selection(port=port), Options(cache=False)) as engine:
        engine.run(results.append)
    assert all(result.ok for result in results)
    return sum(result.grade is not None for result in results)


def test_check_of_a_numpy_port(benchmark: Any, tmp_path: Path) -> None:
    port = write(tmp_path, "QKVAC = {'supports': ['layouts']}")
    command = [sys.executable, "-m", "qkvac", "check", port]
    environment = {**os.environ, "QKVAC_CACHE": str(tmp_path / "cache")}

    def check() -> None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    benchmark.pedantic(check, rounds=1)
    benchmark.extra_info.update(goal_seconds=CHECK_SECONDS)


def test_start_of_the_command_line(benchmark: Any) -> None:
    command = [sys.executable, "-m", "qkvac", "--help"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5)
    benchmark.extra_info.update(goal_seconds=HELP_SECONDS)


def test_time_of_a_graded_quantity_beside_onnx(benchmark: Any, tmp_path: Path) -> None:
    port = write(tmp_path, "QKVAC = {'supports': ['layouts']}")
    other = _onnx_seconds()
    count = benchmark.pedantic(lambda: graded(port), rounds=1)
    own = benchmark.stats.stats.min / count
    benchmark.extra_info.update(
        milliseconds=1e3 * own, onnx_milliseconds=1e3 * other, ratio=own / other, goal=SHARE
    )


def _onnx_seconds() -> float:
    """Mean time of a test that passes, with its share of making inputs and expected outputs.

    Our own figure includes those as well, and the start of all processes.
    """
    node = pytest.importorskip("onnx.backend.test.case.node")
    runtime = pytest.importorskip("onnxruntime.backend")
    runner = pytest.importorskip("onnx.backend.test.runner").Runner
    started = time.perf_counter()
    tests = node.collect_testcases("Attention")
    made = (time.perf_counter() - started) / len(tests)
    times = []
    for test in tests:
        started = time.perf_counter()
        try:
            model = runtime.prepare(test.model, "CPU")
            for inputs, outputs in test.data_sets:
                runner.assert_similar_outputs(
                    outputs, model.run(list(inputs)), test.rtol, test.atol
                )
        except Exception:  # the runtime lacks some variants
            continue
        times.append(time.perf_counter() - started)
    assert len(times) > 50
    return made + sum(times) / len(times)
