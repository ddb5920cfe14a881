"""How much longer a port takes that works on files than one that is called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qkvac.tests.suite.engine_ports import write
from qkvac.tests.suite.test_examples import c_port

EXTRA_SECONDS = 3.0
"""What `qkvac check` of a port in C may take beyond that of a NumPy port, in float32."""


def seconds(environment: dict[str, str], *words: str) -> float:
    """Time of a check of all cases in float32."""
    command = [sys.executable, "-m", "qkvac", "check", "--dtype", "float32", *words]
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.perf_counter() - started


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_check_of_a_c_port_beside_a_numpy_port(benchmark: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "QKVAC_CACHE": str(tmp_path / "cache")}
    port = write(tmp_path, "QKVAC = {'supports': ['layouts']}")
    words = c_port(tmp_path)
    numpy = min(seconds(environment, port) for _ in range(3))
    benchmark.pedantic(seconds, args=(environment, "--", *words), rounds=3)
    extra = benchmark.stats.stats.min - numpy
    benchmark.extra_info.update(
        numpy_seconds=numpy, extra_seconds=extra, goal_seconds=EXTRA_SECONDS
    )
