"""All cells as columns of compact JSON, which the page's script reads.

A text is stored once and referred to by number, measured numbers have three digits, and the whole
is compressed: 100,000 cells with their worst entries take less than 2 MB of the page.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from qkvac.cells import CHECKS, Result, Status
from qkvac.publication.runs import Run
from qkvac.publication.strips import family_of
from qkvac.publication.troubles import again
from qkvac.spec.verdicts import statuses
from qkvac.texts import visible

NUMBERS: Final = ("ratio", "resolution", "ulp", "z", "rms", "bits", "seconds")
TEXTS: Final = ("status", "grade", "clause", "reason", "diagnosis", "resembles")
DIGEST: Final = 16
"""Hexadecimal digits of a digest that are kept; the record has all."""
DIGITS, VALUE_DIGITS = 3, 9
"""Significant digits of measured numbers, and of values."""


def packed(runs: Sequence[Run]) -> str:
    """The cells, compressed, in base64: letters that cannot end a script element."""
    text = json.dumps(columns(runs), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def columns(runs: Sequence[Run]) -> dict[str, Any]:
    """The cells of all runs.

    A column of texts is {values, index}, one of numbers a list; what is unknown is null.
    """
    pairs = [(run, result) for run in runs for result in run.results]
    results = [result for _, result in pairs]
    cases = _texts(result.cell.case for result in results)
    table: dict[str, Any] = {
        "environment": _texts(run.id for run, _ in pairs),
        "subject": _texts(result.cell.subject.id for result in results),
        "dtype": _texts(result.cell.dtype for result in results),
        "case": cases,
        "quantity": _texts(result.cell.quantity for result in results),
        **{name: _texts(getattr(r, name) for r in results) for name in TEXTS},
        "digest": _texts((r.digest or "")[:DIGEST] or None for r in results),
        "detail": _texts(r.detail for r in results),
        "again": _texts(again(r) if _told(r) else None for r in results),
        **{name: [_number(r, name) for r in results] for name in NUMBERS},
        **_worst(results),
    }
    return {
        "cells": len(results),
        "marks": {status.name: status.mark for status in statuses.STATUSES},
        "failing": sorted(Status.BAD),
        "labels": {run.id: run.label for run in runs},
        "strict": {run.id: run.report.strict for run in runs},
        "checks": list(CHECKS),
        "why": [family_of(case)[1] for case in cases["values"]],
        "columns": table,
    }


def _told(result: Result) -> bool:
    """Whether the page says how to see it again."""
    suspicious = result.grade == "suspicious"
    return suspicious or result.status in (*Status.BAD, Status.KNOWN_DEVIATION, Status.INDECISIVE)


def _texts(texts: Iterable[str | None]) -> dict[str, Any]:
    numbers = dict[str, int]()
    index = [None if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return {"values": [visible(text) for text in numbers], "index": index}


def _number(result: Result, name: str) -> float | str | None:
    """A measured number; what breaks the contract was not compared with any bound."""
    compared = result.compared or name == "seconds"
    return _rounded(getattr(result, name), DIGITS) if compared else None


def _worst(results: Sequence[Result]) -> dict[str, Any]:
    entries = [result.worst or {} for result in results]
    return {
        "entry": [entry.get("index") for entry in entries],
        **{
            name: [_rounded(entry.get(name), digits) for entry in entries]
            for name, digits in (
                *(("value", VALUE_DIGITS), ("certified", VALUE_DIGITS)),
                *(("error", DIGITS), ("bound", DIGITS)),
            )
        },
    }


def _rounded(value: Any, digits: int) -> float | str | None:
    """A number with few digits; what JSON lacks is text."""
    if value is None:
        return None
    number = float(value)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else str(number)
