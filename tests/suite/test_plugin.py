"""The pytest plugin: silent in other people's suites, and the matrix in its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.pytest_matrix.matrix import Matrix, label

pytest_plugins = ["pytester"]

PORT = """
import numpy as np

QKVAC = {"dtypes": ["float32"]}


def attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    scores = Q @ K.T
    E = scores / np.float32(Wq.shape[1] ** 0.5)
    E = np.exp(E - E.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return {"Q": Q, "K": K, "V": V, "scores": scores, "A": A, "C": A @ V}
"""
CONFORMANCE = ("--pyargs", "qkvac.tests.conformance", "--qkvac-case", "attention/worked-example/*")
PROBE = """
import sys

def pytest_sessionfinish(session):
    print("\\nMODULES", *sorted(sys.modules))
    print("PLUGINS", *sorted(str(n) for n, _ in session.config.pluginmanager.list_name_plugin()))
"""


def lines(result: pytest.RunResult, start: str) -> list[str]:
    return [line for line in result.outlines if line.startswith(start)]


def probed(result: pytest.RunResult, start: str) -> set[str]:
    (line,) = lines(result, start)
    return set(line.split()[1:])


# --- other people's suites ----------------------------------------------------------------------


def test_loading_the_plugin_imports_nothing_but_itself() -> None:
    code = (
        "import sys, importlib.metadata, pytest; before = set(sys.modules); "
        "(entry,) = [e for e in importlib.metadata.entry_points(group='pytest11') "
        "if e.name == 'qkvac']; entry.load(); print(*sorted(set(sys.modules) - before))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert {m for m in printed.split() if not m.startswith("__editable__")} <= {
        "qkvac",
        "qkvac.plugin",
        "qkvac.pytest_matrix",
    }


def test_another_suite_runs_without_the_matrix(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PROBE)
    pytester.makepyfile(
        """
        import sys

        def test_nothing_heavy_was_imported():
            assert "qkvac.plugin" in sys.modules
            heavy = ["numpy", "flint", "ml_dtypes", "rich", "click", "jsonschema", "xdist.dsession"]
            assert not [name for name in heavy if name in sys.modules]
        """
    )
    # The plugin of jaxtyping imports NumPy; it comes with some of the libraries.
    result = pytester.runpytest_subprocess("-s", "-p", "no:xdist", "-p", "no:jaxtyping")
    result.assert_outcomes(passed=1)
    assert probed(result, "MODULES") & {
        "qkvac",
        "qkvac.plugin",
        "qkvac.pytest_matrix.matrix",
        "qkvac.cells",
    } == {
        "qkvac",
        "qkvac.plugin",
    }
    plugins = probed(result, "PLUGINS")
    assert "qkvac" in plugins
    assert "qkvac-matrix" not in plugins


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=str)
def test_another_suite_is_reported_as_without_the_plugin(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_one="""
        import pytest

        @pytest.mark.parametrize("cell", ["torch/eager@cpu-float32-x", "b"])
        def test_parametrised(cell, record_property):
            record_property("qkvac", "not JSON")

        def test_failing():
            assert 1 == 2

        @pytest.mark.skip(reason="no reason")
        def test_skipped():
            pass

        @pytest.mark.xfail
        def test_expected():
            assert False
        """,
        test_two="def test_other(): pass",
    )

    def run(*more: str) -> tuple[object, list[str]]:
        result = pytester.runpytest_subprocess("-v", "-ra", *options, *more)
        changing = re.compile(r"\d+\.\d+s.*|\[gw\d\]|\[ *\d+%\]|=+")
        outlines = [changing.sub("", line).strip() for line in result.outlines]
        outlines = [line for line in outlines if not line.startswith(("plugins:", "benchmark:"))]
        return result.ret, sorted(outlines) if options else outlines

    assert run() == run("-p", "no:qkvac")


@pytest.mark.parametrize(
    ("dist", "scheduler"),
    [
        ("load", "LoadScheduling"),
        ("loadscope", "LoadScopeScheduling"),
        ("loadfile", "LoadFileScheduling"),
        ("worksteal", "WorkStealingScheduling"),
    ],
)
def test_another_suite_keeps_its_scheduling(
    pytester: pytest.Pytester, dist: str, scheduler: str
) -> None:
    pytester.makeconftest(
        """
        def pytest_terminal_summary(terminalreporter, config):
            sched = config.pluginmanager.get_plugin("dsession").sched
            terminalreporter.write_line(f"SCHEDULER {type(sched).__name__}")
        """
    )
    pytester.makepyfile("def test_one(): pass")
    result = pytester.runpytest_subprocess("-n", "1", "--dist", dist)
    result.assert_outcomes(passed=1)
    assert lines(result, "SCHEDULER") == [f"SCHEDULER {scheduler}"]


@pytest.mark.parametrize(
    "option",
    [
        ("--qkvac-backend", "numpy"),
        ("--qkvac-port", "port.py"),
        ("--qkvac-declare", "dtypes=['float32']"),
        ("--qkvac-strict",),
        ("--qkvac-tier", "full"),
        ("--qkvac-timeout", "5"),
        ("--qkvac-record", "record.jsonl"),
    ],
    ids=lambda option: option[0],
)
def test_an_option_without_the_matrix_is_refused(
    pytester: pytest.Pytester, option: tuple[str, ...]
) -> None:
    """Otherwise a user would take a run for one that tested the port."""
    pytester.makepyfile("def test_one(): pass")
    result = pytester.runpytest_inprocess(*option, syspathinsert=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option[0]} has no effect here*--pyargs qkvac.tests.conform*"])


def test_options_in_a_configuration_disturb_no_other_run(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = --qkvac-device cpu")
    pytester.makepyfile("def test_one(): pass")
    pytester.runpytest_inprocess(syspathinsert=False).assert_outcomes(passed=1)


# --- the matrix ---------------------------------------------------------------------------------


def run_port(pytester: pytest.Pytester, *options: str, port: str = PORT) -> pytest.RunResult:
    pytester.makepyfile(port_of_mine=port)
    return pytester.runpytest_subprocess(*CONFORMANCE, "--qkvac-port", "port_of_mine.py", *options)


def results(record: Path) -> dict[str, dict[str, Any]]:
    """The results of a record by cell, without what differs between two equal runs."""
    table = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in table[:1] + table[-1:]] == ["header", "footer"]
    names = ("subject", "dtype", "case", "quantity")
    return {
        "-".join(line[name] for name in names): {k: v for k, v in line.items() if k != "seconds"}
        for line in table[1:-1]
    }


def test_a_port_passes_and_is_recorded_alike_with_and_without_xdist(
    pytester: pytest.Pytester,
) -> None:
    found = {}
    for count in ("0", "2"):
        result = run_port(pytester, "-v", "-n", count, "--qkvac-record", f"{count}.jsonl")
        assert result.ret == 0, result.outlines
        found[count] = results(pytester.path / f"{count}.jsonl")
        assert len(found[count]) == result.parseoutcomes()["passed"]
        assert any("computes the same" in line for line in result.outlines)
    assert found["0"] == found["2"]
    quantities = {id.rpartition("-")[2] for id in found["0"]}
    assert quantities >= {"Q", "K", "V", "Ω", "A", "C"}
    assert {line["status"] for line in found["0"].values()} == {"passed"}


def test_ids_are_readable(pytester: pytest.Pytester) -> None:
    result = run_port(pytester, "--collect-only", "-q")
    ids = [line.partition("[")[2].rstrip("]") for line in lines(result, "") if "::" in line]
    assert "port_of_mine@cpu-float32-attention/worked-example/6x3x2-C" in ids
    assert "port_of_mine@cpu-float32-attention/worked-example/6x3x2-scores" in ids
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_wrong_port_fails_and_says_how_to_see_it_again(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    wrong = PORT.replace("** 0.5", "** 1.0")
    result = run_port(pytester, *workers, "--qkvac-record", "r.jsonl", port=wrong)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] >= 1
    assert outcomes["passed"] >= 4  # Q, K, V and the scores are right
    result.stdout.fnmatch_lines(
        [
            "*A: failed*",
            "*C equals the result with *",
            "*again: qkvac check port_of_mine.py *worked-example/6x3x2 *float32*",
            "*DEVIATES: port_of_mine@cpu *A*C*",
        ]
    )
    assert not any("Traceback" in line for line in result.outlines)
    shown = result.outlines.index(next(line for line in result.outlines if "= FAILURES" in line))
    summary = next(n for n, line in enumerate(result.outlines) if "= qkvac =" in line)
    told = [n for n, line in enumerate(result.outlines) if "C equals the result with" in line]
    assert any(shown < n < summary for n in told), "each failure says it"
    assert any(n > summary for n in told)
    record = (pytester.path / "r.jsonl").read_text(encoding="utf-8").splitlines()
    failed = [line for line in map(json.loads, record) if line.get("status") == "failed"]
    assert failed
    assert all("C equals the result with" in line["diagnosis"] for line in failed)


def test_nothing_proved_is_an_exit_status_of_its_own(pytester: pytest.Pytester) -> None:
    refusing = PORT.replace("    Q, K", "    raise NotImplementedError('not today')\n    Q, K")
    result = run_port(pytester, "-rs", port=refusing)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert set(result.parseoutcomes()) == {"skipped"}
    result.stdout.fnmatch_lines(["SKIPPED*unsupported*not today*"])


def test_a_part_of_the_matrix_can_be_run(pytester: pytest.Pytester) -> None:
    """Cells that were deselected are not asked for, so a run of Q alone can pass."""
    result = run_port(pytester, "-k", "Q")
    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"passed", "deselected"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--qkvac-backend", "nunpy"), "*unknown backend 'nunpy'; did you mean numpy*"),
        (("--qkvac-dtype", "float31"), "*unknown dtype 'float31'*"),
        (("--qkvac-case", "nothing/*"), "*unknown case 'nothing/[*]'*"),
        (("--qkvac-port", "missing.py"), "*missing.py*"),
        (("--qkvac-memory", "much"), "*'much' is no size*"),
        (("--qkvac-record", "no/folder/record.jsonl"), "*no/folder/record.jsonl*"),
        (("--qkvac-known-deviations", "missing.toml"), "*missing.toml*"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_one_clear_line(
    pytester: pytest.Pytester, option: tuple[str, ...], message: str
) -> None:
    backend = () if option[0] == "--qkvac-backend" else ("--qkvac-backend", "numpy")
    # Half of them beside workers.
    workers = ("-n", "1") if len(option[0]) % 2 else ()
    result = pytester.runpytest_subprocess(
        "--pyargs", "qkvac.tests.conformance", *backend, *option, *workers
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    printed = [line for line in result.errlines if line.strip()]
    assert len(printed) == 1, printed


def test_collecting_starts_nothing_and_imports_no_framework(pytester: pytest.Pytester) -> None:
    starts = pytester.path / "starts"
    pytester.makepyfile(
        sitecustomize=f"""
        import sys

        def note(event, details):
            if event == "subprocess.Popen" and "qkvac.isolation.worker" in details[1]:
                open({str(starts)!r}, "a").write("started\\n")

        sys.addaudithook(note)
        """,
        probe=PROBE,
    )
    os.environ["PYTHONPATH"] = str(pytester.path)  # pytester restores it
    result = pytester.runpytest_subprocess(
        *("-p", "probe", "-s", "-q", "--collect-only", "--qkvac-device", "cpu"),
        *("--qkvac-case", "worked-example/*", "--pyargs", "qkvac.tests.conformance"),
    )
    assert result.ret == 0
    assert any("numpy/eager@cpu-float64-attention/" in line for line in result.outlines)
    assert not probed(result, "MODULES") & {"torch", "jax", "jaxlib", "tensorflow", "keras"}
    assert not starts.exists()


# --- statuses -----------------------------------------------------------------------------------

CELL = Cell(Subject("numpy", "eager", "cpu"), "float32", "attention/normal/33x20x7", "Ω")

OUTCOMES = {
    Status.PASSED: None,
    Status.FAILED: pytest.fail.Exception,
    Status.ERROR: pytest.fail.Exception,
    Status.CRASH: pytest.fail.Exception,
    Status.TIMEOUT: pytest.fail.Exception,
    Status.MISSING: pytest.fail.Exception,
    Status.NOT_REPORTED: pytest.skip.Exception,
    Status.UNSUPPORTED: pytest.skip.Exception,
    Status.SKIPPED: pytest.skip.Exception,
    Status.INFORMATIONAL: pytest.skip.Exception,
    Status.INDECISIVE: pytest.skip.Exception,
    Status.KNOWN_DEVIATION: pytest.xfail.Exception,
    Status.UNEXPECTED_PASS: pytest.fail.Exception,
    Status.NOT_SEEN: pytest.skip.Exception,
}


def settled(config: pytest.Config, result: Result) -> type[BaseException] | None:
    outcome: BaseException | None = None
    try:
        Matrix(config).settle(result)
    except (pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception) as raised:
        outcome = raised
    if outcome is None:
        return None
    assert (result.reason or result.status) in str(outcome)
    return type(outcome)


@pytest.mark.parametrize("status", Status.ALL)
def test_every_status_has_its_outcome(status: str, pytestconfig: pytest.Config) -> None:
    result = Result(CELL, status, reason="for some reason")
    assert settled(pytestconfig, result) is OUTCOMES[status]


@pytest.mark.parametrize("strict", [False, True])
def test_a_suspicious_result_fails_only_when_that_is_asked_for(
    strict: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "qkvac_strict", strict)
    result = Result(CELL, Status.PASSED, grade="suspicious", reason="large", z=9.5, rms=2.5)
    assert settled(pytestconfig, result) is (pytest.fail.Exception if strict else None)


def test_a_label_is_ascii_and_names_the_cell() -> None:
    assert label(CELL) == "numpy/eager@cpu-float32-attention/normal/33x20x7-scores"
