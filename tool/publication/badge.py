"""Badges: what stands in a README, in few words and an honest colour.

Words and colour are those of the archive's conclusion. Green is for archives in which everything
that was run conforms: known deviations take it away, and so do results that are too coarse to tell.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from qkvac.publication.archive import Archive
from qkvac.publication.marks import score
from qkvac.records.conclusion import CONFORMS, DEVIATES, KNOWN, OUTDATED, UNPROVED
from qkvac.texts import visible

HEX: Final = {
    CONFORMS.color: "#3a7d1a",
    KNOWN.color: "#6b7a12",
    DEVIATES.color: "#b5342a",
    UNPROVED.color: "#6b6b6b",
}
"""The colours as the picture has them: dark enough for white letters to be read on them."""

LONGEST: Final = 60
"""Characters of a label."""
LETTER: Final = 6.6
"""Width of a letter of the picture's font, on average; the text is set to the width it gets."""


@dataclass(frozen=True)
class Badge:
    """What a badge says; the colour is a name that shields.io knows."""

    label: str
    message: str
    color: str


def badge(archive: Archive, label: str = "qkvac") -> Badge:
    """The badge of an archive."""
    label = " ".join(visible(label).split())[:LONGEST] or "qkvac"
    return Badge(label, *_verdict(archive))


def _verdict(archive: Archive) -> tuple[str, str]:
    conclusion = archive.conclusion
    reports = archive.reports.values()
    scores = [score(report.results, report.strict) for report in reports]
    passed, required = (sum(numbers) for numbers in zip(*scores, strict=True))
    word = conclusion.word.lower()
    if conclusion is DEVIATES or conclusion is OUTDATED:
        failed = sum(len(report.failures) for report in reports)
        return f"{word}, {failed} of {required} fail", conclusion.color
    if conclusion not in (CONFORMS, KNOWN):
        return word, conclusion.color
    unclear = conclusion is CONFORMS and passed < required
    return f"{word} {passed}/{required}", KNOWN.color if unclear else conclusion.color


def endpoint(badge: Badge) -> str:
    """The badge as shields.io reads it from an address: its endpoint schema, version 1."""
    data = {
        "schemaVersion": 1,
        "label": badge.label,
        "message": badge.message,
        "color": badge.color,
    }
    return json.dumps(data, ensure_ascii=False) + "\n"


def svg(badge: Badge) -> str:
    """The badge as a picture."""
    left, right = (round(LETTER * len(text)) + 12 for text in (badge.label, badge.message))
    return (
        _template()
        .get_template("badge.svg.j2")
        .render(
            label=badge.label, message=badge.message, left=left, right=right, color=HEX[badge.color]
        )
    )


@cache
def _template() -> Environment:
    return Environment(
        loader=PackageLoader("qkvac.publication", ""),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
