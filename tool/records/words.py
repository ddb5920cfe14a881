"""Words and numbers that every ending of a run shares: exit statuses, and names in short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from qkvac.spec.cases.catalogue import profiles_with_cases
from qkvac.spec.registry import known_profiles

PASSED, FAILED, USAGE, INDECISIVE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses."""

NOT_PROVED: Final = (
    "A pass proves nothing about shapes that were not run, about dropout in training, or speed."
)

MOST: Final = 4
"""Names that a sentence lists."""


def some(words: Iterable[str]) -> str:
    """Words joined as in a sentence; long lists end in a number."""
    words = list(words)
    if len(words) > MOST:
        words = [*words[: MOST - 1], f"{len(words) - MOST + 1} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number and what it counts: 1 cell, 2,000 cells; `nouns` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def summed_up(
    profiles: Iterable[str], words: tuple[str, str] = ("attention", "gradients")
) -> list[str]:
    """Names of profiles; one of the words stands for all that compute forward, or gradients."""
    names = list(profiles)
    found = list[str]()
    for word, gradients in zip(words, (False, True), strict=True):
        those = [name for name in names if bool(known_profiles()[name].base) == gradients]
        every = [
            name for name in profiles_with_cases() if bool(known_profiles()[name].base) == gradients
        ]
        found += [word] if set(those) >= set(every) else those
    return found
