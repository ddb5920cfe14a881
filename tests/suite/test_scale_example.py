"""The demonstration of what the scale is for: its statement, from certified values."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "docs" / "examples" / "scale" / "scale.py"

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="the checkout's docs are not here")


@cache
def example() -> Any:
    spec = importlib.util.spec_from_file_location("scale_example", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def found(scaled: bool) -> list[Any]:
    return [row for row in example().rows() if row.scaled is scaled]


def test_without_the_scale_softmax_becomes_a_step_and_gradients_vanish() -> None:
    rows = found(False)
    first, last = rows[0], rows[-1]
    assert last.c == 4096
    # Proven: lower bounds are compared with upper ones.
    assert last.largest[0] > 0.95
    assert last.largest[0] > first.largest[1]
    assert last.gradient[1] < 1e-6 * first.gradient[0]


def test_with_the_scale_neither_happens() -> None:
    rows = found(True)
    assert max(row.largest[1] for row in rows) < 1.5 * min(row.largest[0] for row in rows)
    assert max(row.gradient[1] for row in rows) < 1.5 * min(row.gradient[0] for row in rows)


def test_the_numbers_are_proven_to_six_digits() -> None:
    for row in (*found(True), *found(False)):
        for low, high in (row.largest, row.gradient):
            assert 0 < low <= high < low * (1 + 1e-6)


def test_the_command_prints_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "scale.png"
    done = subprocess.run(
        [sys.executable, str(FILE), "--picture", str(picture)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(example().WIDTHS) + 1
    assert all(len(line) <= 80 for line in lines[:-1])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_bad_usage_is_said_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(FILE), "--plot"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "usage: scale.py [--picture FILE]"
