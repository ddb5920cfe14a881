"""Faults under conditions: what the product of two tables says is what ports come to."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest

from qkvac.spec.cases.case import Case
from qkvac.spec.cases.catalogue import cases, crossed_cases
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.evaluator import compute
from qkvac.tests.suite.bench import Bench
from qkvac.tests.suite.product import (
    DOCUMENT,
    Holds,
    Product,
    caught,
    conditions,
    document,
    dtype_of,
    tried,
)

Array = np.ndarray[Any, Any]
PROFILE: Final = "attention"
SAMPLED: Final = 12


def port(fault: Fault, holds: Holds, case: Case, dtype: str) -> Bench:
    """A port with a fault where a condition holds, and right elsewhere."""

    def right(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(compute(case.program, inputs, case.bindings, dtype))

    function = fault.answering(case) if holds(case, dtype) else right
    return Bench(function, dtype, case.profile, answering=lambda case: function)


def sampled(seed: int, count: int) -> list[tuple[str, str]]:
    """Faults with conditions, drawn anew for every seed."""
    chance = random.Random(seed)
    every = [(f.name, words) for f in tried(PROFILE) for words in conditions(PROFILE)]
    return chance.sample(every, count)


def agrees(name: str, words: str) -> bool:
    """Whether the first cases that the table says catch a mutant do, as a port, and others not."""
    fault, holds = FAULTS[name], conditions(PROFILE)[words]
    own = [case for case in crossed_cases(PROFILE) if dtype_of(case)]
    there = [case for case in own if holds(case, dtype_of(case))][:6]
    elsewhere = [case for case in own if not holds(case, dtype_of(case))][:2]
    for case in (*there, *elsewhere):
        found = port(fault, holds, case, dtype_of(case)).findings(case)
        if case in elsewhere and found:
            return False
        if case in there and name in caught(case, [fault]) and not found:
            return False
    return True


@pytest.mark.parametrize(("name", "words"), sampled(3, SAMPLED))
def test_ports_come_to_what_the_table_says(name: str, words: str) -> None:
    assert agrees(name, words)


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), sampled(4, 200))
def test_many_ports_come_to_what_the_table_says(name: str, words: str) -> None:
    assert agrees(name, words)


def test_every_condition_holds_in_some_case_and_not_in_others() -> None:
    for profile in (PROFILE, "multi_head_attention"):
        own = [case for case in crossed_cases(profile) if dtype_of(case)]
        for words, holds in conditions(profile).items():
            seen = {holds(case, dtype_of(case)) for case in own}
            assert True in seen, words


def test_a_right_result_is_no_catch_and_a_wrong_one_is() -> None:
    case = next(case for case in cases(PROFILE) if case.generic)
    assert "no-scale" in caught(case, [FAULTS["no-scale"]])
    assert not caught(case, [])


def test_the_document_is_of_a_product() -> None:
    from collections import Counter

    made = Product(PROFILE, 100, 40, 97, Counter({"n is 1": 3}))
    text = document([made])
    assert "**97.0% of 100 are caught by `qkvac check`; by the named cases alone 40.0%.**" in text
    assert "attention: n is 1 (3)" in text


def test_at_least_95_of_100_are_caught() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    share = float(text.partition("**")[2].partition("%")[0])
    assert share >= 95
    readme = " ".join((DOCUMENT.parents[1] / "README.md").read_text(encoding="utf-8").split())
    bold = text.split("**")[1].replace("%", " %")
    number = bold.split()[3]
    assert f"({number} ports that are wrong only there), {share} % are caught" in readme
