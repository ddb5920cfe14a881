"""Gradients of some inputs alone: the check passes for what ignores the choice alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pytest

from qkvac.cells import Status, Subject
from qkvac.checks import registry
from qkvac.checks.findings import Finding, Visit
from qkvac.checks.gradient_checks import subsets, wanted
from qkvac.isolation.process import Outcome
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import find_case
from qkvac.tests.suite.profile_ports import GRADIENTS

Array = np.ndarray[Any, Any]
Answers = Callable[[Mapping[str, Array], Sequence[str]], Mapping[str, Array]]

PROFILE: Final = "attention_gradients"
CASE: Final = find_case(f"{PROFILE}/normal/33x20x7")
INPUTS: Final = CASE.inputs("float32")


def complete() -> dict[str, Array]:
    scope: dict[str, Any] = {"np": np}
    exec(GRADIENTS, scope)
    found: dict[str, Array] = scope[PROFILE](*INPUTS.values())
    return found


def found(answers: Answers) -> Finding:
    """The finding about an adapter that answers so where some gradients are wanted."""
    first = complete()
    entry = Entry(Subject("torch", "eager", "cpu"), {"supports": "all"}, (PROFILE,), {})

    def subset(names: Sequence[str]) -> Outcome:
        return Outcome("ok", outputs=answers(complete(), [f"d{name}" for name in names]))

    outcome = Outcome("ok", outputs=first)
    nothing: Any = lambda *_: None  # noqa: E731
    return subsets(Visit(entry, "float32", CASE, INPUTS, outcome, nothing, nothing, subset))


def only(outputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    return {name: array for name, array in outputs.items() if name in names}


def test_every_choice_is_tried() -> None:
    assert len(set(wanted(CASE))) == 2**4 - 2
    assert ("X",) in wanted(CASE)
    assert ("X", "Wk", "Wv") in wanted(CASE)


def test_the_same_gradients_pass() -> None:
    assert found(only) == Finding(Status.PASSED)


def test_other_bits_within_the_bounds_pass_and_are_told() -> None:
    def last_bit(outputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        return {n: np.nextafter(a, np.float32(9)) for n, a in only(outputs, names).items()}

    finding = found(last_bit)
    assert finding.status == Status.PASSED
    assert "bits differ in" in str(finding.reason)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (lambda outputs, names: outputs, "comes as well"),
        (lambda outputs, names: only(outputs, names[1:]), "returns no such dX"),
        (
            lambda outputs, names: {
                n: a * (1 + (len(names) == 3)) for n, a in only(outputs, names).items()
            },
            "differs by more than rounding allows",
        ),
        (
            lambda outputs, names: {n: np.zeros_like(a) for n, a in only(outputs, names).items()},
            "differs by more than rounding allows",
        ),
    ],
    ids=["all of them", "none of X", "twice for three", "zeros"],
)
def test_what_depends_on_the_choice_fails(answers: Answers, words: str) -> None:
    finding = found(answers)
    assert (finding.status, finding.clause) == (Status.FAILED, "metamorphic")
    assert words in str(finding.reason)


def test_adapters_alone_are_asked_in_modes_that_do_not_compile() -> None:
    def asked(subject: Subject, **raw: Any) -> bool:
        entry = Entry(subject, {"supports": "all", **raw}, (PROFILE,), {})
        return "subsets" in registry.names(entry, "float32", CASE)

    assert asked(Subject("torch", "eager", "cpu"))
    assert not asked(
        Subject("torch", "compile", "cpu"), modes=["compile"], shapes={"compile": "few"}
    )
    assert not asked(Subject("my_port", "default", "cpu", port="my_port.py"))
    forward = find_case("attention/normal/33x20x7")
    entry = Entry(Subject("torch", "eager", "cpu"), {"supports": "all"}, ("attention",), {})
    assert "subsets" not in registry.names(entry, "float32", forward)
