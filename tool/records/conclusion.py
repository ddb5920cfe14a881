"""What runs come to: one word, which the terminal, the page, Markdown and badges have from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Conclusion:
    """What a run comes to, or several together, and how it is shown."""

    word: str
    kind: Literal["pass", "known", "fail", "open"]
    """What a page colours it by; three of the conclusions are no answer, and open."""
    sign: str
    style: str
    """How a terminal shows it."""
    color: str
    """A name that shields.io knows."""


CONFORMS: Final = Conclusion("CONFORMS", "pass", "✓", "bold green", "brightgreen")
KNOWN: Final = Conclusion(
    "CONFORMS WITH KNOWN DEVIATIONS", "known", "≈", "bold yellow", "yellowgreen"
)
UNPROVED: Final = Conclusion("NOTHING PROVED", "open", "?", "bold yellow", "lightgrey")
UNFINISHED: Final = Conclusion("UNFINISHED", "open", "?", "bold yellow", "lightgrey")
NOT_RUN: Final = Conclusion("NOT RUN", "fail", "✗", "bold red", "red")
OUTDATED: Final = Conclusion("UNEXPECTED PASS", "fail", "✗", "bold red", "red")
DEVIATES: Final = Conclusion("DEVIATES", "fail", "✗", "bold red", "red")

CONCLUSIONS: Final = (CONFORMS, KNOWN, UNPROVED, UNFINISHED, NOT_RUN, OUTDATED, DEVIATES)
"""The best first; of several runs together the last one is true."""
