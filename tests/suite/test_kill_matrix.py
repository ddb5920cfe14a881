"""Every fault is caught by the checks aimed at it, and nothing catches correct code."""

from __future__ import annotations

import pytest

from qkvac.spec.cases import cases
from qkvac.spec.faults import FAULTS, Fault
from qkvac.spec.kills import CAUGHT_BY
from qkvac.tests.suite import variants
from qkvac.tests.suite.bench import caught, demanded, fault_bench
from qkvac.tests.suite.kill_matrix import (
    COLUMNS,
    DOCUMENT,
    QUANTITIES,
    demonstrable,
    documented,
    examined,
)
from qkvac.tests.suite.variants import Variant

SEEDS = (1, 2)
"""Draws of this test; the documented rate is measured over fifty."""


@pytest.mark.parametrize("fault", demonstrable(), ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault: Fault) -> None:
    """Cases are looked at in a fixed order until everything demanded has been found."""
    assert demanded(fault)
    found = caught(fault_bench(fault), fault, examined())
    assert demanded(fault) <= found, f"found {sorted(found)}"


def test_only_faults_without_a_place_in_cases_are_left_out() -> None:
    profiles = {case.profile for name in ("attention",) for case in cases(name)}
    for fault in FAULTS.values():
        has_place = any(fault.fit(profile) != "never" for profile in profiles)
        assert has_place == (fault.name in CAUGHT_BY)
    assert len(CAUGHT_BY) >= 80


def test_faults_that_float32_cannot_tell_are_demonstrated_in_float64() -> None:
    wide = [fault for fault in demonstrable() if fault.dtype == "float64"]
    assert {fault.dtype for fault in demonstrable()} == {"float32", "float64"}
    assert len(wide) >= 5


@pytest.mark.parametrize("variant", variants.correct(), ids=lambda variant: variant.port.name)
def test_a_correct_variant_is_not_accused(variant: Variant) -> None:
    for dtype in variant.port.dtypes:
        tally = variants.tally(variant, dtype, SEEDS[: 1 if dtype == "float64" else 2])
        assert tally.cells
        assert tally.alarms == 0


def test_there_are_enough_correct_variants() -> None:
    assert len(variants.correct()) >= 15


def test_the_document_is_up_to_date() -> None:
    """It has every fault, and as bold what must catch each; numbers are measured, not asserted."""
    table = documented(DOCUMENT.read_text(encoding="utf-8"))
    assert table.keys() == {fault.name for fault in demonstrable()}
    for fault in demonstrable():
        places = {where for where, _ in demanded(fault)}
        assert table[fault.name] == {w if w in COLUMNS else QUANTITIES[-1] for w in places}
