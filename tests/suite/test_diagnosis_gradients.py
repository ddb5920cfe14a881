"""The diagnosis of gradients: their own faults, and wrong formulas that were differentiated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pytest

from qkvac.api import check
from qkvac.diagnosis.samples import Sample
from qkvac.diagnosis.search import diagnose
from qkvac.spec.cases.case import Case
from qkvac.spec.faults import carrying, evaluator
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.rewriting import derived, rewritten
from qkvac.spec.registry import forward_profiles, gradient_profiles
from qkvac.spec.verdicts.verdict import judge
from qkvac.tests.suite.bench import FORM, asked, fault_bench
from qkvac.tests.suite.diagnosing import Array, named
from qkvac.tests.suite.killing import BACKWARD, demonstrable, examined
from qkvac.tests.suite.shelf import PORTS

ATTENTION: Final = "attention_gradients"
PATIENCE: Final = 60.0
FAILING, PASSING = 4, 2
EVERY: Final = 3
"""One in so many faults is diagnosed here, of each kind of place."""


def samples(profile: str, fault: Fault, then: Fault | None = None) -> list[Sample]:
    """Answers that return gradients alone: some that fail, some that pass."""
    failing, passing = list[Sample](), list[Sample]()
    for case in examined(profile):
        if fault.dtype not in case.dtypes or case.layouts or 0 in case.sizes.values():
            continue
        if not fault.concerns(case):
            continue
        question = asked(case, fault.dtype, 0, FORM)
        outputs = answer(case, fault, then, question.inputs)
        verdicts = judge(question, outputs)
        wrong = tuple(name for name, verdict in verdicts.items() if verdict.status == "failed")
        kept = failing if wrong else passing
        if len(kept) < (FAILING if wrong else PASSING):
            kept.append(Sample(case, fault.dtype, question.arithmetic, outputs, wrong))
        if len(failing) == FAILING:
            break
    return [*failing, *passing]


def answer(
    case: Case, fault: Fault, then: Fault | None, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    function = fault_bench(fault, profile=case.profile).answering
    assert function is not None
    with np.errstate(all="ignore"):
        if then is None:
            return function(case)(inputs)
        first = fault.program(case.program)
        assert first is not None
        both = rewritten(first, then.rules)
        assert both is not None
        sizes = derived(case.program, both, case.bindings)
        found = evaluator.compute(both, inputs, sizes, fault.dtype)
    return {name: found[name] for name in case.results}


DIAGNOSED: Final = [
    pytest.param(fault, profile, id=fault.name)
    for profile in BACKWARD
    for fault in [f for f in demonstrable(profile) if f.rules][::EVERY]
]


@pytest.mark.parametrize(("fault", "profile"), DIAGNOSED)
def test_a_fault_of_gradients_is_diagnosed_as_itself(fault: Fault, profile: str) -> None:
    found = diagnose(samples(profile, fault), PATIENCE)
    assert {fault.name} in named(found)
    assert " the gradient with " in str(found)


CARRIED: Final = ("scale-1/d", "no-scale", "key-weights-transposed", "context-plus-values")


@pytest.mark.parametrize("name", CARRIED)
def test_a_wrong_formula_is_recognised_by_its_gradients(name: str) -> None:
    found = diagnose(samples(ATTENTION, FAULTS[name]), PATIENCE)
    assert {name} in named(found)
    assert f"equals the gradient of the result with {FAULTS[name].what}" in str(found)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("backward-scale-missing", "value-gradient-not-transposed"),
        ("query-weights-gradient-zero", "value-weights-gradient-of-context"),
        ("scale-1/d", "value-weights-gradient-of-context"),
    ],
)
def test_two_faults_on_different_paths_are_told_apart(one: str, two: str) -> None:
    found = diagnose(samples(ATTENTION, FAULTS[one], FAULTS[two]), PATIENCE)
    assert {one, two} in named(found)


def test_what_is_no_catalogued_fault_is_given_no_name() -> None:
    kept = [
        Sample(
            *(s.case, s.dtype, s.arithmetic),
            {name: np.tanh(array) for name, array in s.outputs.items()},
            tuple(s.outputs),
        )
        for s in samples(ATTENTION, FAULTS["cotangent-doubled"])
        if s.failing
    ]
    assert diagnose(kept, PATIENCE) is None


def test_right_gradients_have_no_diagnosis() -> None:
    for case in [case for case in examined(ATTENTION) if "float32" in case.dtypes][:3]:
        question = asked(case, "float32", 0, FORM)
        found = evaluator.compute(case.program, question.inputs, case.bindings, "float32")
        outputs = {name: found[name] for name in case.results}
        assert diagnose([Sample(case, "float32", question.arithmetic, outputs, ())]) is None


def test_formulas_that_cannot_be_differentiated_are_no_candidates() -> None:
    program = gradient_profiles()[ATTENTION].program()
    forward = forward_profiles()["attention"].program()
    origin = carrying.origin(program)
    assert origin is not None
    assert origin.program == forward
    assert carrying.origin(forward) is None
    assert FAULTS["scores-absolute"].program(forward) is not None
    assert FAULTS["scores-absolute"].program(program) is None


def test_what_no_path_leads_back_to_has_the_gradient_0() -> None:
    program = FAULTS["query-with-query"].program(gradient_profiles()[ATTENTION].program())
    assert program is not None
    assert program.equation("dWk").text == "dWk[d, c] = Wk * 0"


# --- in a run ------------------------------------------------------------------------------------


def said(port: str, *cases: str) -> str:
    report = check(PORTS / f"{port}.py", dtypes=["float32"], cases=cases, workers=1)
    assert report.exit_status == 1
    return " ".join(str(report).split())


def test_a_run_names_the_fault_of_a_port() -> None:
    text = said("gradient_softmax_as_a_product", f"{ATTENTION}/normal/33x20x7")
    assert "equals the gradient with the rank-one term of the softmax left out" in text


def test_a_gradient_of_zeros_and_a_missing_one_have_sentences_of_their_own() -> None:
    text = said("gradient_stopped_at_keys", f"{ATTENTION}/normal/33x20x7")
    assert "no gradient reaches Wk: dWk is 0 everywhere" in text
    assert "the gradient with keys that no gradient reaches" in text
    text = said("gradient_left_out", f"{ATTENTION}/normal/6x3x2")
    assert "no gradient of Wv came back" in text


def test_gradients_that_are_added_up_are_told_by_the_second_call() -> None:
    text = said("gradient_not_set_to_zero", f"{ATTENTION}/normal/33x20x7")
    assert "its gradients depend on more than its inputs: they are added to those of" in text
