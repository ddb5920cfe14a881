"""The normal form: parts get names where they are needed, and change nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import rounding
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.formats import dtype
from qkvac.spec.grammar.algebra import Algebra
from qkvac.spec.grammar.axes import axes_of, positive_axes
from qkvac.spec.grammar.consistency import InconsistencyError, ordered
from qkvac.spec.grammar.equations import evaluate, parse
from qkvac.spec.grammar.normal_form import normal
from qkvac.spec.grammar.printing import plain
from qkvac.spec.grammar.syntax import Program, Ref
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts.verdict import Question, judge

Array = np.ndarray[Any, Any]

UNNAMED = parse(
    """
    Q1[n, c]
    K1[n, c]
    V1[n, c]
    A[n, n] = softmax(Q1 @ K1.T / sqrt(c), axis=1)
    C[n, c] = A @ V1
    """
)

PROGRAMS = [p.program(variant) for p in known_profiles().values() for variant in p.texts]


def names(program: Program) -> list[str]:
    return [f"{e.target.name}{'*' * e.part} = {e.text}" for e in program.equations]


def test_parts_of_an_expression_are_named_in_order() -> None:
    text = """
        X[n, d]
        W[d, d]
        s
        Y1[n, d] = s * softmax(X @ W / 2, axis=1) @ W + X * X - 2 * X
        Z[n, d] = Y1 @ W
        """
    program = normal(parse(text))
    assert plain(program).split("\n")[3:] == [
        "Y1p1[n, d] = X @ W",
        "Y1p2[n, d] = softmax(Y1p1 / 2, axis=1)",
        "Y1p3[n, d] = s * Y1p2 @ W",
        "Y1p4[n, d] = X * X",
        "Y1[n, d] = Y1p3 + Y1p4 - 2 * X",
        "Z[n, d] = Y1 @ W",
    ]
    assert [e.target.name for e in program.equations if not e.part] == ["Y1", "Z"]
    # What people read is what somebody wrote.
    assert program.equation("Y1").text == parse(text).equation("Y1").text


def test_names_of_parts_are_free() -> None:
    text = "X[n, A1]\nA3[n, n]\ndA2[n]\nA[n, n] = X @ X.T + A3 * A3"
    assert [e.target.name for e in normal(parse(text)).equations] == ["A4", "A5", "A"]


def test_what_has_no_parts_is_returned_as_it_is() -> None:
    attention = known_profiles()["attention"].program()
    assert normal(attention) is attention
    assert normal(UNNAMED, products=False) is UNNAMED
    assert [e.target.name for e in normal(UNNAMED).equations] == ["A1", "A", "C"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_axes_are_what_is_declared(program: Program) -> None:
    for form in (program, normal(program)):
        shapes.check(ordered(form))
        for equation in form.equations:
            found = axes_of(equation.expression, form.tensors)
            assert len(found) == equation.target.rank
            symbols = {n: shapes.Axis.symbol(n) for n in (*form.axis_names, *form.parameters)}
            both = zip(found, equation.target.axes, strict=True)
            assert all(shapes.fold(a, symbols) == shapes.fold(b, symbols) for a, b in both)


def small_cases() -> Iterator[Case]:
    """A case for every text of every profile."""
    for name in known_profiles():
        found = dict[str, Case]()
        for case in cases(name):
            if "float16" in case.dtypes and 0 not in case.sizes.values() and "normal" in case.id:
                found.setdefault(case.variant, case)
        yield from found.values()


def bounds(case: Case, program: Program, name: str) -> Mapping[str, Array]:
    model = Arithmetic.for_dtype(name)
    return rounding.bounds(program, case.inputs(name), case.bindings, model)


@pytest.mark.parametrize("name", ["float64", "float16"])
def test_parts_leave_every_bound_alone(name: str) -> None:
    """A sum goes on open through its parts; if they were stored, the bounds would differ."""
    differ, tested = set[str](), 0
    for case in small_cases():
        written, form = case.program, normal(case.program)
        expected, found = bounds(case, written, name), bounds(case, form, name)
        for quantity, bound in expected.items():
            np.testing.assert_array_equal(found[quantity], bound, f"{case.id} {quantity}")
            tested += 1
        stored = replace(form, equations=tuple(replace(e, part=False) for e in form.equations))
        closed = bounds(case, stored, name)
        if any(np.any(closed[q] != expected[q]) for q in expected):
            differ.add(case.profile)
    assert tested > 100
    assert {"attention_linear_layers", "attention_gradients"} <= differ


def test_a_part_is_noted_and_goes_on_as_it_is() -> None:
    class Marks:
        """Not a whole algebra: what the program has no use for is left out."""

        def report(self, name: str, value: list[str]) -> list[str]:
            return [*value, name]

        def matmul(self, x: list[str], y: list[str]) -> list[str]:
            return [*x, *y]

        def add(self, x: list[str], y: list[str]) -> list[str]:
            return [*x, *y]

    program = normal(parse("X[n, n]\nY[n, n] = X @ X + X\nZ[n, n] = Y @ Y"))
    results = evaluate(program, cast("Algebra", Marks()), {"X": ["x"]}, {"n": 1})
    assert results["Y1"] == ["x", "x", "Y1"]
    assert results["Y"] == ["x", "x", "x", "Y"]
    assert results["Z"] == [*results["Y"], *results["Y"], "Z"]


# --- overflow ------------------------------------------------------------------------------


@dataclass
class Posed:
    """What a question needs of a case, for a text that is no profile's."""

    program: Program
    size: float
    profile: str = "attention"
    generic: bool = False
    exact: tuple[str, ...] = ()

    @cached_property
    def given(self) -> dict[str, Array]:
        rng = np.random.default_rng(4)
        drawn = {t.name: rng.standard_normal((5, 3)) for t in self.program.inputs}
        return {n: a * (self.size if n in ("Q1", "K1") else 1) for n, a in drawn.items()}

    def inputs(self, name: str, draw: int = 0) -> dict[str, Array]:
        return {key: array.astype(dtype(name)) for key, array in self.given.items()}

    @property
    def bindings(self) -> dict[str, int]:
        return {"n": 5, "c": 3}

    @property
    def alternatives(self) -> tuple[Program, ...]:
        return (self.program,)

    @property
    def quantities(self) -> tuple[str, ...]:
        return tuple(e.target.name for e in self.program.equations)

    @property
    def results(self) -> tuple[str, ...]:
        return ("C",)


NAMED = parse(
    plain(UNNAMED).replace(
        "A[n, n] = softmax(Q1 @ K1.T", "Ω[n, n] = Q1 @ K1.T\nA[n, n] = softmax(Ω"
    )
)


def statuses(program: Program, size: float, **declared: str) -> dict[str, str]:
    """Verdicts on a port that computes and holds everything in float16."""
    posed = Posed(program, size)
    model = Arithmetic.for_dtype("float16", declared)
    question = Question(posed, "float16", model)  # type: ignore[arg-type]
    Q1, K1, V1 = posed.inputs("float16").values()
    with np.errstate(all="ignore"):
        scores = (Q1.astype(np.float32) @ K1.astype(np.float32).T).astype(np.float16)
        S = (scores / np.float16(np.sqrt(3))).astype(np.float32)
        powers = np.exp(S - S.max(-1, keepdims=True))
        A = (powers / powers.sum(-1, keepdims=True)).astype(np.float16)
    C = (A.astype(np.float32) @ V1.astype(np.float32)).astype(np.float16)
    outputs = {"Ω": scores, "A": A, "C": C}
    return {
        name: verdict.status if verdict.clause is None else verdict.clause
        for name, verdict in judge(question, outputs).items()
    }


@pytest.mark.parametrize("program", [NAMED, UNNAMED], ids=["named", "unnamed"])
def test_an_unnamed_product_may_overflow_like_a_named_one(program: Program) -> None:
    assert {**statuses(program, 1.0), "Ω": "passed"} == dict.fromkeys("ΩAC", "passed")
    beyond = statuses(program, 300.0)
    assert beyond["A"] == beyond["C"] == "indecisive"


def test_a_part_that_stays_in_range_excuses_nothing() -> None:
    """Declared to be held in float32, the scores are within its range: then NaN is a failure."""
    found = statuses(UNNAMED, 300.0, scores="float32")
    assert found["A"] == found["C"] == "contract"


def test_overflow_is_handed_on_from_part_to_part() -> None:
    text = plain(UNNAMED).replace("Q1 @ K1.T", "(Q1 @ K1.T / 1000) @ (K1 @ K1.T / 1000)")
    question = Question(Posed(parse(text), 300.0), "float16", Arithmetic.for_dtype("float16"))  # type: ignore[arg-type]
    assert question.may_overflow == {"A", "C"}


# --- what programs must be -----------------------------------------------------------------


def test_a_derived_program_is_checked_like_a_parsed_one() -> None:
    attention = known_profiles()["attention"].program()
    first, *rest = attention.equations
    for equations, message in (
        ((first, *rest, first), "Q is defined twice"),
        ((*rest, first), "Q is used before it is defined"),
        ((replace(first, expression=Ref("Ω")), *rest), "Ω is used before it is defined"),
        ((replace(first, target=replace(first.target, axes=(Ref("n"),))), *rest), "has 2 axes, Q"),
    ):
        with pytest.raises(InconsistencyError, match=message):
            ordered(replace(attention, equations=equations))
    with pytest.raises(InconsistencyError, match="X is declared twice"):
        ordered(replace(attention, inputs=(*attention.inputs, attention.inputs[0])))


@pytest.mark.parametrize(
    ("profile", "positive"),
    [
        ("attention", {"c"}),
        ("attention_gradients", {"c"}),
        ("dot_product_attention", set()),
        ("scaled_dot_product_attention", {"d"}),
        ("multi_head_attention", {"c", "h"}),
        ("embedding", set()),
    ],
)
def test_axes_that_must_not_be_empty(profile: str, positive: set[str]) -> None:
    assert positive_axes(known_profiles()[profile].program()) == positive


def test_a_given_scale_may_go_with_an_empty_axis() -> None:
    assert (
        positive_axes(known_profiles()["scaled_dot_product_attention"].program("scale"))
        == frozenset()
    )
