"""The suite from Python: named ports, and ports that are loaded already."""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qkvac
from qkvac.isolation import fpenv
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write
from qkvac.usage import UsageError

QUICK: dict[str, Any] = {"cases": [SMALL], "dtypes": ["float32"]}


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> Any:
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, A, A @ V


def doubled(*arrays: Any) -> Any:
    return 2 * attention(*arrays)[-1]


class Holder:
    """An object with the function, and a declaration."""

    QKVAC = {"dtypes": ["float32"], "arithmetic": {"softmax": "fused"}}  # noqa: RUF012

    def attention(self, *arrays: Any) -> Any:
        return attention(*arrays)


def module(**names: Any) -> ModuleType:
    made = ModuleType("some.module")
    vars(made).update(names)
    return made


LOADED: dict[str, tuple[object, dict[str, Any], str]] = {
    "function": (attention, {}, "attention"),
    "profile": (lambda *a: attention(*a), {"profile": "attention"}, "<lambda>"),
    "mapping": ({"attention": attention}, {}, "mapping"),
    "module": (module(attention=attention), {}, "module"),
    "object": (Holder(), {}, "Holder"),
    "namespace": (SimpleNamespace(attention=attention), {}, "SimpleNamespace"),
}


@pytest.mark.parametrize("name", LOADED)
def test_a_loaded_port_is_checked(name: str) -> None:
    port, options, label = LOADED[name]
    report = qkvac.check(port, **options, **QUICK)
    assert report.passed, str(report)
    assert {result.cell.subject.id for result in report.results} == {f"{label}@cpu"}
    qkvac.assert_conforms(port, **options, **QUICK)


def test_a_wrong_loaded_port_does_not_conform() -> None:
    with pytest.raises(AssertionError, match="DEVIATES: doubled@cpu") as caught:
        qkvac.assert_conforms(doubled, profile="attention", **QUICK)
    again = f"again: qkvac.check(doubled, cases=['attention/{SMALL}'], dtypes=['float32'])"
    assert again in str(caught.value)


@pytest.mark.parametrize("name", ["dtypes", "cases", "profiles", "devices"])
def test_a_text_is_no_list(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}='float32' is a text .*: \['float32'\]"):
        qkvac.assert_conforms(doubled, **{name: "float32"})


def test_the_options_are_documented_where_they_are_asked_for() -> None:
    text = qkvac.assert_conforms.__doc__ or ""
    options = list(inspect.signature(qkvac.check).parameters)[1:]
    assert [name for name in options if f"`{name}" not in text] == []


def test_it_is_called_here_and_judged_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    places = set()

    def port(*arrays: Any) -> Any:
        places.add((os.getpid(), threading.get_ident()))
        return attention(*arrays)

    def judge(*_: Any) -> None:
        raise AssertionError("judged in the port's process")

    monkeypatch.setattr("qkvac.engine.judging.Judge.judge", judge)
    monkeypatch.setattr("qkvac.engine.judging.judge", judge)
    report = qkvac.check(port, profile="attention", cases=[SMALL, MAIN], dtypes=["float32"])
    assert report.passed, str(report)
    assert places == {(os.getpid(), threading.get_ident())}
    assert {"repeat", "state", "unchanged"} <= {r.cell.quantity for r in report.results}


def test_what_it_does_to_its_inputs_is_found() -> None:
    def port(X: Any, *W: Any) -> Any:
        returned = attention(X, *W)
        X[:] = 0
        return returned

    report = qkvac.check(port, profile="attention", cases=[MAIN], dtypes=["float32"])
    failed = {result.cell.quantity for result in report.failures}
    assert "unchanged" in failed
    assert "C" not in failed


@pytest.mark.parametrize(
    ("declare", "model"),
    [
        ({"arithmetic": {"softmax": "fused", "float32": {"blocks": 16}}}, "blocks of 16 keys"),
        (["arithmetic.softmax=fused"], "softmax fused"),
        (["arithmetic.softmax=fused", 'arithmetic.softmax="reciprocal"'], "softmax reciprocal"),
    ],
)
def test_it_can_be_declared(declare: Any, model: str) -> None:
    report = qkvac.check(attention, declare=declare, **QUICK)
    assert report.passed
    assert model in " ".join(str(report).split())


def test_a_named_port_takes_the_same_declaration(tmp_path: Path) -> None:
    report = qkvac.check(write(tmp_path), declare={"arithmetic": {"softmax": "fused"}}, **QUICK)
    assert report.passed
    assert "softmax fused" in str(report)


def test_a_declared_device_and_mode_are_labels_of_the_only_ones() -> None:
    declare = {"devices": ["gpu:0", "gpu:1"], "modes": ["fast", "slow"]}
    report = qkvac.check(attention, declare=declare, **QUICK)
    assert {result.cell.subject.id for result in report.results} == {"attention/fast@gpu:0"}
    report = qkvac.check(attention, declare=declare, devices=["gpu:1"], **QUICK)
    assert {result.cell.subject.id for result in report.results} == {"attention/fast@gpu:1"}


def raising(error: BaseException) -> Callable[..., Any]:
    def port(X: Any, *W: Any) -> Any:
        if len(X) == 33:
            raise error
        return attention(X, *W)

    return port


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_an_exception_is_a_result(error: BaseException) -> None:
    port = raising(error)
    cases = [f"attention/{SMALL}", f"attention/{MAIN}"]
    report = qkvac.check(port, profile="attention", cases=cases, dtypes=["float32"])
    found = {(r.cell.case, r.status) for r in report.results if r.cell.quantity == "C"}
    assert found == {(f"attention/{SMALL}", "passed"), (f"attention/{MAIN}", "error")}


def test_ctrl_c_goes_on_to_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        qkvac.check(raising(KeyboardInterrupt()), profile="attention", dtypes=["float32"])


@pytest.fixture
def upward() -> Iterator[None]:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("sets x86-64 registers")
    library = ctypes.CDLL("libm.so.6")
    library.fesetround(0x800)
    try:
        yield
    finally:
        library.fesetround(0)


@pytest.mark.usefixtures("upward")
def test_the_callers_floating_point_environment_is_the_ports() -> None:
    seen = set()

    def port(*arrays: Any) -> Any:
        seen.add(fpenv.describe())
        return attention(*arrays)

    assert fpenv.describe() == "rounding upward"
    report = qkvac.check(port, profile="attention", cases=[MAIN], dtypes=["float32"])
    assert fpenv.describe() == "rounding upward"
    assert seen == {"rounding upward"}
    environment = {r.status for r in report.results if r.cell.quantity == "environment"}
    assert environment == {"passed"}


@pytest.mark.parametrize(
    ("port", "options", "words"),
    [
        (doubled, {}, 'what does doubled compute? say it by profile="attention"'),
        (doubled, {"profile": "atention"}, "unknown profile 'atention'; did you mean attention?"),
        (3, {"profile": "attention"}, "profile='attention' is for a single function, not for int"),
        ("a.py", {"profile": "attention"}, "is for a single function, not for a.py"),
        ({"atention": attention}, {}, "unknown function 'atention'; did you mean attention?"),
        ({"attention": 3}, {}, "attention is of type int, not a function"),
        (module(atention=attention), {}, "found `atention`, did you mean `attention`?"),
        (3, {}, "int offers no function of a known name"),
        (attention, {"declare": {"dtype": ["float32"]}}, "did you mean 'dtypes'?"),
        (attention, {"declare": {"name": object()}}, "name holds something besides plain values"),
        (module(attention=attention, QKVAC=[3]), {}, "QKVAC is of type list"),
        (attention, {"dtypes": ["float8"]}, "unknown dtype 'float8'"),
        ([], {}, "name a command"),
    ],
)
def test_a_mistake_is_one_clear_line(port: object, options: dict[str, Any], words: str) -> None:
    with pytest.raises(qkvac.UsageError) as caught:
        qkvac.check(port, **options)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_command_is_the_list_of_its_words(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    program.chmod(0o755)
    report = qkvac.check([program, "--flag"], **QUICK)
    assert not report.passed
    assert {result.cell.subject.id for result in report.results} == {"program@cpu"}
