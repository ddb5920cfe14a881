"""What a worker answers: adapters that are called like ports, and every way to fail."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qkvac.isolation.worker
from qkvac.isolation import fpenv
from qkvac.isolation.process import BackendError, Target, Worker
from qkvac.isolation.protocol import Message
from qkvac.isolation.worker import Server, plain
from qkvac.targets.packages import adapter
from qkvac.tests.suite.workers import arrays, ask

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")


def test_a_target_is_one_thing() -> None:
    with pytest.raises(ValueError, match="either"):
        Target()
    with pytest.raises(ValueError, match="either"):
        Target(backend="numpy", port="a.py")


def test_an_adapter_is_called_like_a_port() -> None:
    with Worker(Target(backend="numpy", mode="eager")) as worker:
        greeting = worker.hello()
        assert set(greeting.functions) == set(adapter("numpy").QKVAC["profiles"])
        assert greeting.declaration["name"] == "numpy"
        assert "cpu" in greeting.devices
        assert greeting.versions["numpy"] == np.__version__
        outcome = ask(worker, 4)
        assert outcome.outputs.keys() == {"Q", "K", "V", "Ω", "A", "C"}
        budget = worker.budget("attention", arrays(4))
        assert budget is not None
        assert len(budget["contractions"]) == 5
        assert budget["contractions"][0]["out"] == [4, 3]


def test_a_backend_that_cannot_run_says_why() -> None:
    with Worker(Target(backend="numpy", mode="warp")) as worker:
        with pytest.raises(BackendError, match="warp"):
            worker.hello()
        assert ask(worker, 4).status == "error"


class Failing:
    """An adapter of which every call fails in its own way."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def attention(self, *inputs: Any) -> Any:
        raise self.error


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module that this process's workers know as the backend `failing`."""
    module = SimpleNamespace(QKVAC={})
    monkeypatch.setitem(sys.modules, "qkvac.backends.failing", module)
    monkeypatch.setattr(qkvac.isolation.worker, "BACKENDS", frozenset())
    monkeypatch.setenv("QKVAC_MODE", "eager")
    monkeypatch.setenv("QKVAC_DEVICE", "cpu")
    return module


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        pytest.param(NotImplementedError("no float16"), "unsupported", "no float16", id="refuses"),
        pytest.param(RuntimeError("ran eagerly"), "error", "RuntimeError: ran", id="mode"),
        pytest.param(RuntimeError("CUDA out of memory."), "error", "out of memory: R", id="memory"),
    ],
)
def test_the_status_of_an_adapters_exception(
    backend: SimpleNamespace, error: Exception, status: str, words: str
) -> None:
    backend.open = lambda mode, device: Failing(error)
    server = Server()
    assert server.answer(Message({"op": "hello", "backend": "failing"})).header["ok"]
    header = server.answer(Message({"op": "call", "profile": "attention"}, arrays(2))).header
    assert (header["ok"], header["status"]) == (False, status)
    assert header["reason"].startswith(words)


def test_a_framework_that_is_not_installed_is_skipped(backend: SimpleNamespace) -> None:
    def fail(mode: str, device: str) -> None:
        raise ModuleNotFoundError("No module named 'frame'")

    backend.open = fail
    header = Server().answer(Message({"op": "hello", "backend": "failing"})).header
    assert (header["status"], header["reason"]) == (
        "skipped",
        "ModuleNotFoundError: No module named 'frame'",
    )


def test_unknown_requests_are_refused() -> None:
    assert not Server().answer(Message({"op": "quack"})).header["ok"]
    assert not Server().answer(Message({"op": ["call"]})).header["ok"]


def test_evidence_becomes_plain_values() -> None:
    value = {
        "graphs": np.int64(2),
        3: (np.float32(0.5), {"b", "a"}),
        "infinite": float("inf"),
        "device": object,
    }
    assert plain(value) == {
        "graphs": 2,
        "3": [0.5, ["a", "b"]],
        "infinite": "inf",
        "device": "<class 'object'>",
    }
    nested: Any = 1
    for _ in range(50):
        nested = [nested]
    assert plain(nested)


def test_a_default_environment_has_no_description() -> None:
    assert fpenv.describe() == ""
