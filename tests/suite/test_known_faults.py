"""Every publicly reported kind of fault has a case, and the case catches it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.faults.catalogue import FAULTS
from qkvac.spec.registry import known_profiles
from qkvac.tests.suite.bench import fault_bench
from qkvac.tests.suite.known_faults import DOCUMENT, document
from qkvac.tests.suite.known_reports import GRADIENTS, MASKS, OTHER, REST

ENTRIES = (*MASKS, *REST, *GRADIENTS)
PAIRS = [pair for entry in ENTRIES for pair in entry.pairs]
SUITE = Path(__file__).parent


def named(case_id: str) -> Case:
    return next(
        case for profile in known_profiles() for case in cases(profile) if case.id == case_id
    )


@pytest.mark.parametrize(("fault", "case_id"), PAIRS)
def test_a_case_catches_the_fault_of_its_kind(fault: str, case_id: str) -> None:
    case = named(case_id)
    assert case.tier == "default"
    assert FAULTS[fault].concerns(case)
    assert fault_bench(FAULTS[fault], profile=case.profile).findings(case)


def test_entries_are_complete() -> None:
    reports = [report for entry in (*ENTRIES, *OTHER) for report in entry.reports]
    assert len(reports) == len(set(reports))
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report) for report in reports)
    assert all(entry.pairs for entry in ENTRIES)


def test_faults_refer_to_the_reports_that_they_stand_for() -> None:
    """What the catalogue says is known in the wild is in the table, and the other way round."""
    listed = {report for entry in ENTRIES for report in entry.reports}
    claimed = {report for fault in FAULTS.values() for report in fault.also_known_as}
    assert claimed <= listed


def test_places_exist() -> None:
    for entry in OTHER:
        for name in re.findall(r"`tests/suite/(\w+\.py)`", entry.place):
            assert (SUITE / name).is_file()


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document()
