"""Typeset equations say what the spec says."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from qkvac.spec.grammar.equations import parse, walk
from qkvac.spec.grammar.syntax import Number, Op, Ref
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic.mathml import rows

VARIANTS = [
    (name, variant) for name, profile in known_profiles().items() for variant in profile.texts
]

ELEMENTS = frozenset({"math", "mrow", "mi", "mn", "mo", "msub", "msup", "mfrac", "msqrt", "mspace"})
"""What all browsers typeset."""


def typeset(right: str) -> str:
    """The right-hand side of an equation, as MathML."""
    return rows(parse(f"X[n, n]\nY[n, n]\nZ[n, n] = {right}"))[-1].right


def letters(element: str) -> str:
    """What is seen of it."""
    return "".join(ElementTree.fromstring(element).itertext())


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_profile_has_a_row_for_each_tensor(name: str, variant: str) -> None:
    program = known_profiles()[name].program(variant)
    found = rows(program)
    assert [letters(row.target) for row in found] == list(program.tensors)
    assert [bool(row.right) for row in found] == [
        *(False for _ in program.inputs),
        *(True for _ in program.equations),
    ]
    for row in found:
        for element in filter(None, (row.target, row.right, row.space)):
            tree = ElementTree.fromstring(element)
            assert tree.tag == "math"
            assert {part.tag for part in tree.iter()} <= ELEMENTS


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_name_number_and_function_is_there(name: str, variant: str) -> None:
    program = known_profiles()[name].program(variant)
    shown = rows(program)[len(program.inputs) :]
    for row, equation in zip(shown, program.equations, strict=True):
        text = letters(row.right)
        tags = [part.tag for part in ElementTree.fromstring(row.right).iter()]
        for node in walk(equation.expression):
            if isinstance(node, Ref):
                assert node.name in text
            elif isinstance(node, Op) and node.axis is not None:
                assert f"{node.name}{node.axis}" in text
        operations = [n.name for n in walk(equation.expression) if isinstance(n, Op)]
        assert tags.count("mfrac") == operations.count("divide")
        assert tags.count("msqrt") == operations.count("sqrt")
        assert text.count("⊤") == operations.count("transpose")
        assert text.count("\u2062") == operations.count("matmul")


def test_a_known_equation_is_set_as_in_the_paper() -> None:
    *_, weights, _ = rows(known_profiles()["attention"].program())
    assert weights.right == (
        "<math><mrow><msub><mi>softmax</mi><mn>1</mn></msub><mo>\u2061</mo><mo>(</mo>"
        '<mfrac><mi mathvariant="normal">Ω</mi><msqrt><mi>c</mi></msqrt></mfrac><mo>)</mo>'
        "</mrow></math>"
    )
    assert letters(weights.space) == "ℝn×n"


@pytest.mark.parametrize(
    ("right", "other"),
    [
        ("X - (Y - X)", "X - Y - X"),
        ("X * (Y + X)", "X * Y + X"),
        ("(X @ Y).T", "X @ Y.T"),
        ("(-X).T", "-X.T"),
        ("X * Y", "X @ Y"),
        ("X * 2", "X * Y"),
        ("sum(X, axis=0) + Y", "sum(X, axis=1) + Y"),
        ("X / sqrt(n)", "X / n"),
        ("X * 0.5", "X * 0.25"),
    ],
)
def test_different_equations_look_different(right: str, other: str) -> None:
    assert typeset(right) != typeset(other)


def test_products_by_a_number_and_by_entries_have_signs_of_their_own() -> None:
    assert "⋅" in letters(typeset("X * 2"))
    assert "⋅" in letters(typeset("X * n"))
    assert "⊙" in letters(typeset("X * Y"))
    numbers = parse("X[n, n]\nZ[n, n] = X * 0.125").equations[0].expression
    assert any(isinstance(node, Number) for node in walk(numbers))
    assert "0.125" in letters(typeset("X * 0.125"))
