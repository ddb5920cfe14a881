"""Isolation, as a user meets it: `qkvac check` of ports that misbehave in one case.

The case's cells get the status, the report names the case, every other case passes, and nothing
is left running. What a worker makes of the same ports is tested beside it, call by call.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvac.cli.main import main
from qkvac.tests.suite.engine_ports import MAIN, ONE, SMALL
from qkvac.tests.suite.hostile import HARMLESS, HOSTILE, MARK, PRELUDE, bad, outlived

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

LATER = "hot/33x20x7"
"""A case that comes after the one in which the ports misbehave."""

QUANTITIES = {"Q", "K", "V", "A", "C"}


class Checks:
    """Runs `qkvac check` and gives its exit status and its results by case."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def __call__(
        self, text: str, *cases: str, timeout: float = 60.0
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        port = self.folder / "port0.py"
        port.write_text(PRELUDE + text, encoding="utf-8")
        words = ["check", str(port), "--dtype", "float32", "-n", "1", "--format", "json"]
        words += ["--profile", "attention", "--timeout", str(timeout), "--memory", "2G"]
        for case in cases:
            words += ["--case", case]
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = self.capsys.readouterr()
        assert err == ""
        assert isinstance(ended.value.code, int)
        found: dict[str, dict[str, Any]] = {case: {} for case in cases}
        for result in json.loads(out)["results"]:
            _, _, cell = result["cell"].partition("-float32-attention/")
            case, _, quantity = cell.rpartition("-")
            found[case][quantity] = result
        return ended.value.code, found


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Checks]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield Checks(tmp_path, capsys)
    assert not outlived(mark), "something is left running"


def statuses(results: dict[str, Any]) -> set[str]:
    return {results[name]["status"] for name in QUANTITIES}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_case_has_its_status_and_the_others_pass(check: Checks, name: str) -> None:
    body, status, words, _ = HOSTILE[name]
    timeout = 2.0 if "timeout" in status else 60.0
    code, found = check(bad(body), SMALL, ONE, LATER, timeout=timeout)
    assert code == (0 if status == "unsupported" else 1)
    for result in found[ONE].values():
        assert re.fullmatch(status, result["status"]), result
        # The process of a check has another time limit than that of the worker's own tests.
        assert re.search(words.replace("within 1 s", "within 2 s"), result["reason"]), result
    assert statuses(found[SMALL]) == statuses(found[LATER]) == {"passed"}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_harms_no_case_lets_all_pass(check: Checks, name: str) -> None:
    code, found = check(bad(HARMLESS[name]), SMALL, ONE, LATER)
    assert code == 0
    assert statuses(found[SMALL]) == statuses(found[ONE]) == statuses(found[LATER]) == {"passed"}


SEEN = {
    "mutates-inputs": ("X *= 2", "unchanged", "changes its input X"),
    "returns-an-input": (
        "V = X.base if X.base is not None else X\nreturn {'C': good(X, Wq, Wk, Wv)[-1], 'V': V}",
        "unchanged",
        "V in X",
    ),
    "lends-its-memory": (
        "held = globals().setdefault('held', np.empty((33, 7), 'f4'))\n"
        "held[:] = good(X, Wq, Wk, Wv)[-1]\nreturn held",
        "state",
        "overwrites the C of an earlier one",
    ),
    "counts-its-calls": (
        "calls = globals()['calls'] = globals().get('calls', 0) + 1\n"
        "return good(X, Wq, Wk, Wv)[-1] * np.float32(1 + calls * 2.0 ** -23)",
        "repeat",
        "other bits in C",
    ),
    "rounds-upward": (
        "ctypes.CDLL('libm.so.6').fesetround(0x800)",
        "environment",
        "rounding upward",
    ),
    "flushes-subnormals": (
        "libm = ctypes.CDLL('libm.so.6')\n"
        "state = ctypes.create_string_buffer(64); libm.fegetenv(state)\n"
        "raw = bytearray(state.raw); raw[28] |= 0x40; raw[29] |= 0x80; libm.fesetenv(bytes(raw))",
        "environment",
        "subnormals flushed",
    ),
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="sets x86-64 registers")
@pytest.mark.parametrize("name", SEEN)
def test_what_a_call_does_besides_answering_fails_its_check(check: Checks, name: str) -> None:
    body, cell, words = SEEN[name]
    code, found = check(bad(body).replace("== 1", "== 33"), SMALL, MAIN)
    assert code == 1
    assert found[MAIN][cell]["status"] == "failed"
    assert words in found[MAIN][cell]["reason"]
    assert statuses(found[SMALL]) == {"passed"}


def test_the_report_names_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = tmp_path / "port0.py"
    port.write_text(PRELUDE + bad("os.abort()"), encoding="utf-8")
    words = ["check", str(port), "--dtype", "float32", "--case", SMALL, "--case", ONE]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert f"port0@cpu · float32 · attention/{ONE}: crash" in out
    assert "killed by SIGABRT in attention (port0.py, line" in out
    assert f"again: qkvac check {port} --case attention/{ONE} --dtype float32" in out


def test_after_three_cases_in_a_row_the_rest_are_skipped(check: Checks) -> None:
    text = "def attention(X, *W):\n    if len(X) != 6: os.abort()\n    return good(X, *W)\n"
    code, found = check(text, SMALL, MAIN, ONE, LATER, "normal/9x5x1", "normal/577x24x10")
    assert code == 1
    last = {case: results["C"] for case, results in found.items()}
    counted = [result["status"] for result in last.values()]
    assert sorted(counted) == ["crash"] * 3 + ["passed"] + ["skipped"] * 2
    assert {r["reason"] for r in last.values() if r["status"] == "skipped"} == {"port unresponsive"}
