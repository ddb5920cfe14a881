"""Every fault is caught by the checks aimed at it, and nothing catches correct code."""

from __future__ import annotations

import re

import pytest

from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.kills import ATTENTION, CAUGHT_BY, EQUIVALENT
from qkvac.spec.faults.kills_of_gradients import OF_GRADIENTS
from qkvac.spec.registry import known_profiles
from qkvac.tests.suite import variants
from qkvac.tests.suite.bench import caught, demanded, fault_bench
from qkvac.tests.suite.kill_matrix import DOCUMENT, columns, documented
from qkvac.tests.suite.killing import (
    FORWARD,
    HOMES,
    demonstrable,
    equivalent,
    examined,
    has_place,
    home,
    kills,
    visiting,
)
from qkvac.tests.suite.known_reports import GRADIENTS, MASKS, REST
from qkvac.tests.suite.variants import Variant

SEEDS = (1, 2)
"""Draws of this test; the documented rate is measured over fifty."""

KNOWN = {pair for entry in (*MASKS, *REST, *GRADIENTS) for pair in entry.pairs}
"""Faults and the cases of their kind."""

SAMPLED = 29
"""Of the faults in profiles that are not their home, all but one in so many are left to -m long."""


@pytest.mark.parametrize(
    ("fault", "profile"),
    [pytest.param(f, p, id=f"{f.name}-{p}") for p in HOMES for f in demonstrable(p)],
)
def test_a_fault_is_caught(fault: Fault, profile: str) -> None:
    """Cases are looked at in a fixed order until everything demanded has been found.

    Those come first that are known to be of its kind.
    """
    assert demanded(fault)
    ordered = sorted(examined(profile), key=lambda case: (fault.name, case.id) not in KNOWN)
    found = caught(fault_bench(fault, profile=profile), fault, ordered)
    assert demanded(fault) <= found, f"found {sorted(found)}"


VISITS = [(f, p) for p in HOMES for f in visiting(p) if not equivalent(f, p)]


@pytest.mark.parametrize(
    ("fault", "profile"),
    [
        pytest.param(f, p, id=f"{f.name}-{p}", marks=[pytest.mark.long] if place % SAMPLED else [])
        for place, (f, p) in enumerate(VISITS)
    ],
)
def test_a_fault_is_caught_in_other_profiles(fault: Fault, profile: str) -> None:
    assert kills(fault, profile, first=True)


def test_every_fault_is_demonstrated_in_one_profile() -> None:
    assert CAUGHT_BY.keys() == FAULTS.keys()
    assert {fault.name for fault in demonstrable()} == ATTENTION.keys()
    assert {f.name for f in FAULTS.values() if f.of_gradients} == OF_GRADIENTS.keys()
    for name in FAULTS:
        assert has_place(name, home(name))
        assert home(name) in known_profiles()


def test_reasons_for_no_difference_are_about_faults_that_visit() -> None:
    for profile, reasons in EQUIVALENT.items():
        assert reasons.keys() <= {fault.name for fault in visiting(profile)}
        assert all(reason and not reason.endswith(".") for reason in reasons.values())


def test_faults_that_float32_cannot_tell_are_demonstrated_in_other_dtypes() -> None:
    """The document says which those are, and no others."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert {fault.dtype for fault in FAULTS.values()} == {"float32", "float64", "float16"}
    for dtype in ("float64", "float16"):
        named = re.findall(rf"^\| `([^`]+)` \({dtype}\) \|", text, re.MULTILINE)
        assert sorted(named) == sorted(f.name for f in FAULTS.values() if f.dtype == dtype)


@pytest.mark.parametrize("variant", variants.correct(), ids=lambda variant: variant.port.name)
def test_a_correct_variant_is_not_accused(variant: Variant) -> None:
    for dtype in variant.port.dtypes:
        tally = variants.tally(variant, dtype, SEEDS[: 1 if dtype == "float64" else 2])
        assert tally.cells
        assert tally.alarms == 0


def test_there_are_enough_correct_variants() -> None:
    """All that the document counts, and some for every profile."""
    part = DOCUMENT.read_text(encoding="utf-8").partition("## Correct variants")[2]
    counted = re.findall(r"^\| (\w+) \| \w*float\d+ \|", part, re.MULTILINE)
    assert {v.port.name.removeprefix("correct_") for v in variants.correct()} == set(counted)
    for profile in FORWARD:
        offering = [v for v in variants.correct() if profile in v.profiles]
        assert len(offering) >= (1 if profile == "dot_product_attention" else 2), profile


def test_the_document_is_up_to_date() -> None:
    """It has every fault, and as bold what must catch each.

    Its numbers of cases are measured by the command that it names, and not asserted here: how many
    cases see a fault of a rounding's size is a matter of the processor.
    """
    table = documented(DOCUMENT.read_text(encoding="utf-8"))
    for profile in HOMES:
        assert table.get(profile, {}).keys() == {fault.name for fault in demonstrable(profile)}
        for fault in demonstrable(profile):
            places = {where for where, _ in demanded(fault)}
            known = {where if where in columns(profile) else "checks" for where in places}
            assert table[profile][fault.name] == known
