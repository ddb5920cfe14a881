"""Moves: powers of two and signs that a program lets through, solved for and not listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from qkvac.checks.relations import factors, times
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.grammar.equations import evaluate, parse
from qkvac.spec.grammar.syntax import Program
from qkvac.spec.registry import forward_profiles, known_profiles
from qkvac.spec.symbolic.homogeneity import FARTHEST, Homogeneity, degrees, moves
from qkvac.tests.suite.arrays import Arrays
from qkvac.tests.suite.own_variants import declared


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path) -> Iterator[None]:
    with declared(tmp_path):
        yield


OWN: Final = ("cross", "differential", "heads")
EVERY: Final = [*forward_profiles(), *OWN]


def programs(name: str) -> list[Program]:
    return list(known_profiles()[name].programs)


@pytest.mark.parametrize("signs", [False, True], ids=["powers", "signs"])
@pytest.mark.parametrize("name", EVERY)
def test_every_move_solves_the_equations(name: str, signs: bool) -> None:
    for program in programs(name):
        for move in moves(program, signs=signs):
            found = degrees(program, move.inputs, signs=signs)
            assert {n: k for n, k in found.items() if k} == move.results
            assert 0 < max(map(abs, move.inputs.values())) <= FARTHEST


@pytest.mark.parametrize("check", ["scaling", "signs"])
@pytest.mark.parametrize("name", EVERY)
def test_moves_are_exact(name: str, check: str) -> None:
    """In plain float64, bit for bit."""
    for case in [case for case in cases(name) if case.family == "normal"][:4]:
        inputs = case.inputs("float64")
        before = evaluate(case.program, Arrays(), inputs, case.bindings)
        for move in moves(case.program, signs=check == "signs"):
            factor = factors(check, move.inputs)
            moved = {n: times(a, factor.get(n, 1.0)) for n, a in inputs.items()}
            after = evaluate(case.program, Arrays(), moved, case.bindings)
            for quantity, value in before.items():
                expected = times(value, factors(check, move.results).get(quantity, 1.0))
                np.testing.assert_array_equal(after[quantity], expected)


@pytest.mark.parametrize("name", EVERY)
def test_whatever_can_be_moved_is_moved_up_and_down(name: str) -> None:
    for program in programs(name):
        for signs in (False, True):
            found = Homogeneity.of(program, signs=signs)
            free = {
                n
                for i, n in enumerate(found.inputs)
                if any(direction[i] for direction in found.directions())
            }
            ways = {
                (n, k > 0) for move in moves(program, signs=signs) for n, k in move.inputs.items()
            }
            assert ways == {(n, up) for n in free for up in ((True,) if signs else (True, False))}


STRENGTH: Final = [
    ("attention", {"X": 2, "Wq": -2, "Wk": -2, "Wv": -2}),
    ("attention", {"Wq": 1, "Wk": -1, "Wv": 3}),
    ("multi_head_attention", {"X": 2, "Wq": -2, "Wk": -2, "Wv": -2}),
    ("scaled_dot_product_attention", {"Q": 1, "K": -1}),
    ("scaled_dot_product_attention", {"V": 3}),
    ("embedding", {"E": 2, "P": 2}),
]


@pytest.mark.parametrize(("name", "known"), STRENGTH)
def test_the_moves_go_at_least_as_far_as_those_that_everybody_knows(
    name: str, known: dict[str, int]
) -> None:
    """Each input by as much, with the same ones beside it in the same direction or at rest."""
    program = known_profiles()[name].program()
    assert any(
        all(k * move.inputs.get(n, 0) >= k * k for n, k in known.items()) for move in moves(program)
    )


def test_directions_are_whole_numbers() -> None:
    program = parse("X[n, d]\nW[d, d]\nA[n, n] = softmax(X @ W @ X.T, axis=1)\nC[n, d] = A @ X")
    assert Homogeneity.of(program).directions() == ((1, -2),)
    assert [dict(move.inputs) for move in moves(program)] == [{"X": 1, "W": -2}, {"X": -1, "W": 2}]
    (sign,) = moves(program, signs=True)
    assert (sign.inputs, sign.results) == ({"X": 1}, {"C": 1})


def test_what_adds_a_number_cannot_be_moved() -> None:
    program = parse("X[n, d]\nY[n, d] = X + 1")
    assert not moves(program)
    assert not moves(program, signs=True)
