"""Texts of a record on a page: whatever a stranger wrote, it is text and makes nothing happen."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.publication import html
from qkvac.tests.suite.pages import Skeleton, archive
from qkvac.tests.suite.records import HOSTILE, entry, environment, result
from qkvac.texts import visible


def strange(folder: Path, texts: tuple[str, ...]) -> str:
    """A page of a record that has these texts wherever a record has free text."""
    results, entries = [], []
    for number_, text in enumerate(texts):
        subject = Subject(f"{number_} {text[:80]}", "default", "cpu", port=text)
        entries.append(entry(subject, text, raw={"version": text[:50]}))
        for status in (Status.FAILED, Status.ERROR, Status.KNOWN_DEVIATION, Status.SKIPPED):
            cell = Cell(subject, "float32", f"attention/{text[:50]}/{status}", "C")
            results.append(
                Result(cell, status, clause="bound", reason=text, diagnosis=text, last=True)
            )
    settings = {f"{number_}{text[:40]}": text for number_, text in enumerate(texts)}
    surroundings = environment(cpu=texts[0], system=texts[-1], settings=settings)
    return html.render(
        archive(folder, results, surroundings=surroundings, entries=entries, notes=list(texts))
    )


HARMLESS = ("word and/more words", "another one", "https://example.org/1")


def test_hostile_texts_make_no_tag(tmp_path: Path) -> None:
    known = set(Skeleton(strange(tmp_path, HARMLESS)).tags)
    assert set(Skeleton(strange(tmp_path, HOSTILE)).tags) <= known


def test_without_escaping_they_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(**options: Any) -> Environment:
        return Environment(**{**options, "autoescape": False})

    monkeypatch.setattr("qkvac.publication.html.Environment", careless)
    known = set(Skeleton(strange(tmp_path, HARMLESS)).tags)
    assert not set(Skeleton(strange(tmp_path, HOSTILE)).tags) <= known


def test_hidden_characters_are_shown(tmp_path: Path) -> None:
    text = strange(tmp_path, HOSTILE)
    assert not re.search("[\u202e\u2028\ufeff\x00\x07\x1b]", text)
    assert "\\u202e" in text
    assert visible("Ω → \u202e\u2066x\n\ty") == "Ω → \\u202e\\u2066x\n\ty"


def test_links_lead_to_anchors_alone(tmp_path: Path) -> None:
    found = Skeleton(strange(tmp_path, ("javascript:alert(1)", "data:text/html,x", *HOSTILE)))
    for name, value in found.attributes:
        assert not name.startswith("on")
        if name in ("href", "src"):
            assert value.startswith("#"), value


def test_the_policy_knows_the_style_and_the_script_of_the_page(tmp_path: Path) -> None:
    text = html.render(archive(tmp_path, [result()]))
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in text
    assert "unsafe" not in html.policy("", "")
    assert "http" not in "".join(v for n, v in Skeleton(text).attributes if n in ("src", "href"))
