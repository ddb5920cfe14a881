"""Further draws: a port that has learnt the cases fails where nobody knew what would be drawn."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import qkvac
from qkvac.cli.main import main
from qkvac.draw import Draw, draw_of, entropy
from qkvac.spec.cases.catalogue import cases
from qkvac.subjects.selection import Selection, find_case
from qkvac.tests.suite.engine_ports import PLAIN, SMALL, write
from qkvac.usage import UsageError

MEMORY = """
KNOWN = {known!r}

def attention(X, *W):
    key = X.tobytes()[:16].hex()
    return plain(X, *W) if key in KNOWN else plain(np.zeros_like(X), *W)
"""
"""A port that knows the inputs of the cases, those of all draws with known seeds included."""

ONLY: dict[str, Any] = {
    "profiles": ["attention"],
    "cases": ["normal/6x3x2*"],
    "dtypes": ["float32"],
}


pytest_plugins = ["pytester"]


@pytest.fixture
def learnt(tmp_path: Path) -> str:
    """The port, and what the checks of those cases ask besides."""
    case = find_case(f"attention/{SMALL}")
    known = {
        base.drawn(again).inputs("float32")["X"].tobytes()[:16].hex()
        for base in (case, *(case.drawn(draw) for draw in range(1, 4)))
        for again in (0, 1)
    }
    return write(tmp_path, MEMORY.format(known=known), "learnt")


def test_a_port_that_knows_the_cases_passes_and_fails_where_they_are_secret(learnt: str) -> None:
    def wrong(report: qkvac.Report) -> set[str]:
        return {r.cell.case for r in report.failures if r.cell.quantity in "QKVAC"}

    assert not wrong(qkvac.check(learnt, **ONLY, seeds=3))
    report = qkvac.check(learnt, **ONLY, secret=True)
    (case,) = wrong(report)
    base, draw = draw_of(case)
    assert (base, draw) == (f"attention/{SMALL}", Draw(1, report.selection.entropy))
    assert not report.passed


def test_a_right_port_passes_whatever_is_drawn(tmp_path: Path) -> None:
    report = qkvac.check(write(tmp_path), **ONLY, secret=True, seeds=3)
    assert report.passed
    drawn = {draw_of(result.cell.case)[1] for result in report.results}
    made = report.selection.entropy
    assert drawn == {None, Draw(1, made), Draw(2, made), Draw(3, made)}
    assert f"--entropy {made} draws the same again" in str(report)


def test_an_entropy_draws_the_same_again_and_another_something_else(tmp_path: Path) -> None:
    port = write(tmp_path)

    def digests(**options: object) -> dict[str, str | None]:
        report = qkvac.check(port, **ONLY, **options)  # type: ignore[arg-type]
        return {r.cell.id: r.digest for r in report.results if r.cell.quantity == "C"}

    first = digests(entropy="a1")
    assert len(first) == 2
    assert digests(entropy="a1") == first
    other = digests(entropy="a2")
    assert len({*first.values(), *other.values()}) == 3


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    return ended.value.code, captured.out + captured.err


def test_what_the_summary_says_repeats_the_failure(
    learnt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "run.jsonl"
    words = ["check", learnt, "--profile", "attention", "--dtype", "float32", "--case", SMALL + "*"]
    status, out = command(capsys, *words, "--secret", "--record", str(record))
    assert status == 1
    made = json.loads(record.read_text(encoding="utf-8").splitlines()[0])["run"]["entropy"]
    assert f"--entropy {made} draws the same again" in out
    again = next(
        line for line in out.splitlines() if f"--entropy {made}" in line and "again:" in line
    )
    status, out = command(capsys, *shlex.split(again.partition("again: qkvac ")[2]))
    assert status == 1
    assert f"attention/{SMALL}/s{made}-1" in out


def test_an_export_names_what_it_was_drawn_from_and_is_graded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load_file, save_file

    folder, outputs = tmp_path / "inputs", tmp_path / "outputs"
    outputs.mkdir()
    words = ["--profile", "attention", "--dtype", "float32", "--case", SMALL + "*"]
    status, _ = command(capsys, "export", str(folder), *words, "--secret", "--seeds", "2")
    assert status == 0
    manifest = json.loads((folder / "manifest.json").read_text("ascii"))
    made = manifest["entropy"]
    namespace: dict[str, object] = {}
    exec(PLAIN, namespace)
    for vector in manifest["vectors"]:
        given = load_file(folder / vector["file"])
        found = namespace["plain"](*(given[name] for name in ("X", "Wq", "Wk", "Wv")))  # type: ignore[operator]
        save_file(dict(zip("QKVAC", found, strict=True)), outputs / vector["file"])
    status, out = command(
        capsys, "grade", str(folder), str(outputs), *words[:4], "--format", "json"
    )
    assert status == 0
    drawn = {
        draw_of(r["cell"].split("float32-")[1].rpartition("-")[0])[1]
        for r in json.loads(out)["results"]
    }
    assert {Draw(1, made), Draw(2, made)} <= drawn


def test_an_id_is_all_that_it_takes() -> None:
    selection = Selection(profiles=("attention",), entropy="0f", seeds=2)
    for case in selection.chosen("attention"):
        found = find_case(case.id)
        assert (found.id, found.seed) == (case.id, case.seed)
    with pytest.raises(UsageError):
        find_case(f"attention/{SMALL}/s0f-0")
    with pytest.raises(UsageError):
        find_case(f"attention/{SMALL}/s0F-1")
    fixed = next(case for case in cases("attention") if not case.random)
    with pytest.raises(UsageError):
        find_case(f"{fixed.id}/s0f-1")


def test_entropies() -> None:
    assert entropy(False, "") == ""
    assert entropy(False, "a1") == entropy(True, "a1") == "a1"
    assert entropy(True, "") != entropy(True, "")
    assert draw_of(f"x/s{entropy(True, '')}-1")[0] == "x"
    for wrong in ("A", "a b", "a-1", "0" * 33, "é"):
        with pytest.raises(UsageError):
            entropy(False, wrong)
    with pytest.raises(UsageError, match="same --entropy"):
        entropy(True, "", sharded=True)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_pytest_draws_once_for_all_its_workers(pytester: pytest.Pytester, workers: str) -> None:
    pytester.makepyfile(my_port=PLAIN)
    result = pytester.runpytest_subprocess(
        *("-n", workers, "--pyargs", "qkvac.tests.conformance", "--qkvac-port", "my_port.py"),
        *("--qkvac-profile", "attention", "--qkvac-dtype", "float32", "--qkvac-secret"),
        *("--qkvac-case", "normal/6x3x2*", "--qkvac-record", "run.jsonl"),
    )
    assert result.ret == 0, result.outlines
    lines = [json.loads(line) for line in (pytester.path / "run.jsonl").read_text().splitlines()]
    made = lines[0]["run"]["entropy"]
    drawn = {draw_of(line["case"])[1] for line in lines if line["kind"] == "result"}
    assert drawn == {None, Draw(1, made)}
