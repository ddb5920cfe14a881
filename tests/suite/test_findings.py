"""The findings: their cases exist, their blocks are Python, and they cover the known deviations."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from qkvac.cells import Subject
from qkvac.records.deviations import Deviation, Deviations
from qkvac.spec.cases.catalogue import cases, profiles_with_cases
from qkvac.spec.registry import known_profiles
from qkvac.subjects.registry import backend
from qkvac.targets.packages import OWN

FINDINGS = Path(__file__).parents[2] / "docs" / "findings.md"

pytestmark = pytest.mark.skipif(
    not FINDINGS.exists(), reason="needs a checkout, not an installed package"
)

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CASE = re.compile(rf"(?<![\w/-])(?:{'|'.join(known_profiles())})/[\w-]+/[\w/-]+")
VERSION = re.compile(r"([a-z_]+) (\d[\d.]*\d)")


@pytest.fixture(scope="module")
def text() -> str:
    return FINDINGS.read_text(encoding="utf-8")


def named(text: str) -> set[str]:
    """The ids of cases that the findings name."""
    return set(CASE.findall(text))


def sections(text: str) -> Iterator[str]:
    """The lines in italics that begin a section: libraries, versions, reports."""
    return (part.split("*", 2)[1] for part in text.split("\n## ")[1:] if "\n\n*" in part[:200])


def libraries(known: Deviation) -> set[str]:
    """The distributions whose versions the entry means, by the adapters that it names."""
    return {
        backend(name).declaration.requires[0]
        for name in OWN
        for mode in backend(name).modes
        if fnmatch.fnmatchcase(Subject(name, mode, "cpu").name, known.backend)
    }


def reasons() -> dict[tuple[str, str], list[Deviation]]:
    """The known deviations by library and reason."""
    found: dict[tuple[str, str], list[Deviation]] = {}
    for known in Deviations.load().entries:
        for library in libraries(known):
            found.setdefault((library, known.reason), []).append(known)
    return found


def unshown(text: str) -> list[tuple[str, str]]:
    """Libraries and reasons of which no section gives a version that the list means, or no case."""
    versions = [found for part in sections(text) for found in VERSION.findall(part)]
    return [
        (library, reason)
        for (library, reason), entries in reasons().items()
        if not any(
            name == library and version in SpecifierSet(known.versions)
            for name, version in versions
            for known in entries
        )
        or not any(known.covers_case(case) for case in named(text) for known in entries)
    ]


def test_the_cases_exist(text: str) -> None:
    every = {case.id for name in profiles_with_cases() for case in cases(name)}
    assert named(text) <= every
    assert len(named(text)) > 10


def test_the_blocks_are_python(text: str) -> None:
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python\n") > 10
    for number, block in enumerate(blocks, 1):
        compile(block, f"block {number}", "exec")


def test_every_known_deviation_is_in_a_section_with_a_case(text: str) -> None:
    assert unshown(text) == []


def test_a_library_that_has_no_section_is_found(text: str) -> None:
    assert {name for name, _ in unshown(text.replace("mlx 0.32.4", "mlx"))} == {"mlx"}


def test_a_case_that_is_not_named_is_found(text: str) -> None:
    case = "multi_head_attention/empty/plain/0x30x21x10x3"
    assert [name for name, _ in unshown(text.replace(case, ""))] == ["equinox"]
