"""Texts of strangers where they are shown, and outputs that cannot take them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import qkvac.engine.cache
from qkvac import jsons
from qkvac.cells import Cell, Result, Status, Subject
from qkvac.diagnosis.failures import explain
from qkvac.engine.cache import Certifier, _encoded
from qkvac.publication.archive import read
from qkvac.records.environment import describe
from qkvac.records.record import Recorder
from qkvac.records.report import Report
from qkvac.records.summary import plain
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.subjects.selection import Options
from qkvac.tests.suite import records
from qkvac.tests.suite.engine_ports import SMALL, write
from qkvac.tests.suite.test_cache import ask, equal, files
from qkvac.tests.suite.test_cli import command
from qkvac.texts import line, short, visible
from qkvac.usage import UsageError, unknown

EVIL = "\x1b[2J\x9b31m\u202e\u200b\ud800[bold]x[/red]\n\rend"
WORD = EVIL[:12].replace("\ud800", "\udcff")
"""As a word of a command line, where bytes that are no UTF-8 are halves of pairs."""
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
ONE = ("--case", f"attention/{SMALL}", "--dtype", "float32")


def process(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "qkvac", *words], stderr=subprocess.PIPE, check=False, **options
    )


# --- what is shown ------------------------------------------------------------------------------


def test_a_line_is_one_line_of_what_can_be_seen() -> None:
    shown = line(EVIL)
    assert visible(shown) == shown
    assert "\n" not in shown
    assert shown == r"\u001b[2J\u009b31m\u202e\u200b\ud800[bold]x[/red]\n\rend"
    assert line("a" * 10**7) == "a" * 500 + "…"
    assert len(line("\x00" * 10**6)) <= 501
    assert len(short("é" * 300)) == 81
    assert line("Ω → ½ 字") == "Ω → ½ 字"
    assert line("a\u3164b\u034fc") == r"a\u3164b\u034fc"


def test_an_unknown_name_is_cut_before_anything_is_compared_with_it() -> None:
    said = str(unknown("case", EVIL + "x" * 10**6, ["one"]))
    assert len(said) < 300
    assert visible(said) == said


def test_nothing_in_a_summary_is_markup_or_hides() -> None:
    subject = Subject("[red]a[/bold]", "default", "cpu", port=EVIL)
    other = Subject("[/]", "default", "cpu", port=EVIL)
    cells = [Cell(s, "float32", f"attention/{SMALL}", "C") for s in (subject, other)]
    results = [
        Result(cell, Status.ERROR, reason=EVIL, detail=EVIL, diagnosis=EVIL) for cell in cells
    ]
    text = plain(Report(results, warnings=(EVIL,)))
    assert visible(text) == text
    assert "[red]a[/bold]" in text
    assert "[/]" in text
    assert visible(explain(results[0])) == explain(results[0])
    assert visible(results[0].line) == results[0].line


def test_a_record_can_be_shown_as_it_is_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    surroundings = records.environment(settings={"key" + EVIL: EVIL})
    run = next(records.lines([records.result()]))["run"]
    recorder = Recorder(path, surroundings, run)
    recorder.write(records.result(status=Status.ERROR, reason=EVIL, detail=EVIL))
    recorder.close()
    text = path.read_text("utf-8")
    assert visible(text) == text
    (found,) = read(path, allow_truncated=True).lines
    assert found.result.reason == EVIL.replace("\ud800", r"\ud800")


def test_json_is_escaped_and_means_the_same() -> None:
    text = jsons.dumps({EVIL: "\U000e0041\u202e"})
    assert visible(text) == text
    assert json.loads(text) == {EVIL.replace("\ud800", r"\ud800"): "\U000e0041\u202e"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_port_with_an_evil_name_and_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    body = f"""
    QKVAC = {{"name": {"[/red]" + EVIL[:5]!r}, "version": {"[/]" + EVIL[:5]!r}}}
    def attention(*arrays):
        print({EVIL[:20]!a})
        raise ValueError({EVIL!a})
    """
    port = write(tmp_path, body, name="[red]my[bold]\x1b[31m")
    status, out, error = command(capsys, "check", port, *ONE, "--format", form)
    assert status in (1, 2)
    for text in (out, error):
        assert visible(text) == text
    assert "[red]my[bold]" in out + error


@pytest.mark.parametrize(
    "words",
    [
        ("check", "no" + WORD + ".py"),
        ("check", "x", "--case", WORD),
        ("run", "--backend", WORD),
        ("run", "--profile", WORD),
        ("run", "--dtype", WORD),
        ("show", WORD),
        ("report", "html", WORD),
        ("check", "x", "--declare", WORD),
        ("grade", WORD, WORD),
    ],
)
def test_errors_show_what_was_given(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = command(capsys, *words)
    assert status == 2
    assert visible(error) == error
    assert error.count("\n") == 1


# --- where it cannot be shown -------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_any_encoding_will_do(tmp_path: Path, encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    port = write(tmp_path)
    done = process("check", port, *ONE, stdout=subprocess.PIPE, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"CONFORMS" in done.stdout
    listed = process("backends", stdout=subprocess.PIPE, env=environment)
    assert (listed.returncode, listed.stderr) == (0, b"")


@FULL
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_output_is_one_line(tmp_path: Path, form: str) -> None:
    with open("/dev/full", "w") as full:
        done = process("check", write(tmp_path), *ONE, "--format", form, stdout=full)
    assert done.returncode == 2
    assert done.stderr == b"qkvac: the output: No space left on device\n"


@pytest.mark.parametrize(("body", "status"), [("", 0), ("def attention(*a): return a[0]", 1)])
def test_a_closed_pipe_is_quiet_and_leaves_the_status(
    tmp_path: Path, body: str, status: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = process("check", write(tmp_path, body), *ONE, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (status, b"")


def test_no_place_for_temporary_files_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    status, _, error = command(capsys, "check", *ONE, "--", "true")
    assert status == 2
    assert error.count("\n") == 1
    assert "No such file" in error


# --- what a record does not overwrite -----------------------------------------------------------


def begin(path: Path) -> None:
    Recorder(path, describe((), Options()), {}).close()


@pytest.mark.parametrize("name", ["my_port.py", "known.toml", "manifest.json", "x.safetensors"])
def test_a_record_replaces_nothing_but_a_record(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="is no record and stays"):
        begin(path)
    assert path.read_text("utf-8") == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_is_not_written_through_a_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    begin(kept)
    before = kept.read_bytes()
    for target in (kept, tmp_path / "absent"):
        link = tmp_path / f"to-{target.name}"
        link.symlink_to(target)
        with pytest.raises(UsageError, match="is a link"):
            begin(link)
    twin = tmp_path / "twin"
    os.link(kept, twin)
    Recorder(twin, describe((), Options()), {"notes": ["other"]}).close()
    assert kept.read_bytes() == before != twin.read_bytes()
    assert not (tmp_path / "absent").exists()


def test_a_run_with_its_own_port_as_record_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = write(tmp_path)
    before = Path(port).read_bytes()
    status, _, error = command(capsys, "check", port, *ONE, "--record", port)
    assert (status, error.count("\n")) == (2, 1)
    assert Path(port).read_bytes() == before


# --- the cache ----------------------------------------------------------------------------------


def sealed(frame: bytes) -> bytes:
    return hashlib.sha256(frame).digest() + frame


def test_nonsense_in_the_cache_is_made_anew(tmp_path: Path) -> None:
    right = ask(Certifier(tmp_path))
    (path,) = files(tmp_path)
    good = path.read_bytes()
    key = path.name
    small = {name: Enclosure(*(np.zeros((1, 1)) for _ in range(3))) for name in right}
    nonsense = {
        "truncated": sealed(good[32:-8]),
        "longer": sealed(good[32:] + b"\0"),
        "another question": _encoded("0" * 64, "", right),
        "other shapes": _encoded(key, "", small),
        "other names": _encoded(key, "", {"Q": right["Q"]}),
        "another dtype": sealed(good[32:].replace(b"float64", b"uint64 ")),
        "no names": sealed(good[32:].replace(b'"names"', b'"nemas"')),
        "no text": b"\xff" * 500,
        "empty": b"",
    }
    for name, data in nonsense.items():
        path.write_bytes(data)
        later = Certifier(tmp_path)
        assert equal(ask(later), right), name
        assert later.computed == 1, name
        path.write_bytes(good)


def test_what_is_no_file_in_the_cache_is_not_waited_for(tmp_path: Path) -> None:
    right = ask(Certifier(tmp_path))
    (path,) = files(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert equal(ask(Certifier(tmp_path)), right)
    assert qkvac.engine.cache.ENTRY > 0
