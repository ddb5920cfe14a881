"""The fault catalogue: derived from the equations, complete, and computed as it says."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from qkvac.cli.main import cli
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.faults import evaluator
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.evaluator import FaultyShapes
from qkvac.spec.faults.operations.mistakes import MISTAKES
from qkvac.spec.faults.rewriting import Rewrite, Roles, derived, operations, rewritten
from qkvac.spec.grammar.equations import parse
from qkvac.spec.grammar.operations import OPERATIONS
from qkvac.spec.grammar.syntax import SpecError
from qkvac.spec.registry import forward_profiles, gradient_profiles
from qkvac.spec.symbolic import shapes, text
from qkvac.tests.suite.bench import sizes_in
from qkvac.tests.suite.killing import examined, home

ATTENTION = forward_profiles()["attention"].program()
REWRITTEN = [fault for fault in FAULTS.values() if fault.rules and not fault.of_gradients]
PROJECT = re.compile(r"[\w.-]+/[\w.-]+#\d+")


def sizes(case_id: str) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    case = next(case for case in cases("attention") if case.id == f"attention/{case_id}")
    return case.inputs("float64"), dict(case.sizes)


def test_the_catalogue_has_all_kinds_of_faults() -> None:
    """How many there are is in the README and, one by one, in docs/kill-matrix.md."""
    here = [fault for fault in FAULTS.values() if fault.fit("attention") != "never"]
    assert {fault.kind for fault in here} == {"formula", "arithmetic", "behaviour"}


def test_every_fault_has_a_name_and_a_sentence_of_its_own() -> None:
    sentences = {fault.about for fault in FAULTS.values()}
    assert len(sentences) == len(FAULTS)
    for fault in FAULTS.values():
        assert fault.about.endswith(".")
        assert not fault.what.endswith(".")
        assert " " not in fault.name
        assert all(PROJECT.fullmatch(reference) for reference in fault.also_known_as)


def test_faults_that_are_known_in_the_wild_say_so() -> None:
    assert "PetrochukM/PyTorch-NLP#2" in FAULTS["softmax-over-queries"].also_known_as


def test_rules_name_no_case_and_no_profile() -> None:
    for fault in FAULTS.values():
        for rule in fault.rules:
            assert "/" not in rule.place
            assert not any(name in rule.text for name in forward_profiles())


@pytest.mark.parametrize("profile", forward_profiles())
def test_rules_apply_wherever_they_find_a_place(profile: str) -> None:
    """The shapes hold for all sizes, or for equal ones, or the fault does not apply."""
    for variant in forward_profiles()[profile].texts:
        program = forward_profiles()[profile].program(variant)
        fits = {fault.name: fault.fit(profile, variant) for fault in REWRITTEN}
        for name, fit in fits.items():
            changed = FAULTS[name].program(program)
            if fit == "always":
                assert changed is not None
                shapes.check(changed, algebra=FaultyShapes())
            if changed is not None:
                assert changed.tensors.keys() == program.tensors.keys()
                assert changed != program
        assert "always" in fits.values()


SOFTMAX = "A[n, n] = softmax(Ω / sqrt(c), axis="

EQUATIONS = {
    ("attention", "plain"): {
        "scale-1/c": "A[n, n] = softmax(Ω * (1 / sqrt(c)) * (1 / sqrt(c)), axis=1)",
        "context-of-transposed-weights": "C[n, c] = A.T @ V",
        "query-key-swapped": "K[n, c] = X @ Wq",
        "value-unprojected": "V[n, c] = first(X.T, c).T",
    },
    ("causal_attention", "plain"): {
        "mask-leaking": f"{SOFTMAX}1, where=leak(causal(n, n)))",
        "softmax-over-queries": f"{SOFTMAX}0, where=causal(n, n))",
        "mask-ignored": f"{SOFTMAX}1)",
    },
    ("multi_head_attention", "plain"): {
        "scale-of-all-heads": "A[h, n, n] = softmax(Ω / sqrt(c), axis=2)",
        "context-of-keys": "C[n, c] = merge(A @ split(K, h))",
        "output-of-first-head": "Y[n, o] = merge(only_first_head(split(C, h))) @ Wo",
    },
    ("scaled_dot_product_attention", "additive-causal-scale"): {
        "no-scale": "A[h, L, S] = softmax(Ω + mask, axis=2, where=finite(mask) & causal(L, S))",
        "bias-scaled": "A[h, L, S] = softmax((Ω + mask) * scale, axis=2, "
        "where=finite(mask) & causal(L, S))",
        "causal-ignored-when-masked": "A[h, L, S] = softmax(Ω * scale + mask, axis=2, "
        "where=finite(mask))",
        "groups-tiled": "C[h, L, v] = A @ tiled_groups(repeat(V, h), V)",
        "first-sample-values": "C[h, L, v] = A @ first_sample_3(repeat(V, h))",
        "default-scale": "A[h, L, S] = softmax(Ω / sqrt(d) + mask, axis=2, "
        "where=finite(mask) & causal(L, S))",
    },
    ("attention_linear_layers", "bias"): {
        "key-of-query-weights": "K[n, c] = X @ Wq.T + bk",
        "no-bias": "Q[n, c] = X @ Wq.T",
    },
    ("embedding", "plain"): {
        "no-bias": "X[n, d] = take(E, tokens)",
        "positions-from-1": "X[n, d] = take(E, tokens) + first(next_row(P), n)",
    },
    ("dot_product_attention", "plain"): {"scores-transposed": "Ω[n, n] = (X @ X.T).T"},
}


@pytest.mark.parametrize(("profile", "variant"), EQUATIONS)
def test_a_rule_yields_the_equation_that_it_stands_for(profile: str, variant: str) -> None:
    for name, equation in EQUATIONS[profile, variant].items():
        program = FAULTS[name].program(forward_profiles()[profile].program(variant))
        assert program is not None
        assert equation in [e.text for e in program.equations]


def test_rules_of_one_fault_mean_the_declared_program() -> None:
    swapped = FAULTS["query-key-swapped"].program(ATTENTION)
    assert swapped is not None
    assert [e.text for e in swapped.equations[:2]] == ["Q[n, c] = X @ Wk", "K[n, c] = X @ Wq"]


def test_a_rule_without_a_place_does_not_apply() -> None:
    assert rewritten(ATTENTION, (Rewrite("mask", "M.T"),)) is None
    assert rewritten(ATTENTION, (Rewrite("scaled", "S / e / nowhere"),)) is None
    assert rewritten(ATTENTION, (Rewrite("scores", "Y"),)) is None
    with pytest.raises(SpecError, match="text of a rule"):
        Roles.of(ATTENTION).quote("Y if Y else Y")


def test_the_grammar_stays_closed() -> None:
    """What only faulty equations use is no word of a spec text."""
    assert not MISTAKES.keys() & OPERATIONS.keys()
    used = set[str]()
    for fault in FAULTS.values():
        for profile in (gradient_profiles() if fault.of_gradients else forward_profiles()).values():
            for variant in profile.texts:
                changed = fault.program(profile.program(variant))
                if fault.rules and changed is not None:
                    used |= set(operations(changed))
    assert used == MISTAKES.keys()
    with pytest.raises(SpecError, match="unknown function 'absolute'"):
        parse("X[n, d]\nY[n, d] = absolute(X)")


def test_formulas_of_the_grammar_are_spec_texts_themselves() -> None:
    """A faulty program that uses no other operation parses from its own text."""
    checked = set[str]()
    for fault in REWRITTEN:
        program = fault.program(ATTENTION)
        if program is not None and not list(operations(program)):
            again = parse(text.plain(program))
            assert [e.expression for e in again.equations] == [
                e.expression for e in program.equations
            ]
            checked.update(e.target.name for e in program.equations)
    assert checked == {e.target.name for e in ATTENTION.equations}


@pytest.mark.parametrize("fault", REWRITTEN, ids=lambda fault: fault.name)
def test_a_fault_is_computed_in_the_declared_shapes(fault: Fault) -> None:
    for name in ("normal/33x20x7", "ternary/16x16x16"):
        inputs, axes = sizes(name)
        if fault.fits(ATTENTION, axes):
            stored = {key: value.astype(fault.dtype) for key, value in inputs.items()}
            results = fault.function(ATTENTION, sizes_in(ATTENTION))(stored)
            contract = shapes.contract(ATTENTION, axes)
            assert all(value.shape == contract[key] for key, value in results.items())
            assert all(value.dtype == fault.dtype for value in results.values())


BOUNDED = [
    fault for fault in REWRITTEN if fault.structural and fault.program(ATTENTION) is not None
]


@pytest.mark.parametrize("fault", BOUNDED, ids=lambda fault: fault.name)
def test_a_faulty_formula_in_float32_stays_within_its_own_bounds(fault: Fault) -> None:
    """So a port that computes the formula is recognised, however it rounds."""
    program = fault.program(ATTENTION)
    assert program is not None
    for name in ("normal/33x20x7", "hot/33x20x7", "ternary/16x16x16"):
        inputs, axes = sizes(name)
        stored = {key: value.astype(np.float32) for key, value in inputs.items()}
        if not fault.fits(ATTENTION, axes):
            continue
        given = derived(ATTENTION, program, axes)
        narrow = evaluator.compute(program, stored, given, "float32")
        wide = evaluator.compute(program, stored, given, "float64")
        limits = evaluator.bounds(program, stored, given, Arithmetic.for_dtype("float32"), {})
        for quantity, limit in limits.items():
            error = np.abs(narrow[quantity].astype(np.float64) - wide[quantity])
            assert np.all((error <= limit) | np.isnan(error)), quantity


ELSEWHERE = [fault for fault in REWRITTEN if fault.structural and fault.program(ATTENTION) is None]


@pytest.mark.parametrize("fault", ELSEWHERE, ids=lambda fault: fault.name)
def test_so_does_a_faulty_formula_of_another_profile(fault: Fault) -> None:
    profile = home(fault.name)
    chosen = [case for case in examined(profile) if case.generic and "float32" in case.dtypes]
    concerned = [case for case in chosen if fault.concerns(case)][:2]
    for case in concerned:
        program = fault.program(case.program)
        assert program is not None
        if any(MISTAKES[operation].kind.startswith("poor") for operation in operations(program)):
            continue
        stored, given = case.inputs("float32"), derived(case.program, program, case.bindings)
        try:
            narrow = evaluator.compute(program, stored, given, "float32")
        except ValueError:
            # A mask on the wrong axis fits only where two axes are equal.
            assert fault.name == "mask-samples-as-heads"
            continue
        wide = {n: a if a.dtype.kind in "bi" else a.astype(float) for n, a in stored.items()}
        exact = evaluator.compute(program, wide, given, "float64")
        limits = evaluator.bounds(program, stored, given, Arithmetic.for_dtype("float32"), {})
        for quantity, limit in limits.items():
            with np.errstate(invalid="ignore"):
                error = np.abs(narrow[quantity].astype(np.float64) - exact[quantity])
            assert np.all((error <= limit) | np.isnan(error)), (case.id, quantity)


def test_the_command_lists_the_catalogue() -> None:
    listed = CliRunner().invoke(cli, ["faults"], catch_exceptions=False).output
    assert all(f"  {name} " in listed for name in FAULTS)
    assert f"{len(FAULTS)} faults" in listed


def test_the_command_shows_one_fault_with_its_equations() -> None:
    shown = CliRunner().invoke(cli, ["faults", "scale-1/√d"], catch_exceptions=False).output
    assert "A[n, n] = softmax(Ω / sqrt(d), axis=1)" in shown
    assert "caught by A local in float32" in shown
    shown = CliRunner().invoke(cli, ["faults", "mask-inverted"], catch_exceptions=False).output
    assert "seen in lucidrains/x-transformers#160" in shown


def test_the_command_writes_json() -> None:
    output = CliRunner().invoke(cli, ["faults", "--format", "json"], catch_exceptions=False).output
    entries = {entry["name"]: entry for entry in json.loads(output)}
    assert entries.keys() == FAULTS.keys()
    assert entries["query-weights-transposed"]["profiles"]["attention"] == "square"
