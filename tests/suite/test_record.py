"""The record: every line fits the schema, nothing is lost, and no folder can spoil a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.engine.engine import Engine
from qkvac.engine.run import Execution, execute
from qkvac.records.environment import describe, identity
from qkvac.records.record import Recorder, from_json, to_json
from qkvac.records.words import INTERRUPTED, USAGE
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options, Selection
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write
from qkvac.usage import UsageError

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@pytest.fixture(scope="module")
def schema() -> Mapping[str, Any]:
    text = (resources.files("qkvac.records") / "record.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(loaded)
    return loaded


@pytest.fixture(scope="module")
def valid(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    validate: Callable[[Mapping[str, Any]], None]
    validate = jsonschema.Draft202012Validator(schema).validate
    return validate


def recorded(
    folder: Path, port: str = "", watch: Callable[[Result], None] | None = None, **options: Any
) -> tuple[Execution, list[dict[str, Any]]]:
    """A run of two cases, and the lines of its record."""
    path = folder / "run.jsonl"
    selection = Selection(
        port=port or write(folder), cases=(SMALL, MAIN, "empty/*"), dtypes=("float32",)
    )
    done = execute(Engine(selection, Options(**options)), path, watch)
    return done, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_record_has_a_header_a_line_per_cell_and_a_footer(
    tmp_path: Path, valid: Callable[[Mapping[str, Any]], None]
) -> None:
    done, lines = recorded(tmp_path)
    for line in lines:
        valid(line)
    header, *results, footer = lines
    assert [line["kind"] for line in (header, footer)] == ["header", "footer"]
    assert {line["kind"] for line in results} == {"result"}
    assert len(results) == header["run"]["cells"] == footer["cells"] == len(done.report.results)
    (subject,) = header["run"]["subjects"]
    assert {line["subject"] for line in results} == {subject["id"]}
    assert footer["counts"] == dict(done.report.counts)
    assert footer["exit_status"] == done.exit_status == 0
    assert identity(header["environment"]) == header["environment_id"]
    assert header["environment"]["cpu_features"]
    assert "numpy" in header["environment"]["versions"]


def test_failures_fit_the_schema_too(
    tmp_path: Path, valid: Callable[[Mapping[str, Any]], None]
) -> None:
    port = write(
        tmp_path,
        """
        def attention(X, *W):
            if len(X) == 33:
                os._exit(3)
            Q, K, V, A, C = plain(X, *W)
            Q[0, 0] = np.nan
            return {"Q": Q, "K": K * 2, "A": A, "C": C.astype(np.float64)}
        """,
    )
    done, lines = recorded(tmp_path, port)
    for line in lines:
        valid(line)
    found = {line["status"] for line in lines if line["kind"] == "result"}
    assert found >= {"failed", "crash", "not reported", "unsupported"}
    assert done.exit_status == 1


def test_a_result_survives_being_recorded() -> None:
    cell = Cell(Subject("torch", "compile", "cuda:0"), "float16", "attention/hot/1x2x3/s4", "Ω")
    result = Result(
        cell,
        Status.FAILED,
        clause="exact",
        ratio=float("inf"),
        ulp=3.5,
        digest="0" * 64,
        reason="so",
        worst={"index": [1, 2], "value": float("nan"), "certified": 0.1, "error": 1.0, "bound": 0},
        last=True,
    )
    line = json.loads(json.dumps(to_json(result), allow_nan=False))
    again = from_json(line, {cell.subject.id: cell.subject})
    assert again.worst is not None
    assert math.isnan(again.worst["value"])
    assert {**vars(again), "worst": None} == {**vars(result), "worst": None}


def test_every_field_of_a_result_is_in_the_schema(schema: Mapping[str, Any]) -> None:
    described = schema["$defs"]["result"]["properties"].keys()
    written = {field.name for field in fields(Result)} - {"cell"}
    assert described == written | {"kind", "subject", "dtype", "case", "quantity"}


def test_what_is_false_or_unknown_takes_no_room() -> None:
    cell = Cell(Subject("torch", "eager", "cpu"), "float32", "attention/hot/1x2x3", "C")
    line = to_json(Result(cell, Status.SKIPPED))
    assert line.keys() == {"kind", "subject", "dtype", "case", "quantity", "status"}


@given(number=st.floats(min_value=0.0, allow_nan=False))
def test_measured_numbers_are_short_and_keep_their_first_digits(number: float) -> None:
    cell = Cell(Subject("torch", "eager", "cpu"), "float32", "attention/hot/1x2x3", "C")
    line = json.loads(json.dumps(to_json(Result(cell, Status.PASSED, ratio=number))))
    read = from_json(line, {cell.subject.id: cell.subject}).ratio
    assert read is not None
    assert read == number or abs(read - number) <= 5e-6 * number
    digits = len(Decimal(str(line["ratio"])).normalize().as_tuple().digits)
    assert digits <= 6 or line["ratio"] == "inf"


def test_a_header_says_what_every_subject_was_judged_by(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        QKVAC = {
            "arithmetic": {"accumulation": "float64", "float32": {"softmax": "fused"}},
            "conventions": {"empty_row": "NaN"},
        }
        def attention(*arrays): return plain(*arrays)[-1]
        """,
    )
    _, lines = recorded(tmp_path, port)
    (subject,) = lines[0]["run"]["subjects"]
    model = subject["arithmetic"]["float32"]
    assert (model["storage"], model["accumulation"], model["softmax"]) == (
        "float32",
        "float64",
        "fused",
    )
    assert subject["conventions"]["empty_row"] == "NaN"
    assert subject["conventions"]["mask"] == "True keeps"


def test_a_traceback_is_recorded_once(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(*arrays): raise KeyError('lost')")
    _, lines = recorded(tmp_path, port)
    errors = [line for line in lines if line.get("status") == "error"]
    told = [line["detail"] for line in errors if "detail" in line]
    assert len(errors) > len(told)
    assert len(told) == len(set(told))
    assert all("KeyError: 'lost'" in text for text in told)
    assert told


def test_lines_are_there_as_soon_as_results_are(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    seen = []

    def watch(result: Result) -> None:
        seen.append(len(path.read_text(encoding="utf-8").splitlines()))

    done, _ = recorded(tmp_path, watch=watch)
    assert seen == [count + 2 for count in range(len(done.report.results))]


def test_a_run_that_ends_early_has_no_footer(tmp_path: Path) -> None:
    def interrupt(result: Result) -> None:
        raise KeyboardInterrupt

    done, lines = recorded(tmp_path, watch=interrupt)
    assert [line["kind"] for line in lines] == ["header", "result"]
    assert done.exit_status == INTERRUPTED
    assert len(done.report.results) == 1


def test_the_first_failure_ends_a_run_that_is_told_so(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(*arrays): return 2 * plain(*arrays)[-1]")
    done, lines = recorded(tmp_path, port, fail_fast=True, workers=1)
    assert [result.status for result in done.report.failures] == [Status.FAILED]
    assert len(done.report.results) < lines[0]["run"]["cells"]
    assert len(done.report.failures) == 1
    assert lines[-1]["kind"] == "result"
    assert done.exit_status == 1


@pytest.mark.parametrize("path", ["no/such/folder/run.jsonl", "", "/proc/run.jsonl"])
def test_a_record_that_cannot_be_begun_is_refused_before_anything_runs(
    tmp_path: Path, path: str
) -> None:
    selection = Selection(port=write(tmp_path), cases=(SMALL,))
    engine = Engine(selection, Options())
    seen: list[Result] = []
    with pytest.raises(UsageError, match="cannot be written") as caught:
        execute(engine, tmp_path / path, seen.append)
    assert "\n" not in str(caught.value)
    assert seen == []


@FULL
def test_a_full_disk_at_the_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No space left"):
        Recorder(Path("/dev/full"), describe((), Options()), {})


def test_a_full_disk_later_loses_nothing_that_was_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Recorder._line
    count = 0

    def failing(self: Recorder, data: Mapping[str, Any]) -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise OSError(28, "No space left on device")
        line(self, data)

    monkeypatch.setattr(Recorder, "_line", failing)
    done, lines = recorded(tmp_path)
    assert len(lines) == 3
    assert count == 4, "it is not tried again"
    assert len(done.report.results) > 10
    assert done.report.exit_status == 0
    assert done.exit_status == USAGE
    assert "No space left" in done.record_error


def test_the_environment_has_the_versions_of_everything_that_computes() -> None:
    raw = {"requires": ["pytest", "no-such-distribution"]}
    entry = Entry(Subject("mine", "default", "cpu"), raw, ("attention",), {"mine": "3"})
    found = describe((entry,), Options())
    assert found["versions"]["pytest"] == pytest.__version__
    assert found["versions"]["mine"] == "3"
    assert "no-such-distribution" not in found["versions"]
    assert found["system"]
    assert found["accelerators"] == []


def test_accelerators_are_asked_for_only_where_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkvac.records import environment

    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'A Card, 570.1'\necho 'B Card, 570.1'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    environment._accelerators.cache_clear()
    found = {
        device: describe((Entry(Subject("t", "eager", device), {}, (), {}),), Options())
        for device in ("cpu", "cuda:0")
    }
    environment._accelerators.cache_clear()
    assert found["cpu"]["accelerators"] == []
    assert found["cuda:0"]["accelerators"] == ["A Card, 570.1", "B Card, 570.1"]
    assert identity(found["cpu"]) != identity(found["cuda:0"])


def test_a_footer_says_what_adapters_told_of_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    selection = Selection(backends=("numpy/eager",), cases=(f"attention/{SMALL}",))
    execute(Engine(selection, Options()), path)
    footer = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    told = footer["settings"]["numpy/eager@cpu"]
    assert told["blas"]
    assert told["threads.OMP_NUM_THREADS"] == "1"
