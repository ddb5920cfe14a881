"""TOML of strangers. Its parser came to Python with version 3.11."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qkvac.jsons import nested

if sys.version_info >= (3, 11):
    import tomllib
    from tomllib import TOMLDecodeError
else:
    import tomli as tomllib
    from tomli import TOMLDecodeError

__all__ = ["LARGEST", "TOMLDecodeError", "loads", "text_of"]

LARGEST: Final = 1 << 20
"""Bytes of a file."""
PARTS: Final = 1000
"""Dots of a line; the parser takes time with the square of their number."""


def loads(text: str) -> dict[str, Any]:
    """The table of a text.

    Raises TOMLDecodeError, in few words, for what is no TOML, integers of more than 64 bits, and
    what is nested deeper than anything of ours.
    """
    if any(row.count(".") > PARTS for row in text.splitlines()):
        raise TOMLDecodeError(f"a line with more than {PARTS} dots")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise TOMLDecodeError("it is nested too deeply") from None
    except TOMLDecodeError:
        raise
    except (ValueError, OverflowError) as error:
        raise TOMLDecodeError(str(error)) from None
    if nested(table):
        raise TOMLDecodeError("it is nested too deeply")
    if _wide(table):
        raise TOMLDecodeError("an integer of more than 64 bits")
    return table


def text_of(path: Path) -> str:
    """The text of a file; raises OSError, or ValueError for too much of it or for no UTF-8."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    return data.decode()


def _wide(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_wide, value.values()))
    if isinstance(value, list):
        return any(map(_wide, value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
