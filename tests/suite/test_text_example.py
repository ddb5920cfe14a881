"""The example that goes from a sentence to attention: what it prints, draws, and is checked for."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "text"
SENTENCE = ["the", "fat", "cat", "sat", "on", "the", "mat"]

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="needs a checkout, not an installed package"
)


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The example as a user runs it, its output piped."""
    return subprocess.run(
        [sys.executable, FOLDER / "sentence.py", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def printed(*words: str) -> str:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(output: str) -> tuple[list[str], list[str], np.ndarray]:
    """The words above, the words on the left and the numbers of the table under "A:"."""
    blocks = output[output.index("A:") : output.index("\nC:")].strip().split("\n\n")
    blocks[0] = blocks[0].partition("\n")[2]
    above: list[str] = []
    left: list[str] = []
    parts = []
    for block in blocks:
        head, *lines = (line.split() for line in block.splitlines())
        above += head
        left = [line[0] for line in lines]
        parts.append([[float(n.replace(".", "0", n == ".")) for n in line[1:]] for line in lines])
    return above, left, np.concatenate([np.array(part) for part in parts], axis=1)


def example() -> ModuleType:
    """The example as a module."""
    spec = spec_from_file_location("sentence", FOLDER / "sentence.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_the_words_in_its_margins_and_rows_that_sum_to_1() -> None:
    output = printed()
    above, left, values = weights(output)
    assert above == left == SENTENCE
    assert values.shape == (7, 7)
    assert np.allclose(values.sum(axis=1), 1, rtol=0, atol=7 * 0.005)
    assert "0 1 2 3 4 0 5" in output
    assert not np.array_equal(values[0], values[5])  # one token at two places


def test_a_causal_table_is_empty_behind_the_diagonal() -> None:
    _, _, values = weights(printed("--causal"))
    assert np.all(values[np.triu_indices(7, 1)] == 0)
    assert np.all(values[np.tril_indices(7)] > 0)
    assert values[0, 0] == 1
    assert np.allclose(values.sum(axis=1), 1, rtol=0, atol=7 * 0.005)


def test_a_long_sentence_stays_within_80_columns() -> None:
    words = [f"word{k}" for k in range(23)]
    output = printed(" ".join(words))
    above, left, values = weights(output)
    assert above == left == words
    assert values.shape == (23, 23)
    table = output[output.index("A:") :]
    assert max(map(len, table.splitlines())) <= 80


def test_what_is_printed_is_that_of_the_functions() -> None:
    module = example()
    words, tokens, vocabulary = module.tokenized(" ".join(SENTENCE))
    E, P, given = module.drawn(vocabulary, 7, width=8, columns=5, seed=0)
    A = module.attention(module.embedding(tokens, E, P), *given)["A"]
    assert words == SENTENCE
    assert np.all(np.abs(weights(printed())[2] - A) <= 0.00501)


def test_colours_are_for_terminals_alone() -> None:
    assert "\x1b" not in printed()
    module = example()
    plain = module.table(["a"], ["b"], np.array([[0.5]]))
    colored = module.table(["a"], ["b"], np.array([[0.5]]), colored=True)
    assert "\x1b" not in plain
    assert colored.count("\x1b[0m") == 1
    assert "0.50" in plain
    assert "0.50" in colored


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("choice", "colored"), [("", True), ("1", False)])
def test_no_color_is_respected_on_a_terminal(choice: str, colored: bool) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, str(FOLDER / "sentence.py"), "a b"]
    subprocess.run(command, stdout=theirs, env={**os.environ, "NO_COLOR": choice}, check=True)
    os.close(theirs)
    output = os.read(ours, 10000).decode()
    os.close(ours)
    assert ("\x1b[" in output) == colored


def test_the_picture_shows_something(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import image

    file = tmp_path / "attention.png"
    assert str(file) in printed("--picture", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")
    pixels = image.imread(file)[..., :3]
    assert min(pixels.shape[:2]) > 200
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    blue = pixels[..., 2] - pixels[..., 0]
    assert np.mean(blue > 0.05) > 0.1  # the map of weights, not text alone


def test_a_picture_without_matplotlib_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    done = run("--picture", str(tmp_path / "a.png"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip() == "--picture needs matplotlib: pip install matplotlib"
    assert weights(done.stdout)[0] == SENTENCE


def test_a_picture_that_cannot_be_saved_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("--picture", str(tmp_path / "none" / "a.png"))
    assert done.returncode == 1
    assert done.stderr.startswith("cannot save the picture")
    assert len(done.stderr.splitlines()) == 1


def test_a_sentence_without_words_is_bad_usage() -> None:
    done = run("  ")
    assert done.returncode == 2
    assert "no words" in done.stderr


def check(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    """`qkvac check` of an example with this source, in one dtype."""
    file = tmp_path / "sentence.py"
    file.write_text(source, encoding="utf-8")
    words = ["check", "sentence.py", "--dtype", "float64", "--case", "*normal/*"]
    return subprocess.run(
        [sys.executable, "-m", "qkvac", *words, "--case", "*batch-*"],
        cwd=tmp_path,
        env={**os.environ, "QKVAC_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )


def test_the_check_proves_its_three_functions(tmp_path: Path) -> None:
    done = check(tmp_path, (FOLDER / "sentence.py").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout + done.stderr
    stated = " ".join(done.stdout.split())
    assert "CONFORMS: sentence@cpu computes the same attention, causal_attention and" in stated
    assert "embedding as the spec in float64" in stated


def test_the_check_notices_a_changed_line(tmp_path: Path) -> None:
    source = (FOLDER / "sentence.py").read_text(encoding="utf-8")
    right = "E[tokens] + P[: tokens.shape[-1]]"
    assert right in source
    done = check(tmp_path, source.replace(right, "E[tokens] + P[-tokens.shape[-1] :]"))
    assert done.returncode == 1
    assert "DEVIATES: sentence@cpu deviates" in " ".join(done.stdout.split())


def test_the_description_shows_what_is_printed() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = text.split("```text\n")[1].split("```")[0]
    assert shown.strip() in printed()
