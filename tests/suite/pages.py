"""Pages made of records, and read back without a browser."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from qkvac.cells import Result, Status, Subject
from qkvac.publication.archive import Archive, read
from qkvac.tests.suite.records import CASE, TORCH, lines, result, write


def archive(folder: Path, results: list[Result], **given: Any) -> Archive:
    return read(write(folder / "a.jsonl", lines(results, **given)), allow_truncated=True)


def every_status(subject: Subject = TORCH) -> list[Result]:
    return [result("C", f"{CASE}/s{n}", "float32", subject, s) for n, s in enumerate(Status.ALL, 1)]


class Skeleton(HTMLParser):
    """Tags with the names of their attributes, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags = list[tuple[str, ...]]()
        self.attributes = list[tuple[str, str]]()
        self.text = ""
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.attributes += [(name, value or "") for name, value in attrs]
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data
