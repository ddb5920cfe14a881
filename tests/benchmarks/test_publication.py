"""What reading a record costs beside parsing its JSON, and how large a record is."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from qkvac.cells import Subject
from qkvac.publication.archive import read
from qkvac.publication.comparison import compare
from qkvac.publication.markdown import render
from qkvac.publication.merging import read_all
from qkvac.tests.suite.records import lines, result, write

SUBJECTS = 20
CASES = 417
CELLS = SUBJECTS * 2 * CASES * 6


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of 100,000 cells, every one with its own digest."""
    cells = [
        result(
            quantity,
            case=f"attention/normal-{case}/33x20x7",
            dtype=dtype,
            subject=subject,
            digest=sha256(f"{subject.id} {dtype} {case} {quantity}".encode()).hexdigest(),
        )
        for subject in (Subject(f"backend{i}", "eager", "cpu") for i in range(SUBJECTS))
        for dtype in ("float64", "float32")
        for case in range(CASES)
        for quantity in "QKVΩAC"
    ]
    return write(tmp_path_factory.mktemp("record") / "a.jsonl", lines(cells))


def parse(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [json.loads(line) for line in file]


def test_reading_beside_parsing(benchmark: Any, record: Path) -> None:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        parse(record)
        times.append(time.perf_counter() - started)
    found = benchmark.pedantic(read, args=(record,), rounds=3)
    assert len(found.lines) == CELLS
    benchmark.extra_info.update(
        times_json=benchmark.stats.stats.min / min(times),
        bytes_per_cell=record.stat().st_size / CELLS,
    )


def test_comparing(benchmark: Any, record: Path) -> None:
    found = read(record)
    assert not benchmark.pedantic(compare, args=(found, found), rounds=3).regressed


def test_summing_up(benchmark: Any, record: Path) -> None:
    found = read_all((record,))
    assert "conforms" in benchmark.pedantic(render, args=(found,), rounds=3)
