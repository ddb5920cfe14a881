"""Plain text, LaTeX and JSON say what the spec says."""

from __future__ import annotations

import json
import re

import pytest

from qkvac.spec.attention import ATTENTION, SPEC_VERSION
from qkvac.spec.grammar.equations import Program, SpecError, parse
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic import text

VARIANTS = [
    (name, variant) for name, profile in forward_profiles().items() for variant in profile.texts
]


def meaning(program: Program) -> tuple[object, ...]:
    """A program without its source text."""
    return (
        program.inputs,
        program.parameters,
        tuple((e.target, e.expression) for e in program.equations),
    )


def test_plain_text_is_the_spec_text() -> None:
    assert text.plain(forward_profiles()["attention"].program()) == ATTENTION.strip()


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_plain_text_parses_to_the_same_program(name: str, variant: str) -> None:
    program = forward_profiles()[name].program(variant)
    assert meaning(parse(text.plain(program))) == meaning(program)


@pytest.mark.parametrize(
    "right",
    [
        "X - (Y - X)",
        "(X - Y) - X",
        "X * (Y + X)",
        "X / (2 * sqrt(n))",
        "-(X + Y)",
        "(-X) * Y",
        "-X * Y",
        "X @ (Y.T @ X)",
        "(X @ Y).T",
        "(-X).T",
        "X * 0.125 + 1.5",
        "X * 1e-3",
        "sum(X, axis=1) * Y",
        "softmax(X + Y, axis=0)",
        "sum_to(X @ Y, X)",
    ],
)
def test_brackets_stand_where_they_are_needed(right: str) -> None:
    program = parse(f"X[n, n]\nY[n, n]\nZ[n, n] = {right}")
    assert meaning(parse(text.plain(program))) == meaning(program)


def test_plain_text_has_no_needless_brackets() -> None:
    program = parse("X[n, n]\nZ[n, n] = ((X @ (X.T)) * ((2))) + (X)")
    assert text.plain(program).splitlines()[-1] == "Z[n, n] = X @ X.T * 2 + X"


def test_latex_shows_equations_and_shapes() -> None:
    shown = text.latex(forward_profiles()["attention"].program())
    assert r"\Omega &= Q \, K^{\top} && \in \mathbb{R}^{n \times n}" in shown
    assert r"\mathrm{softmax}_{1}\left(\frac{\Omega}{\sqrt{c}}\right)" in shown
    assert r"W_{q} \in \mathbb{R}^{d \times c}" in shown


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_latex_is_balanced(name: str, variant: str) -> None:
    shown = text.latex(forward_profiles()[name].program(variant))
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", shown):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    assert shown.count(r"\left(") == shown.count(r"\right)")
    assert not re.search(r"[^\x00-\x7f]", shown)
    assert "_" not in re.sub(r"_\{|\\_|_\d", "", shown)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_json_round_trips(name: str, variant: str) -> None:
    profile = forward_profiles()[name]
    data = json.loads(json.dumps(text.to_json(profile), ensure_ascii=False))
    assert data["spec"] == SPEC_VERSION
    assert data["profile"] == name
    assert data["quantities"] == list(profile.quantities)
    read = text.program_from_json(data["variants"][variant])
    assert meaning(read) == meaning(profile.program(variant))
    assert meaning(parse(data["variants"][variant]["text"])) == meaning(read)


def test_json_states_the_budget() -> None:
    assert text.to_json(forward_profiles()["attention"])["budget"] == {
        "products": 5,
        "transpositions": 1,
    }
    assert text.to_json(forward_profiles()["multi_head_attention"])["budget"] is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"inputs": [], "parameters": []},
        {"inputs": [{"name": "X"}], "parameters": [], "equations": []},
        {"inputs": 3, "parameters": [], "equations": []},
        {"inputs": [], "parameters": [], "equations": [{"target": {}, "is": 1}]},
    ],
)
def test_json_of_something_else_is_a_spec_error(data: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="not a program"):
        text.program_from_json(data)
