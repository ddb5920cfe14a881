"""Programs as ports: whatever one does, each of its cases has a status and nothing is left."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import qkvac
from qkvac.cells import Result
from qkvac.engine.engine import Engine
from qkvac.isolation.commands import check_program, short_name, text_of, words_of
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import MAIN, SMALL, statuses
from qkvac.tests.suite.test_cli import command, qkvac_process
from qkvac.usage import UsageError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs need POSIX")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

PROGRAM = """
import os, signal, subprocess, sys, time
import numpy as np
from safetensors.numpy import load_file, save_file

inputs, outputs = sys.argv[-2:]

def answer(name, X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.T
    E = np.exp((S - S.max(axis=1, keepdims=True)) / np.sqrt(Q.shape[1]).astype(X.dtype))
    A = E / E.sum(axis=1, keepdims=True)
    return {"Q": Q, "K": K, "V": V, "scores": S, "A": A, "C": A @ V}

def each(answer=answer):
    for name in sorted(os.listdir(inputs)):
        if name.endswith(".safetensors"):
            arrays = load_file(os.path.join(inputs, name))
            save_file(answer(name, **arrays), os.path.join(outputs, name))

"""

OTHER = "worked-example/6x3x2"
CASES = (SMALL, OTHER, "plain-integers/*")


def program(folder: Path, text: str = "each()") -> str:
    """A program in Python that is right except for what `text` does; the text of the port."""
    path = folder / "program.py"
    path.write_text(PROGRAM + textwrap.dedent(text), encoding="utf-8")
    return text_of([sys.executable, str(path), "--flag"])


def run(
    port: str,
    *cases: str,
    dtypes: tuple[str, ...] = ("float32",),
    declare: tuple[str, ...] = (),
    **options: Any,
) -> tuple[list[Result], Mapping[str, int]]:
    """All results of some cases, and how often the program was started."""
    results = list[Result]()
    selection = Selection((), port, ("attention",), dtypes, cases=cases, declare=declare)
    with Engine(selection, Options(**{"workers": 1, **options})) as engine:
        engine.run(results.append)
    return results, engine.starts


def contexts(results: list[Result]) -> Mapping[str, Result]:
    """The results of C by case."""
    return {r.cell.case.partition("/")[2]: r for r in results if r.cell.quantity == "C"}


# --- calls -----------------------------------------------------------------------------------


def test_a_right_program_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = program(tmp_path)
    words = shlex.split(port)[1:]
    status, out, err = command(capsys, "check", "--case", MAIN, "--dtype", "float32", "--", *words)
    assert (status, err) == (0, "")
    assert "CONFORMS: program@cpu computes the same attention" in out
    assert "unsupported (files): 3 cells" in out


def test_checks_that_files_cannot_answer_are_unsupported(tmp_path: Path) -> None:
    results, starts = run(program(tmp_path), MAIN, "layout-F/*")
    assert dict(starts) == {"program@cpu": 1}
    found = statuses(results, MAIN)
    for name in ("unchanged", "state", "environment"):
        assert found[name] == "unsupported"
    for name in ("repeat", "scaling", "signs", "Ω", "C"):
        assert found[name] == "passed"
    reasons = {r.reason for r in results if r.status == "unsupported"}
    assert reasons == {"files"}
    assert {r.status for r in results if "layout" in r.cell.case} == {"unsupported"}


LOGGED = """
names = [name for name in os.listdir(inputs) if name.endswith(".safetensors")]
with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
    dtypes = sorted({name.split(".")[-2] for name in names})
    print(os.environ["QKVAC_MODE"], *dtypes, len(names), file=log)
each()
"""


def log(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def test_float64_is_tried_with_one_case(tmp_path: Path) -> None:
    results, _ = run(program(tmp_path, LOGGED), SMALL, OTHER, dtypes=())
    assert {(r.cell.dtype, r.status) for r in contexts(results).values()} <= {
        ("float64", "passed"),
        ("float32", "passed"),
    }
    calls = log(tmp_path)
    assert sorted(calls) == sorted(
        [["default", "float64", "1"], ["default", "float32", "2"], ["default", "float64", "1"]]
    )


def test_a_program_of_float32_alone(tmp_path: Path) -> None:
    text = """
    def narrow(name, **arrays):
        return answer(name, **{key: array.astype("f4") for key, array in arrays.items()})
    each(narrow)
    """
    results, _ = run(program(tmp_path, text), SMALL, dtypes=())
    (refused,) = (r for r in results if r.cell.dtype == "float64")
    assert (refused.status, refused.reason) == ("unsupported", "float64 in, float32 out")
    text = "assert not any('float64' in name for name in os.listdir(inputs)), 'only F32'\neach()"
    results, _ = run(program(tmp_path, text), SMALL, dtypes=())
    (refused,) = (r for r in results if r.cell.dtype == "float64")
    assert refused.status == "unsupported"
    assert "only F32" in (refused.reason or "")
    assert statuses([r for r in results if r.cell.dtype == "float32"])["C"] == "passed"


def test_a_declaration_lies_beside_the_program(tmp_path: Path) -> None:
    port = program(tmp_path, LOGGED)
    (tmp_path / "port.toml").write_text('dtypes = ["float32"]\nmodes = ["fast", "exact"]\n')
    results, starts = run(port, SMALL, OTHER, dtypes=())
    assert set(starts) == {"program/fast@cpu", "program/exact@cpu"}
    assert sorted(log(tmp_path)) == [["exact", "float32", "2"], ["fast", "float32", "2"]]
    assert {r.status for r in contexts(results).values()} == {"passed"}
    with pytest.raises(UsageError, match="float128"):
        run(port, SMALL, declare=("dtypes = ['float128']",))


# --- programs that misbehave -----------------------------------------------------------------


FATE = """
def fate(name, **arrays):
    if "normal__6x3x2" in name:
        {}
    return answer(name, **arrays)
each(fate)
"""

FATES = {
    "os.kill(os.getpid(), signal.SIGSEGV)": ("crash", "killed by SIGSEGV"),
    "os.abort()": ("crash", "killed by SIGABRT"),
    "sys.exit(3)": ("error", "exit status 3"),
    "raise ValueError('no such shape')": ("error", "exit status 1: ValueError: no such shape"),
    "time.sleep(600)": ("timeout", "no output within"),
    "print(np.empty(1 << 44, np.uint8))": ("error", "out of memory"),
}


@pytest.mark.parametrize("act", FATES)
def test_what_becomes_of_one_case_is_its_own(tmp_path: Path, act: str) -> None:
    status, reason = FATES[act]
    timeout = 3.0 if status == "timeout" else 60.0
    port = program(tmp_path, FATE.format(act))
    results, starts = run(port, SMALL, OTHER, "normal/1x20x7", timeout=timeout)
    found = contexts(results)
    assert found[SMALL].status == status, found[SMALL].line
    assert reason in (found[SMALL].reason or "")
    assert {r.status for r in results if r.cell.case.endswith(SMALL)} == {status}
    assert {found[name].status for name in (OTHER, "normal/1x20x7")} == {"passed"}
    assert starts["program@cpu"] <= 4


def test_reasons_do_not_depend_on_the_folder_or_the_case(tmp_path: Path) -> None:
    text = "name = sorted(os.listdir(inputs))[0]\nsys.exit(os.path.join(inputs, name) + ' is bad')"
    results, _ = run(program(tmp_path, text), SMALL, OTHER)
    assert {r.reason for r in contexts(results).values()} == {
        "exit status 1: INPUTS/CASE.safetensors is bad"
    }


def test_a_program_that_fails_after_its_last_output_has_failed(tmp_path: Path) -> None:
    results, _ = run(program(tmp_path, "each()\nos.abort()"), SMALL, OTHER)
    assert {r.status for r in results} == {"crash"}


def test_a_program_that_always_crashes_is_given_up(tmp_path: Path) -> None:
    results, starts = run(program(tmp_path, "os.abort()"), "normal/*")
    found = [r.status for r in contexts(results).values()]
    assert found[:3] == ["crash"] * 3
    assert set(found[3:]) == {"skipped"}
    assert starts["program@cpu"] == 4


def test_a_program_that_writes_nothing_is_missing_its_results(tmp_path: Path) -> None:
    results, _ = run(program(tmp_path, "pass"), SMALL, OTHER)
    assert statuses(results, SMALL)["C"] == "missing"
    assert "no file" in (contexts(results)[SMALL].reason or "")


NOISE = """
def fate(name, **arrays):
    for _ in range(200):
        os.write(1, os.urandom(1 << 16))
    return answer(name, **arrays)
each(fate)
"""


def test_endless_and_binary_output_is_thrown_away(tmp_path: Path) -> None:
    results, _ = run(program(tmp_path, NOISE), SMALL, OTHER)
    assert {r.status for r in contexts(results).values()} == {"passed"}


def test_output_that_does_not_end_is_a_timeout(tmp_path: Path) -> None:
    text = "while True: os.write(2, b'all work and no play\\n' * 1000)"
    results, _ = run(program(tmp_path, text), SMALL, timeout=2.0)
    assert contexts(results)[SMALL].status == "timeout"
    assert "no play" in (contexts(results)[SMALL].detail or "")


@LINUX
def test_nothing_is_left_running(tmp_path: Path) -> None:
    mark = f"QKVAC_TEST_MARK_{os.getpid()}"
    text = f"""
    each()
    for _ in range(2):
        subprocess.Popen(["sleep", "600"], start_new_session=True,
                         env={{**os.environ, {mark!r}: "1"}})
    """
    results, _ = run(program(tmp_path, text), SMALL)
    assert contexts(results)[SMALL].status == "passed"
    assert marked(mark) == []


def marked(mark: str) -> list[int]:
    """Processes that have an environment variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


FOLDER_TRICKS = {
    "a link instead of the folder": """
        import shutil
        elsewhere = os.path.join(os.path.dirname(__file__), "elsewhere")
        os.rename(outputs, elsewhere)
        os.symlink(elsewhere, outputs)
    """,
    "links instead of files": """
        for name in os.listdir(outputs):
            path = os.path.join(outputs, name)
            os.rename(path, path + ".kept")
            os.symlink(path + ".kept", path)
    """,
    "truncated files": """
        for name in os.listdir(outputs):
            os.truncate(os.path.join(outputs, name), 40)
    """,
}


@pytest.mark.parametrize("name", FOLDER_TRICKS)
def test_tricks_with_the_folder_are_errors(tmp_path: Path, name: str) -> None:
    text = "each()\n" + textwrap.dedent(FOLDER_TRICKS[name])
    results, _ = run(program(tmp_path, text), SMALL)
    assert {r.status for r in results} == {"error"}, results[0].line


def test_inputs_belong_to_the_program(tmp_path: Path) -> None:
    text = """
    each()
    for name in os.listdir(inputs):
        os.truncate(os.path.join(inputs, name), 0)
    """
    results, _ = run(program(tmp_path, text), SMALL, OTHER, dtypes=())
    assert {r.status for r in contexts(results).values()} == {"passed"}


def test_an_answer_that_varies_fails_the_repetition(tmp_path: Path) -> None:
    text = """
    def fate(name, X, **weights):
        return answer(name, X * (np.float32(1.0000001) if "repeat-1" in name else 1), **weights)
    each(fate)
    """
    results, _ = run(program(tmp_path, text), MAIN)
    found = {r.cell.quantity: r for r in results}
    assert (found["repeat"].status, found["repeat"].clause) == ("failed", "metamorphic")
    assert found["C"].status == "passed"


def test_a_failure_says_how_to_see_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "each(lambda name, **a: {'C': 2 * answer(name, **a)['C']})"
    words = shlex.split(program(tmp_path, text))[1:]
    status, out, _ = command(capsys, "check", "--case", SMALL, "--", *words)
    assert status == 1
    line = f"again: qkvac check --case attention/{SMALL} --dtype float64 {text_of(words)}"
    assert line.replace(" ", "") in "".join(out.split())


# --- bad usage -------------------------------------------------------------------------------


def test_what_cannot_be_started_is_bad_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"plain": "data", "port.py": "", "bad": "#!/no/such/shell\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bad").chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 100)
    (tmp_path / "binary").chmod(0o755)
    (tmp_path / "folder").mkdir()
    for words, message in {
        ("no-such-program",): "no program of this name",
        ("./absent",): "no such file",
        ("./plain",): "not executable; chmod +x",
        ("plain",): "did you mean ./plain?",
        ("./port.py",): "checked without --",
        ("./folder",): "a folder",
        ("./bad", "--flag"): "cannot be started",
        ("./binary",): "neither a program for this machine",
        (): "name a command after --",
    }.items():
        status, out, err = command(capsys, "check", "--case", SMALL, "--", *words)
        assert (status, out) == (2, ""), words
        assert message in err
        assert len(err.splitlines()) == 1


def test_options_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = command(capsys, "check", "port.py", "--", "ls")
    assert status == 2
    assert "unexpected extra argument" in err


def test_names_and_words_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_port.js").write_text("")
    assert short_name(["node", "my_port.js", "--fast"]) == "my_port"
    assert short_name(["engine", "run"]) == "engine"
    assert words_of(text_of(["a b", "--c", "'"])) == ["a b", "--c", "'"]
    with pytest.raises(UsageError):
        words_of("-- 'unbalanced")
    check_program([sys.executable])


# --- from elsewhere --------------------------------------------------------------------------


def test_python_takes_a_command_too(tmp_path: Path) -> None:
    report = qkvac.check(program(tmp_path), cases=[SMALL], dtypes=["float32"])
    assert report.passed


def test_a_cell_can_be_asked_for_alone(tmp_path: Path) -> None:
    selection = Selection((), program(tmp_path), ("attention",), ("float32",), cases=(SMALL, OTHER))
    with Engine(selection, Options()) as engine:
        cells = [cell for cell in engine.cells if cell.quantity == "C"]
        assert {engine.result(cell).status for cell in cells} == {"passed"}
        engine.close()
    assert sum(engine.starts.values()) == 1


@LINUX
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_program_ends_with_the_one_who_waits(tmp_path: Path, how: signal.Signals) -> None:
    mark = f"QKVAC_TEST_MARK_{os.getpid()}_{how.name}"
    text = """
    open(os.path.join(os.path.dirname(__file__), "now"), "w").close()
    time.sleep(600)
    """
    words = shlex.split(program(tmp_path, text))[1:]
    process = qkvac_process(
        *("check", "--case", SMALL, "--dtype", "float32", "--", *words),
        # Whoever is killed leaves its files behind.
        **{mark: "1", "TMPDIR": str(tmp_path)},
    )
    started = time.monotonic()
    while not (tmp_path / "now").exists():
        assert time.monotonic() - started < 60
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    while [pid for pid in marked(mark) if is_program(pid)]:
        assert time.monotonic() - started < 90
        time.sleep(0.05)


def is_program(pid: int) -> bool:
    try:
        return b"program.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_program_without_a_match_is_called_again(tmp_path: Path) -> None:
    text = """
    each(lambda name, **given: answer(name, **{**given, "X": given["X"] + given["Wv"][0, 0]}))
    """
    words = words_of(program(tmp_path, text))
    report = qkvac.check(words, dtypes=["float32"], cases=[SMALL, MAIN], workers=1)
    failed = [result for result in report.results if result.status == "failed" and result.worst]
    assert failed
    for result in failed:
        assert "permutation of the tokens permutes the results" in (result.diagnosis or "")
