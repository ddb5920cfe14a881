"""Numbers, lists and links, as a page shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LINK: Final = re.compile(r"\(?(https?://[^\s()<>\"']+)\)?")


def number(value: float | None) -> str:
    """A measured number with a few digits: 0.68, 0.0012, 1.2e+05; "" for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if 0.01 <= value < 10 else f"{value:.2g}"


def listed(words: Iterable[str]) -> str:
    """Words joined as in a sentence."""
    words = list(words)
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def parted(reason: str) -> tuple[str, str]:
    """A reason and the web address at its end; "" where there is none."""
    found = LINK.search(reason)
    if found is None:
        return reason, ""
    return reason[: found.start()].rstrip() + reason[found.end() :], found.group(1)
