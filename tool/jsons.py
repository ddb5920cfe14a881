"""JSON of strangers: plain values that can be shown, compared and written again, or an error."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from qkvac.texts import BLANK, hides

DEEPEST: Final = 64
"""Arrays and objects inside each other."""
DIGITS: Final = 20
"""Of an integer; those of 64 bits have no more."""


def loads(data: bytes | str) -> Any:
    """The value of a text in UTF-8.

    Raises ValueError, in few words, for what is no JSON, numbers that no float64 or 64-bit integer
    is, halves of surrogate pairs, and what is nested deeper than anything of ours.
    """
    text = data if isinstance(data, str) else data.decode()
    try:
        value = json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > DEEPEST and nested(value):
        raise ValueError("it is nested too deeply")
    if _HALF.search(text):
        # Half of a surrogate pair is no text, and could not be written any more.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def dumps(value: Any, **options: Any) -> str:
    """The text of a value, in which what hides is escaped, and half of a pair spelt out."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.isprintable() and BLANK.isdisjoint(text):
        return text
    return "".join(c if c == "\n" or not hides(c) else _escape(c) for c in text)


def _escape(character: str) -> str:
    half = "\ud800" <= character <= "\udfff"
    return ("\\" if half else "") + json.dumps(character)[1:-1]


_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


def nested(value: Any) -> bool:
    """Whether a value is nested deeper than DEEPEST. It is walked level by level, not called."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for outer in level
            if isinstance(outer, Mapping | list)
            for item in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return False
    return True


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


def _float(word: str) -> float:
    if math.isinf(value := float(word)):
        raise ValueError(f"{word[:20]} is larger than any number")
    return value


def _integer(word: str) -> int:
    if len(word) > DIGITS:
        raise ValueError(f"an integer of {len(word)} digits")
    return int(word)
