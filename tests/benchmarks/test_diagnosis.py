"""How much longer a check takes that fails and says why than the same without a diagnosis."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from qkvac.cells import Result, Status
from qkvac.engine.engine import Engine
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import write
from qkvac.tests.suite.shelf import PORTS

EXTRA_SECONDS = 10.0
"""What the diagnosis of a failing port may add to its check."""

CLIPPED = """
def attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, np.clip(X @ Wk, -1, 1), X @ Wv
    S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, A, A @ V
"""
"""No fault of the catalogue: everything is tried, and the port called again."""


def plain_and_diagnosed(port: str) -> tuple[float, float]:
    """Seconds of a check of all cases in float32, and those that the diagnosis adds."""
    results = list[Result]()
    with Engine(Selection(port=port, dtypes=("float32",)), Options(cache=False)) as engine:
        started = time.perf_counter()
        engine.run(results.append)
        checked = time.perf_counter()
        results = engine.evidence.diagnosed(results)
        ended = time.perf_counter()
    failed = [r for r in results if r.status == Status.FAILED and r.worst is not None]
    assert failed
    assert all(result.diagnosis for result in failed)
    return checked - started, ended - checked


@pytest.mark.parametrize(
    "name", ["scaled_by_token_width", "tensor_float_products", "stale_cache", "no match"]
)
def test_diagnosis_beside_the_check(benchmark: Any, tmp_path: Path, name: str) -> None:
    port = write(tmp_path, CLIPPED) if name == "no match" else str(PORTS / f"{name}.py")
    times = list[tuple[float, float]]()
    benchmark.pedantic(lambda: times.append(plain_and_diagnosed(port)), rounds=3)
    check, extra = (min(column) for column in zip(*times, strict=True))
    benchmark.extra_info.update(
        check_seconds=check,
        extra_seconds=extra,
        ratio=extra / check,
        goal_seconds=EXTRA_SECONDS,
    )
