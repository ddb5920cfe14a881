"""How many shapes a mode runs: what "some" and "few" leave out, and what they must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qkvac.execution.survey import survey
from qkvac.spec.cases.catalogue import Case, cases, profiles_with_cases
from qkvac.subjects import breadth
from qkvac.subjects.registry import backends
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.declaration import DTYPES, DeclarationError, parse

FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")
"""Operation by operation these run more; of libraries some modes compile unasked."""

Trait = Callable[[Case], Any]

KINDS: dict[str, Trait] = {
    "family": lambda case: case.family,
    "variant": lambda case: case.variant,
    "needs": lambda case: case.needs,
    "layouts": lambda case: tuple(case.layouts.items()),
    "masks": lambda case: (case.masked, case.family, case.variant),
    "attributes": lambda case: tuple(case.attributes),
    "dtypes": lambda case: case.dtypes,
}


def run(profile: str, shapes: str) -> list[tuple[Case, str]]:
    """The cases of a profile that are run, with dtypes."""
    return [
        (case, dtype)
        for case in cases(profile)
        if case.tier == "default"
        for dtype in DTYPES
        if dtype in case.dtypes and breadth.includes(shapes, case, dtype)
    ]


@pytest.mark.parametrize("trait", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("profile", profiles_with_cases())
def test_some_shapes_are_of_every_kind(profile: str, trait: Trait) -> None:
    everything = {trait(case) for case, _ in run(profile, breadth.ALL)}
    assert {trait(case) for case, _ in run(profile, breadth.SOME)} == everything


@pytest.mark.parametrize("profile", profiles_with_cases())
def test_few_are_within_some_and_those_within_all(profile: str) -> None:
    few, some, everything = (
        {(case.id, dtype) for case, dtype in run(profile, shapes)}
        for shapes in (breadth.FEW, breadth.SOME, breadth.ALL)
    )
    assert few < some < everything


def test_a_drawn_case_of_few_shapes_is_run_like_the_first() -> None:
    (case, dtype) = next(pair for pair in run("attention", breadth.FEW) if pair[0].random)
    assert all(breadth.includes(shapes, case.drawn(1), dtype) for shapes in ("few", "some", "all"))


def test_the_full_tier_runs_all_whatever_the_mode() -> None:
    selection = Selection(tier="full")
    assert all(
        selection.runs(case, dtype, breadth.FEW) for case in cases() for dtype in case.dtypes
    )


def test_every_mode_that_compiles_says_so() -> None:
    """Frameworks name such modes alike, and a module is built anew for every shape of weights."""
    for backend in backends():
        for mode in backend.modes:
            compiles = mode in ("compile", "jit", "function", "xla")
            built = backend.name.endswith("-modules")
            few = backend.declaration.shapes.get(mode) == breadth.FEW
            assert few if compiles or built else not (few and backend.name in FRAMEWORKS)


def test_no_shape_of_a_port_is_left_out() -> None:
    (entry,) = (
        entry
        for entry in survey(Selection(backends=("jax/jit",), devices=("cpu",)), Options()).entries
    )
    assert entry.compiled
    subject = entry.subject
    port = Entry(
        type(subject)("a", "jit", "cpu", port="a.py"), entry.raw, entry.functions, entry.versions
    )
    assert port.shapes == breadth.ALL


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"jot": "few"}, "shapes names 'jot', which is no mode; did you mean 'jit'"),
        ({"jit": "many"}, "shapes.jit = 'many': choose from some, few"),
    ],
    ids=["mode", "number"],
)
def test_a_wrong_declaration_is_one_line(shapes: dict[str, str], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        parse({"modes": ["jit"], "shapes": shapes})
