"""Numbers and lists, as a page shows them."""

from __future__ import annotations

from collections.abc import Iterable


def number(value: float | None) -> str:
    """A measured number with a few digits: 0.68, 0.0012, 1.2e+05; "" for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if 0.01 <= value < 10 else f"{value:.2g}"


def listed(words: Iterable[str]) -> str:
    """Words joined as in a sentence."""
    words = list(words)
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
