"""Diagnoses in runs: at their end, in records, and whatever else goes wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from qkvac.api import check
from qkvac.diagnosis import evidence, precision, search
from qkvac.diagnosis.samples import Sample
from qkvac.tests.suite.diagnosing import DOUBLE, ORDER, OUTSIDE, SHIFT, SUM, Array
from qkvac.tests.suite.engine_ports import write
from qkvac.tests.suite.shelf import PORTS

FEW = ("attention/normal/6x3x2", "attention/normal/33x20x7", "attention/hot/33x20x7")


def texts(port: str, cases: Sequence[str] = FEW, dtype: str = "float32") -> dict[str, set[str]]:
    """Diagnoses by quantity or check."""
    report = check(PORTS / f"{port}.py", dtypes=[dtype], cases=cases, workers=1)
    found: dict[str, set[str]] = {}
    for result in report.results:
        if not result.ok:
            found.setdefault(result.cell.quantity, set()).add(result.diagnosis or "")
    return found


def test_a_run_ends_with_the_diagnosis_and_the_first_wrong_equation() -> None:
    for text in texts("scaled_by_token_width")["C"]:
        assert text.startswith("C equals the result with the scale 1/√d instead of 1/√c")
        assert "the first equation that goes wrong is A[n, n]" in text


@pytest.mark.parametrize(
    ("port", "dtype", "words"),
    [
        ("tensor_float_products", "float32", "rounded to TF32; behaves like TF32: "),
        ("bfloat16_pairs", "float32", "effective precision: 18 of 24 bits in Q, K, V, "),
        ("float32_softmax", "float64", "in float32; behaves like float32: "),
    ],
)
def test_poor_arithmetic_is_diagnosed_with_the_effective_precision(
    port: str, dtype: str, words: str
) -> None:
    for text in texts(port, dtype=dtype)["C"]:
        assert words in text
        assert f" of {24 if dtype == 'float32' else 53} bits in " in text


def test_wrong_formulas_are_given_no_precision() -> None:
    assert not any("bits in" in text for text in texts("scaled_by_token_width")["C"])


def test_misbehaviour_is_told_by_the_check_that_it_breaks() -> None:
    found = texts("stale_cache")
    assert any("'state'" in text and "cache" in text for text in found["C"])
    assert found["state"] == {evidence.BROKEN["state"]}
    assert texts("weights_scaled_in_place")["unchanged"] == {evidence.BROKEN["unchanged"]}


CLIPPED = """
def attention(X, Wq, Wk, Wv):
    {habit}
    Q, K, V = X @ Wq, np.clip(X @ Wk, -1, 1), X @ Wv
    S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, A, A @ V
"""


def clipped(folder: Path, habit: str = "pass") -> str:
    return write(folder, CLIPPED.format(habit=habit))


def said(port: Any, **options: Any) -> set[str]:
    report = check(port, dtypes=["float32"], cases=FEW, workers=1, **options)
    return {r.diagnosis or "" for r in report.results if r.status == "failed" and r.worst}


def test_a_port_without_a_match_is_called_again(tmp_path: Path) -> None:
    for text in said(clipped(tmp_path)):
        _, _, rest = text.partition("no fault of the catalogue")
        holds, _, fails = rest.partition("; fails: ")
        assert all(what in holds for what in (ORDER, DOUBLE, SUM))
        assert SHIFT in fails


@pytest.mark.parametrize(
    "habit", ["os.abort()", "time.sleep(1000)", "raise ValueError", "return 1"]
)
def test_misbehaviour_in_further_calls_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, habit: str
) -> None:
    monkeypatch.setattr(search, "diagnose", lambda samples, patience: None)
    monkeypatch.setattr(precision, "resembling", lambda samples, patience: None)
    monkeypatch.setattr(evidence, "SECONDS", 4.0)
    usual = check(clipped(tmp_path), dtypes=["float32"], cases=FEW, workers=1)
    port = clipped(tmp_path, f"if len(X) > 1 and np.all(X[:, -1] == 1): {habit}")
    report = check(port, dtypes=["float32"], cases=FEW, workers=1)
    assert [r.status for r in report.results] == [r.status for r in usual.results]
    for text in {r.diagnosis or "" for r in report.results if r.worst and r.status == "failed"}:
        assert all(what in text for what in (ORDER, DOUBLE, SUM))
        assert SHIFT not in text


def test_a_diagnosis_that_goes_wrong_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(samples: Sequence[Sample], patience: float) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(search, "diagnose", broken)
    for text in texts("scaled_by_token_width")["C"]:
        assert text.startswith("there is no diagnosis: ZeroDivisionError: a fault of ours")
        assert "the first equation that goes wrong is A[n, n]" in text
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert told
    assert all("a fault of ours" in str(record.exc_info) for record in told)
    caplog.clear()


def test_a_port_in_this_process_is_not_called_again() -> None:
    def attention(X: Array, Wq: Array, Wk: Array, Wv: Array) -> Mapping[str, Array]:
        return OUTSIDE["scores squared"]({"X": X, "Wq": Wq, "Wk": Wk, "Wv": Wv})

    texts = said(attention)
    assert texts
    for text in texts:
        assert "no fault of the catalogue" in text
        assert ORDER not in text


def test_a_conforming_port_has_nothing_to_explain() -> None:
    assert texts("correct_plain") == {}


def test_the_record_holds_the_diagnosis(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    port = PORTS / "scaled_by_token_width.py"
    check(port, dtypes=["float32"], cases=FEW, workers=1, record=path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    failed = [line for line in lines if line.get("status") == "failed"]
    assert failed
    assert all("the scale 1/√d instead of 1/√c" in line["diagnosis"] for line in failed)
