"""Ports of gradients: what they return, what may be left out, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import qkvac
from qkvac.cells import Status, Subject
from qkvac.records.report import Report
from qkvac.spec.cases.catalogue import cases
from qkvac.subjects.roster import Entry

ATTENTION = """
import numpy as np


def attention_gradients(X, Wq, Wk, Wv, dC):
    Wq, Wk, Wv = {given}
    root = X.dtype.type(np.sqrt(Wq.shape[1]))
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.T / root
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    dV = A.T @ dC
    dA = dC @ V.T
    dS = A * (dA - (A * dA).sum(axis=1, keepdims=True)) / root
    dQ, dK = dS @ K, dS.T @ Q
    dX = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T
    dWq, dWk, dWv = X.T @ dQ, X.T @ dK, X.T @ dV
    return {returned}
"""
MASKED = """
import numpy as np

QKVAC = {{"supports": "all", "dtypes": ["float64"]}}


def scaled_dot_product_attention_gradients(Q, K, V, dC, *, causal=False, mask=None, scale=None):
    if causal or mask is None or mask.dtype == bool or K.shape[-3] != Q.shape[-3]:
        raise NotImplementedError("case")
    T = lambda a: a.swapaxes(-1, -2)
    scale = 1 / np.sqrt(Q.shape[-1]) if scale is None else scale
    S = Q @ T(K) * scale + mask
    top = S.max(axis=-1, keepdims=True)
    E = np.exp(S - np.where(top > -np.inf, top, 0))
    total = E.sum(axis=-1, keepdims=True)
    A = E / np.where(total > 0, total, 1)
    dA = dC @ T(V)
    dS = A * (dA - (A * dA).sum(axis=-1, keepdims=True))
    shape = (1,) * (dS.ndim - mask.ndim) + mask.shape
    repeated = tuple(i for i, size in enumerate(shape) if size != dS.shape[i])
    dmask = dS.sum(axis=repeated, keepdims=True).reshape(mask.shape)
    return {returned}
"""
PLAIN = "Wq, Wk, Wv"
TURNED = "Wq.T, Wk.T, Wv.T"
CASES = ("attention_gradients/normal/*", "attention_gradients/fresh*/*")


def check(folder: Path, source: str, **options: object) -> Report:
    path = folder / "gradient_port.py"
    path.write_text(source, encoding="utf-8")
    return qkvac.check(str(path), **{"dtypes": ["float32"], "cases": CASES, **options})  # type: ignore[arg-type]


def attention(returned: str, given: str = PLAIN) -> str:
    return ATTENTION.format(given=given, returned=returned)


def failed(report: Report) -> set[tuple[str, str]]:
    return {(result.cell.quantity, result.status) for result in report.failures}


@pytest.mark.parametrize(
    "returned",
    [
        "dX, dWq, dWk, dWv",
        '{"dX": dX, "dWq": dWq, "dWk": dWk, "dWv": dWv, "A": A, "dA": dA, "dQ": dQ, "dV": dV}',
    ],
)
def test_gradients_come_in_a_tuple_or_with_the_steps_on_the_way(
    tmp_path: Path, returned: str
) -> None:
    report = check(tmp_path, attention(returned))
    assert report.exit_status == 0
    assert {r.cell.profile for r in report.results if r.decisive} == {"attention_gradients"}
    assert "computes the same attention_gradients as the spec" in report.sentence


def test_a_gradient_that_is_left_out_is_missing(tmp_path: Path) -> None:
    report = check(tmp_path, attention('{"dX": dX, "dWq": dWq, "dWv": dWv}'))
    assert failed(report) == {("dWk", Status.MISSING)}
    report = check(tmp_path, attention("dX, dWq, None, dWv"))
    assert failed(report) == {("dWk", Status.MISSING)}


def test_a_gradient_of_zeros_fails(tmp_path: Path) -> None:
    report = check(tmp_path, attention("dX, dWq, np.zeros_like(dWk), dWv"))
    assert failed(report) == {("dWk", Status.FAILED)}


def test_one_array_or_too_few_are_no_gradients(tmp_path: Path) -> None:
    for returned in ("dX", "dX, dWq, dWv"):
        report = check(tmp_path, attention(returned))
        assert {result.status for result in report.failures} == {Status.ERROR}
        assert "expected 4" in str(report.failures[0].reason)


def test_gradients_of_weights_have_the_declared_layout(tmp_path: Path) -> None:
    declared = {"declare": ["conventions.weight_layout='c×d'"]}
    turned = attention("dX, dWq.T, dWk.T, dWv.T", TURNED)
    assert check(tmp_path, turned, **declared).exit_status == 0
    wrong = attention("dX, dWq, dWk, dWv", TURNED)
    report = check(tmp_path, wrong, **declared)
    assert {name for name, _ in failed(report)} == {"dWq", "dWk", "dWv"}


def test_the_gradient_of_an_additive_mask_is_asked_for(tmp_path: Path) -> None:
    asked = {"cases": ["*gradients/*/additive*/*"], "dtypes": ["float64"]}
    gradients = "dS @ K * scale, T(dS) @ Q * scale, T(A) @ dC"
    report = check(tmp_path, MASKED.format(returned=f"{gradients}, dmask"), **asked)
    assert report.exit_status == 0
    assert any(r.cell.quantity == "dmask" and r.decisive for r in report.results)
    named = f"dict(zip(['dQ', 'dK', 'dV'], [{gradients}]))"
    report = check(tmp_path, MASKED.format(returned=named), **asked)
    assert failed(report) == {("dmask", Status.MISSING)}


def test_gradients_of_queries_without_keys_are_asked_where_their_weights_are_zeros() -> None:
    profile = "scaled_dot_product_attention_gradients"
    subject = Subject("my_port", "default", "cpu", port="my_port.py")

    def lacking(**conventions: str) -> set[str]:
        raw = {"supports": "all", "conventions": conventions}
        entry = Entry(subject, raw, (profile,), {})
        return {case.id for case in cases(profile) if entry.lacks(case) == "empty rows"}

    assert not lacking()
    assert not lacking(causal_alignment="bottom-right")
    blind = lacking(empty_row="mean")
    # The first query of a causal kernel whose mask drops the first key sees none either.
    assert {id.split("/")[1] for id in blind} == {"empty-row", "but-first"}
    later = lacking(empty_row="NaN", causal_alignment="bottom-right")
    assert f"{profile}/normal/causal/2x6x3x9x5x7x4" in later - blind
    assert not any(Entry(subject, {}, ("x",), {}).lacks(c) == "empty rows" for c in cases())
