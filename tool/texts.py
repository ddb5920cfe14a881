"""Texts of strangers, as every output shows them: what cannot be seen is written out, and cut.

What a port prints, raises, declares or is called may hold anything: codes that move a terminal's
cursor, characters that turn round how the rest is read, half of a surrogate pair.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Cs", "Co", "Zl", "Zp"})
"""Categories of characters that show nothing, or change how others are shown."""
BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Characters of other categories that show nothing."""
LONGEST: Final = 500
"""Characters of a line that a stranger wrote."""
NAME: Final = 80
"""Characters of a name that a stranger chose."""
LINK: Final = re.compile(r"\(?(https?://[^\s()<>\"']+)\)?")
"""A web address, and the brackets around it."""


def visible(text: str) -> str:
    r"""The text with what cannot be seen written as \u202e; line ends and tabs stay.

    What is shown is then what is copied: no text can turn round how the rest is read.
    """
    if text.isprintable() and BLANK.isdisjoint(text):
        return text
    return "".join(c if c in "\n\t" or not hides(c) else _escape(c) for c in text)


def line(text: object, longest: int = LONGEST) -> str:
    r"""A text as part of a line: visible, its own line ends as \n, and cut at the end."""
    words = str(text)
    cut = words[: longest + 1].strip()
    shown = "".join(
        {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(c) or (_escape(c) if hides(c) else c)
        for c in cut
    )
    return shown if len(words) <= longest and len(shown) <= longest else f"{shown[:longest]}…"


def short(text: object) -> str:
    """A name as part of a line."""
    return line(text, NAME)


def parted(reason: str) -> tuple[str, str]:
    """A reason and the web address at its end; "" where there is none."""
    found = LINK.search(reason)
    if found is None:
        return reason, ""
    return reason[: found.start()].rstrip() + reason[found.end() :], found.group(1)


def hides(character: str) -> bool:
    """Whether a character shows nothing, or changes how others are shown."""
    return unicodedata.category(character) in HIDDEN or character in BLANK


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"
