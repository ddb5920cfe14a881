"""[tool.qkvac] in pyproject.toml: defaults of the options, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkvac.cli.main import cli, main
from qkvac.cli.settings import defaults
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write
from qkvac.usage import UsageError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of which a folder below is the current one."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def settings(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.qkvac]\n{text}\n", encoding="utf-8")


def test_they_are_the_defaults_and_the_command_line_wins(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = write(project)
    chosen = f'dtype = ["float32"]\ncase = "attention/{SMALL}"'
    settings(project, f'{chosen}\nformat = "json"\nrecord = "r.jsonl"')
    with pytest.raises(SystemExit) as ended:
        main(["check", port])
    assert ended.value.code == 0
    cells = {result["cell"] for result in json.loads(capsys.readouterr().out)["results"]}
    assert cells
    assert all(f"float32-attention/{SMALL}-" in cell for cell in cells)
    assert (project / "r.jsonl").exists()
    with pytest.raises(SystemExit):
        main(["check", port, "--case", f"attention/{MAIN}", "--dtype", "float64", "--list"])
    listed = json.loads(capsys.readouterr().out)
    assert all(f"float64-attention/{MAIN}-" in cell for cell in listed)


def test_the_nearest_file_that_has_the_table_counts(project: Path) -> None:
    settings(project, "timeout = 5\nknown_deviations = 'known.toml'\nstrict = true")
    (project / "below" / "pyproject.toml").write_text("[tool.other]\nname = 'qkvac'\n")
    found = defaults(cli.commands)
    known = str(project / "known.toml")
    assert found["check"] == {"timeout": 5, "known_deviations": known, "strict": True}
    assert found["run"] == found["check"]
    assert "cases" not in found
    settings(project / "below", "timeout = 7")
    assert defaults(cli.commands)["check"] == {"timeout": 7}


def test_options_of_one_command_are_for_that_one(project: Path) -> None:
    settings(project, 'backend = ["numpy"]\ndeclare = ["arithmetic.blocks=16"]')
    found = defaults(cli.commands)
    assert found["run"] == {"backends": ["numpy"]}
    assert found["check"] == {"declare": ["arithmetic.blocks=16"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('dtpye = "float32"', "unknown key 'dtpye'; did you mean dtype?"),
        ("list = true", "unknown key 'list'"),
        ('tier = "huge"', "tier = 'huge': 'huge' is not one of 'quick', 'default', 'full'"),
        ('timeout = "long"', "timeout = 'long': 'long' is not a valid float"),
        ("strict = 1", "strict = 1: it is true or false"),
        ("timeout = true", "timeout = True: it is one value"),
        ("dtype = [32]", "dtype = [32]: it is a list of strings"),
        ("a b", "Expected '=' after a key"),
    ],
)
def test_a_mistake_is_one_clear_line_and_2(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    settings(project, text)
    with pytest.raises(SystemExit) as ended:
        main(["cases"])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert words in captured.err
    assert str(project / "pyproject.toml") in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_default_that_cannot_be_names_its_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings(project, 'dtype = ["flaot32"]')
    where = f"qkvac: {project / 'pyproject.toml'}, [tool.qkvac]: unknown dtype"
    for words, named in (((), True), (("--dtype", "float23"), False)):
        with pytest.raises(SystemExit) as ended:
            main(["run", "-b", "numpy", "--list", *words])
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(where) == named


def test_what_is_no_table_is_said(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool]\nqkvac = 1\n")
    with pytest.raises(UsageError, match="is not a table"):
        defaults(cli.commands)
