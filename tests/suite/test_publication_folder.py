"""What `--report DIR` leaves, and how files are written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkvac.cells import Result
from qkvac.cli.main import main
from qkvac.engine.run import execute
from qkvac.publication.archive import read
from qkvac.publication.output import emit
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write
from qkvac.usage import UsageError

FILES = {"record.jsonl", "report.html", "report.md", "badge.json", "badge.svg"}


def check(folder: Path, *words: str) -> int:
    port = write(folder, "def attention(*arrays): return plain(*arrays)")
    given = ["check", port, "--dtype", "float32", "--profile", "attention", "--case", SMALL]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--case", MAIN, *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_report_folder_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert check(tmp_path, "--report", str(folder)) == 0
    assert {path.name for path in folder.iterdir()} == FILES
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}"
    found = read(folder / "record.jsonl")
    passed = sum(line.result.status == "passed" for line in found.lines)
    assert passed > 5
    badge = json.loads((folder / "badge.json").read_text(encoding="utf-8"))
    assert badge["message"] == f"conforms {passed}/{passed}"
    assert f"{passed} of {passed} cells" in (folder / "report.md").read_text(encoding="utf-8")
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert check(tmp_path, "--report", str(folder)) == 0, "it may be filled again"


def test_a_record_that_was_asked_for_is_there_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, record = tmp_path / "r", tmp_path / "mine.jsonl"
    words = ("--report", str(folder), "--record", str(record), "--format", "json")
    assert check(tmp_path, *words) == 0
    assert record.read_bytes() == (folder / "record.jsonl").read_bytes()
    json.loads(capsys.readouterr().out)


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name in ("file", "file/inner"):
        assert check(tmp_path, "--report", str(tmp_path / name)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2


def test_an_interrupted_run_says_so_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(engine: object, record: Path, watch: object) -> object:
        def stop(result: Result) -> None:
            raise KeyboardInterrupt

        return execute(engine, record, stop)  # type: ignore[arg-type]

    monkeypatch.setattr("qkvac.cli.running.execute", interrupted)
    folder = tmp_path / "r"
    assert check(tmp_path, "--report", str(folder)) == 130
    assert {path.name for path in folder.iterdir()} == FILES
    assert "ended early" in (folder / "report.md").read_text(encoding="utf-8")
    assert "unfinished" in (folder / "badge.json").read_text(encoding="utf-8")


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before", encoding="utf-8")

    def parts() -> Iterator[str]:
        yield "half"
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="No space left"):
        emit(parts(), path)
    assert path.read_text(encoding="utf-8") == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    emit(["a", "ü\n"], path)
    assert path.read_bytes() == "aü\n".encode()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_file_has_the_usual_permissions(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.write_text("", encoding="utf-8")
    emit(["a"], tmp_path / "ours")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No space left"):
        emit(["a" * 100_000], Path("/dev/full"))
    assert not Path("/dev/full").is_file()
    emit(["a"], Path(os.devnull))
    assert not Path(os.devnull).is_file()
