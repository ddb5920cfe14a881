"""The README's figures that can be counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qkvac.cells import Subject
from qkvac.execution.plan import jobs_of
from qkvac.spec.cases.catalogue import cases, profiles_with_cases
from qkvac.spec.faults.catalogue import FAULTS
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts.clauses import CLAUSES
from qkvac.spec.verdicts.statuses import STATUSES
from qkvac.subjects import breadth
from qkvac.subjects.registry import backend
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Selection
from qkvac.targets.declaration import DTYPES
from qkvac.tests.suite import variants
from qkvac.tests.suite.known_reports import GRADIENTS, MASKS, OTHER, REST
from qkvac.tests.suite.shelf import FAULTY

README = Path(__file__).parents[2] / "README.md"

pytestmark = pytest.mark.skipif(
    not README.exists(), reason="needs a checkout, not an installed package"
)


def counted(gradients: bool, shapes: str, dtype: str) -> str:
    """How many profiles have cases in a dtype that a mode runs, and how many those are."""
    run = [
        case.profile
        for profile in profiles_with_cases()
        if bool(known_profiles()[profile].base) == gradients
        for case in cases(profile)
        if case.tier == "default" and dtype in case.dtypes
        if breadth.includes(shapes, case, dtype)
    ]
    return f"{len(set(run))}: {len(run)}"


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize(
    ("shapes", "words"),
    [(breadth.ALL, "operation by operation"), (breadth.FEW, "compiled")],
    ids=["all", "few"],
)
def test_the_table_of_what_is_proved_is_true(gradients: bool, shapes: str, words: str) -> None:
    what = "gradients" if gradients else "values"
    found = [counted(gradients, shapes, dtype) for dtype in DTYPES]
    row = re.search(rf"^\| {what}, {words} \|(.*)\|$", README.read_text("utf-8"), re.MULTILINE)
    assert row is not None
    assert [cell.strip(" ¹") for cell in row[1].split("|")] == found


def test_every_clause_is_there_as_it_is_defined() -> None:
    text = README.read_text("utf-8")
    rows = [f"| {clause.word} | {clause.asks} |" for clause in CLAUSES]
    assert "\n".join(["| | |", "|---|---|", *rows, "", ""]) in text


def test_every_status_is_in_the_guide_as_it_is_defined() -> None:
    text = (README.parent / "docs" / "porting.md").read_text("utf-8")
    rows = [f"| {s.name} | {s.meaning} | {'yes' if s.fails else 'no'} |" for s in STATUSES]
    assert "\n".join(["| status | | fails |", "|---|---|---|", *rows, "", ""]) in text


@pytest.mark.parametrize(
    ("profiles", "words"),
    [((), " of today's {} cells |"), (("attention",), " of today's {} cells of the profile")],
    ids=["all", "attention"],
)
def test_the_numbers_of_cells_are_about_true(profiles: tuple[str, ...], words: str) -> None:
    """As `qkvac run --list` counts them; they grow with every case."""
    planned = [
        len(job.cells)
        for found in map(backend, ("numpy", "torch", "jax", "tensorflow"))
        for mode in found.modes
        if found.declaration.runs_on(mode, "cpu")
        for entry in [
            Entry(Subject(found.name, mode, "cpu"), found.raw, found.declaration.profiles, {})
        ]
        for dtype in entry.dtypes
        for job in jobs_of(entry, dtype, Selection(profiles=profiles))[0]
    ]
    text = README.read_text("utf-8")
    (stated,) = re.findall(re.escape(words).replace(r"\{\}", r"([\d,]+)"), text)
    assert abs(sum(planned) / int(stated.replace(",", "")) - 1) < 0.1, sum(planned)


def test_the_number_of_root_causes_is_that_of_the_findings() -> None:
    findings = (README.parent / "docs" / "findings.md").read_text("utf-8")
    (count,) = re.findall(r"have (\d+) distinct root causes", " ".join(findings.split()))
    assert f" {count} root causes, most of them" in " ".join(README.read_text("utf-8").split())


def test_the_numbers_of_faults_are_true() -> None:
    """None is lost without a word."""
    gradients = sum(fault.of_gradients for fault in FAULTS.values())
    text = " ".join(README.read_text("utf-8").split())
    assert (
        f"**Faults**: {len(FAULTS)} catalogued faults, {gradients} of them of gradients, "
        f"and {len(FAULTY)} faulty ports, all caught" in text
    )
    reports = [r for entry in (*MASKS, *REST, *GRADIENTS, *OTHER) for r in entry.reports]
    assert f" {len(reports)} public bug reports have" in text
    assert f" {len(variants.correct())} correct variants of all profiles" in text
