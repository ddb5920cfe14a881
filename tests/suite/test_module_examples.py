"""The pages about modules and training: their files are written, their commands run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from qkvac.tests.suite.test_porting_guide import BLOCK, ROOT, execute

EXAMPLES = ROOT / "docs" / "examples"

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.exists(), reason="needs a checkout, not an installed package"),
    pytest.mark.skipif(find_spec("torch") is None, reason="the pages need torch"),
]


@pytest.mark.parametrize("page", ["modules", "training"])
def test_the_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    output, ran = "", 0
    text = (EXAMPLES / page / "README.md").read_text(encoding="utf-8")
    for language, block in (found.groups() for found in BLOCK.finditer(text)):
        first = block.splitlines()[0]
        if language == "python" and first.startswith("# "):
            (tmp_path / first.removeprefix("# ")).write_text(block, encoding="utf-8")
        elif language == "sh":
            # The one command that trains every framework has a test of its own.
            commands = [line for line in block.splitlines() if line != "python training.py"]
            output = "".join(execute(line, tmp_path) for line in commands)
            ran += len(commands)
        elif language == "text" and output:
            assert "".join(block.split()) in "".join(output.split()), output
    assert ran >= 3


@pytest.mark.long
def test_what_is_trained_is_shown_and_drawn(tmp_path: Path) -> None:
    """Only what is installed is trained; the picture holds the rest of the table."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "training.png"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "training" / "training.py", "--picture", picture],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    head, *rows, verdict, written = done.stdout.splitlines()
    names = [row.split()[0] for row in rows]
    assert {"numpy-modules/parameters", "torch-modules/linear"} <= set(names)
    assert all(row.endswith("20 of 20") for row in rows)
    assert all(len(row) <= 82 for row in (head, *rows))
    assert verdict.startswith("Every step")
    assert str(picture) in written
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_table_of_the_page_is_what_is_printed() -> None:
    """Losses to three digits, from NumPy's own training."""
    from qkvac.training import trained

    losses = trained("numpy-modules", "parameters", "float32").losses
    text = (EXAMPLES / "training" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("numpy-modules/parameters"))
    assert row.split()[1:6] == [f"{losses[k][1]:.3f}" for k in range(0, 21, 5)]
