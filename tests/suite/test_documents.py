"""What documents name is there: modules, files and tests."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULE = re.compile(r"`(qkvac(?:\.[a-z_]+)+)`")
FILE = re.compile(r"`((?:spec|tool|backends|tests)/[\w/.-]+?\.(?:py|toml|json))(?:::(\w+))?`")

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs a checkout")


def absent(text: str) -> list[str]:
    """Modules, files and tests that a text names and that are not there."""
    found = []
    for name in MODULE.findall(text):
        try:
            known = find_spec(name) is not None
        except ModuleNotFoundError:
            known = False
        found += [] if known or name.startswith(ENTRY_POINTS) else [name]
    for path, test in FILE.findall(text):
        file = ROOT / path
        if "NAME" in path:
            continue
        if not file.exists() or (test and f"def {test}(" not in file.read_text("utf-8")):
            found.append(path)
    return found


ENTRY_POINTS = ("qkvac.backends", "qkvac.profiles")
"""Groups of entry points, which read like modules."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_is_there(path: Path) -> None:
    assert not absent(path.read_text(encoding="utf-8"))


def test_what_is_not_there_is_noticed() -> None:
    text = "`qkvac.spec.nowhere` `spec/nowhere.py` `tests/suite/test_documents.py::test_nothing`"
    assert absent(text) == [
        "qkvac.spec.nowhere",
        "spec/nowhere.py",
        "tests/suite/test_documents.py",
    ]
    assert not absent("`tests/suite/test_documents.py::test_what_is_not_there_is_noticed`")
