"""Mutants: every first-order change of a text, named by the equation that it makes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from qkvac.cli.main import cli
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.faults import evaluator
from qkvac.spec.faults.evaluator import FaultyShapes
from qkvac.spec.faults.mutants import Mutant, mutants, mutants_of
from qkvac.spec.grammar.equality import form
from qkvac.spec.grammar.equations import parse
from qkvac.spec.grammar.syntax import Expr
from qkvac.spec.profile import Profile
from qkvac.spec.registry import forward_profiles, gradient_profiles, known_profiles
from qkvac.spec.symbolic import shapes
from qkvac.usage import UsageError

OPERANDS = """
X[n, d]
Y[n, d]
W[d, d]
mask[n, n]
s
"""


def right(equation: str) -> Expr:
    return parse(OPERANDS + equation).equations[-1].expression


def written(profile: str) -> set[str]:
    return {mutant.what for mutant in mutants_of(known_profiles()[profile])}


# --- equality ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("X + Y", "Y + X"),
        ("X + (Y + X)", "X + Y + X"),
        ("X - Y", "-Y + X"),
        ("X * Y", "Y * X"),
        ("X + X", "2 * X"),
        ("X / s / s", "X / (s * s)"),
        ("X * (1 / sqrt(s))", "X / sqrt(s)"),
        ("X / sqrt(s) / sqrt(s)", "X / s"),
        ("-(X * s)", "X * -s"),
        ("X + Y - Y", "X"),
        ("X @ (W @ W)", "X @ W @ W"),
        ("(W.T @ X.T).T", "X @ W"),
        ("(X * 2) @ W", "2 * (X @ W)"),
        ("X.T.T", "X"),
        ("X @ -W", "-X @ W"),
    ],
)
def test_what_differs_in_writing_alone_has_one_form(one: str, other: str) -> None:
    assert form(right(f"Z[n, d] = {one}")) == form(right(f"Z[n, d] = {other}"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("X @ W", "X @ W.T"),
        ("X - Y", "Y - X"),
        ("X / s", "X * s"),
        ("X * Y", "X * X"),
        ("X + Y", "X + Y + Y"),
        ("X @ W @ W.T", "X @ W.T @ W"),
        ("softmax(X, axis=1)", "softmax(X, axis=0)"),
        ("softmax(X, axis=1)", "X"),
        ("X * (Y - X)", "X * (Y + X)"),
        ("X * sqrt(s)", "X * s"),
        ("X + 1", "X + 2"),
    ],
)
def test_what_differs_in_value_has_two(one: str, other: str) -> None:
    assert form(right(f"Z[n, d] = {one}")) != form(right(f"Z[n, d] = {other}"))


# --- what there is -------------------------------------------------------------------------------

EXPECTED = {
    "attention": {
        "V = X @ Wk",
        "V = X",
        "A = softmax(Ω / c, axis=1)",
        "A = softmax(Ω / sqrt(d), axis=1)",
        "A = softmax(Ω * sqrt(c), axis=1)",
        "A = softmax(Ω, axis=1)",
        "A = softmax(Ω / sqrt(c), axis=0)",
        "A = Ω / sqrt(c)",
        "Ω = K.T @ Q",
        "C = A.T @ V",
        "C = Ω @ V",
    },
    "causal_attention": {
        "A = softmax(Ω / sqrt(c), axis=1)",
        "A = softmax(Ω / sqrt(c), axis=1, where=causal(n, n).T)",
    },
    "scaled_dot_product_attention": {
        "A = softmax(Ω / sqrt(d), axis=2, where=causal(S, L).T)",
        "A = softmax(Ω / sqrt(d) - mask, axis=2, where=finite(mask))",
        "A = softmax(Ω / sqrt(d) + mask, axis=2, where=causal(L, S))",
        "A = softmax(Ω / scale, axis=2)",
    },
    "multi_head_attention": {"A = softmax(Ω / sqrt(c), axis=2)", "Y = C"},
    "attention_linear_layers": {"Q = X @ Wq.T - bq", "Q = X @ Wq.T + bk", "Q = X @ Wq.T"},
    "attention_gradients": {
        "V = X @ Wk",
        "dS = A * (dA - sum(A * dA, axis=1) / n)",
        "dS = A * dA",
        "dS = A * (dA - sum(A * dA, axis=0))",
        "dS = A * (sum(A * dA, axis=1) - dA)",
        "dK = dΩ @ Q",
        "dWq = sum_to(X.T @ dK, Wq)",
        "dWq = mean_to(X.T @ dQ, Wq)",
        "dX = dV @ Wv.T + dQ @ Wq.T",
    },
}


@pytest.mark.parametrize("profile", EXPECTED)
def test_mistakes_of_each_kind_are_among_them(profile: str) -> None:
    assert EXPECTED[profile] - written(profile) == set()


@pytest.mark.parametrize("profile", known_profiles())
def test_a_mutant_is_a_program_of_the_declared_shapes_and_differs(profile: str) -> None:
    declared = known_profiles()[profile]
    found = mutants_of(declared)
    assert found
    assert len({(m.what, m.of_gradients) for m in found}) == len(found)
    for mutant, variant in found.items():
        program = declared.program(variant)
        changed = mutant.program(program)
        if changed is None:
            continue  # what has no reverse rule
        sizes = dict.fromkeys((*program.axis_names, *program.parameters), 4)
        assert changed.tensors.keys() >= set(declared.reported(variant)), mutant.what
        assert changed != program
        shapes.check(changed, sizes, algebra=FaultyShapes())


def test_a_shape_that_only_another_size_fits_is_no_mutant() -> None:
    texts = written("scaled_dot_product_attention")
    assert not any("causal(S, S)" in what or "causal(L, L)" in what for what in texts)
    assert not any("repeat(K, L)" in what or "@ K.T" in what for what in texts)
    assert not any("sum_to" in what for what in written("attention"))


def test_the_root_of_what_a_tensor_is_divided_by_is_among_them() -> None:
    text = "X[n, d]\nC[n, d] = X / d"
    mine = Profile("mine", "", text, takes="X", returns="C")
    assert "C = X / sqrt(d)" in {mutant.what for mutant in mutants_of(mine)}


@pytest.mark.parametrize("profile", forward_profiles())
def test_a_mutant_has_other_values(profile: str) -> None:
    """On plain data, all but those that the shapes of the case do not let differ."""
    case = next(c for c in cases(profile) if c.generic and not c.batch and all(c.sizes.values()))
    inputs = case.inputs("float64")
    true = evaluator.compute(case.program, inputs, case.bindings, "float64")
    alike = list[str]()
    for mutant in mutants(case.program):
        if mutant.fits(case.program, case.bindings):
            program = mutant.program(case.program)
            assert program is not None
            found = evaluator.compute(program, inputs, case.bindings, "float64")
            if all(np.allclose(found[name], true[name], rtol=1e-9) for name in true):
                alike.append(mutant.what)
    assert alike == []


def test_a_change_is_carried_through_the_adjoint_or_made_in_it() -> None:
    program = gradient_profiles()["attention_gradients"].program()
    both = [mutant for mutant in mutants(program) if mutant.what == "V = X @ Wk"]
    assert [mutant.of_gradients for mutant in both] == [False, True]
    carried, anew = (mutant.program(program) for mutant in both)
    assert carried is not None
    assert anew is not None
    assert carried.equation("dWv").text == "dWv[d, c] = Wv * 0"
    assert anew.equation("dWv") == program.equation("dWv")


def test_a_mutant_of_one_text_is_found_again_in_another_of_the_profile() -> None:
    profile = known_profiles()["scaled_dot_product_attention"]
    mutant = next(m for m in mutants(profile.program()) if "axis=1)" in m.what)
    assert mutant.name == "A: softmax over axis 1"
    other = mutant.program(profile.program("boolean-causal"))
    assert other is not None
    equation = "A[h, L, S] = softmax(Ω / sqrt(d), axis=1, where=mask & causal(L, S))"
    assert other.equation("A").text == equation
    causal = Mutant("", "formula", "", change=mutants(profile.program("causal"))[-1].change)
    assert mutant.program(known_profiles()["embedding"].program()) is None
    assert causal.program(profile.program("causal")) is not None


# --- the command ---------------------------------------------------------------------------------


def said(*words: str) -> str:
    result = CliRunner().invoke(cli, ["faults", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_command_lists_the_changes_of_a_profile_beside_its_faults() -> None:
    listed = said("--profile", "causal_attention")
    assert "  mask-ignored " in listed
    assert "  no-bias " not in listed
    assert "\n  A = softmax(Ω / sqrt(c), axis=1, where=causal(n, n).T)\n" in listed
    count = len(mutants_of(known_profiles()["causal_attention"]))
    assert f"{count} first-order changes of its equations." in " ".join(listed.split())
    assert "first-order" not in said()


def test_the_command_writes_them_as_json() -> None:
    entries = json.loads(said("--profile", "embedding_gradients", "--format", "json"))
    changes = [entry for entry in entries if entry["kind"] == "change"]
    assert {entry["equation"] for entry in changes} == written("embedding_gradients")
    assert {fit for entry in changes for fit in entry["profiles"].values()} <= {"always", "square"}
    assert any(entry["name"] == "duplicates-overwritten" for entry in entries)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "atention"), "did you mean attention?"),
        (("no-scale", "--profile", "attention"), "one fault, or those of a profile"),
    ],
)
def test_what_makes_no_sense_is_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        CliRunner().invoke(cli, ["faults", *words], standalone_mode=False, catch_exceptions=False)
