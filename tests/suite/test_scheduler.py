"""How tests are shared out to xdist's workers, by what they are and by counting processes."""

from __future__ import annotations

import os
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qkvac.cells import Cell, Subject
from qkvac.pytest_matrix.matrix import label
from qkvac.pytest_matrix.scheduler import SubjectScheduling, scope

pytest_plugins = ["pytester"]

FILE = "tests/conformance/test_matrix.py"

PORT = """
import os
import numpy as np

open(os.environ["STARTS"], "a").write(os.environ["QKVAC_MODE"] + "\\n")

QKVAC = {"dtypes": ["float32", "float64"], "modes": ["plain", "blocked", "fused"]}


def attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    scores = Q @ K.T
    E = scores / scores.dtype.type(Wq.shape[1] ** 0.5)
    E = np.exp(E - E.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return {"Q": Q, "K": K, "V": V, "scores": scores, "A": A, "C": A @ V}
"""


@pytest.mark.parametrize(
    "subject",
    [
        Subject("torch", "compile", "cpu"),
        Subject("jax", "jit", "cuda:1"),
        Subject("my-port", "default", "cpu", "my-port.py"),
        Subject("my-port", "a-mode", "cpu", "my-port.py"),
    ],
    ids=lambda subject: subject.id,
)
def test_the_scope_of_a_cell_is_its_subject(subject: Subject) -> None:
    cases = ("attention/normal/33x20x7", "attention/shift-30/33x20x7", "attention/a@b/1x1x1")
    cells = [
        Cell(subject, dtype, case, quantity)
        for dtype in ("float64", "bfloat16")
        for case in cases
        for quantity in ("Q", "Ω", "repeat")
    ]
    files = (FILE, "test_matrix.py", f"/site-packages/qkvac/{FILE}")
    scopes = {scope(f"{file}::test_identical[{label(cell)}]") for cell in cells for file in files}
    assert scopes == {subject.id}


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/suite/test_a.py::test_b", "tests/suite/test_a.py"),
        ("tests/suite/test_a.py::TestC::test_d[x::y]", "tests/suite/test_a.py"),
        ("tests/suite/test_a.py::test_b[torch@cpu-float32-C]", "tests/suite/test_a.py"),
        ("test_matrix.py::test_b[torch@cpu-float32-C]", "test_matrix.py"),
        ("my_test_matrix.py::test_identical[torch@cpu-float32-C]", "my_test_matrix.py"),
        (f"{FILE}::test_other", FILE),
    ],
)
def test_the_scope_of_any_other_test_is_its_file(nodeid: str, expected: str) -> None:
    assert scope(nodeid) == expected


def test_every_mode_of_a_port_starts_once_under_xdist(pytester: pytest.Pytester) -> None:
    """Counted by the port itself; the controller's own question to the port comes on top."""
    pytester.makepyfile(port=PORT)
    starts = pytester.path / "starts"
    os.environ["STARTS"] = str(starts)  # pytester restores the environment
    result = pytester.runpytest_subprocess(
        *("-n", "2", "--pyargs", "qkvac.tests.conformance", "--qkvac-port", "port.py"),
        *("--qkvac-case", "worked-example/*", "--qkvac-case", "normal/33*"),
    )
    assert result.ret == 0, result.outlines
    found = Counter(starts.read_text().split())
    assert found.pop("default") == 1
    assert found == {"plain": 1, "blocked": 1, "fused": 1}


def test_no_backend_starts_twice_under_xdist(pytester: pytest.Pytester) -> None:
    """Counted in the started processes, and by the engines of xdist's workers."""
    starts = pytester.path / "starts"
    pytester.makepyfile(
        sitecustomize=f"""
        import sys

        def note(event, details):
            if event == "subprocess.Popen" and "qkvac.isolation.worker" in details[1]:
                open({str(starts)!r}, "a").write("started\\n")

        sys.addaudithook(note)
        """
    )
    os.environ["PYTHONPATH"] = str(pytester.path)  # pytester restores the environment
    backends = ["numpy/eager", *(["torch/eager"] if find_spec("torch") else [])]
    chosen = [word for backend in backends for word in ("--qkvac-backend", backend)]
    result = pytester.runpytest_subprocess(
        *("-n", "2", "-v", "--pyargs", "qkvac.tests.conformance", *chosen),
        *(
            "--qkvac-device",
            "cpu",
            "--qkvac-case",
            "worked-example/*",
            "--qkvac-case",
            "normal/33*",
        ),
    )
    assert result.ret == 0, result.outlines
    assert starts.read_text().split() == ["started"] * len(backends)
    counted = ", ".join(f"{backend}@cpu 1" for backend in backends)
    result.stdout.fnmatch_lines([f"processes started: {counted}"])
    workers = {line.split()[0] for line in result.outlines if line.startswith("[gw")}
    assert len(workers) == len(backends)


class Node:
    """A worker of xdist that notes what it is given to run."""

    shutting_down = False

    def __init__(self, tests: list[str]) -> None:
        self.tests = tests
        self.given = list[int]()
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, places: list[int]) -> None:
        self.given += places

    def shutdown(self) -> None:
        self.shutting_down = True


def test_files_come_first_then_the_largest_subjects(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every test is given out once, whichever worker ends first."""
    sizes = {"small@cpu": 2, "large@cpu": 6, "middle@cpu": 4}
    tests = [f"{FILE}::test_identical[{id}-{n}]" for id, size in sizes.items() for n in range(size)]
    tests += [f"tests/suite/test_a.py::test_{n}" for n in range(3)]
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    monkeypatch.setattr(pytestconfig.option, "loadscopereorder", True)
    schedule = SubjectScheduling(pytestconfig)
    nodes: list[Any] = [Node(tests), Node(tests)]
    for node in nodes:
        schedule.add_node(node)
        schedule.add_node_collection(node, tests)
    schedule.schedule()
    ended = set[int]()
    while not schedule.tests_finished or any(set(node.given) - ended for node in nodes):
        # The first worker is the faster one.
        node = next(node for node in nodes if set(node.given) - ended)
        place = next(place for place in node.given if place not in ended)
        ended.add(place)
        schedule.mark_test_complete(node, place)
    given = [place for node in nodes for place in node.given]
    assert sorted(given) == list(range(len(tests)))
    assert not schedule.has_pending
    starts = [scope(tests[place]) for place in nodes[0].given]
    assert starts[0] == "tests/suite/test_a.py"
    assert scope(tests[nodes[1].given[0]]) == "large@cpu"


def test_what_a_lost_worker_had_not_ended_goes_to_another(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = [f"{FILE}::test_identical[{id}@cpu-{n}]" for id in "abcdef" for n in range(3)]
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    monkeypatch.setattr(pytestconfig.option, "loadscopereorder", True)
    schedule = SubjectScheduling(pytestconfig)
    lost, left = nodes = [Node(tests), Node(tests)]
    for node in nodes:
        schedule.add_node(cast(Any, node))
        schedule.add_node_collection(cast(Any, node), tests)
    schedule.schedule()
    first, second, *_ = lost.given
    schedule.mark_test_complete(cast(Any, lost), first)
    assert schedule.remove_node(cast(Any, lost)) == tests[second]
    for place in left.given:  # which grows
        schedule.mark_test_complete(cast(Any, left), place)
    assert sorted({first, *left.given}) == list(range(len(tests)))
