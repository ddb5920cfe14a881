"""Synthetic records: what a run would have written, without running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import qkvac
from qkvac.cells import Cell, Result, Status, Subject
from qkvac.records.environment import identity
from qkvac.records.record import FORMAT, roster_json, text, to_json
from qkvac.records.report import Report
from qkvac.spec.attention import SPEC_VERSION
from qkvac.subjects.roster import Entry, Roster

TORCH: Final = Subject("torch", "eager", "cpu")
JIT: Final = Subject("jax", "jit", "cpu")
CASE: Final = "attention/normal/33x20x7"

HOSTILE: Final = (
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }} {% for x in y %}",
    "a | b `c` ``d`` **e** [f](javascript:g) ![h](i) <!-- j --> &amp;",
    "line\nbreak\r\nand | pipe\n\n# heading\n```\ncode",
    "\x1b[31mred\x1b]0;title\x07 \x00 \u202eright-to-left \u2028 \ufeff",
    "'; DROP TABLE cells; --\\",
    "../../etc/passwd",
    "x" * 400,
)
"""Texts that a port's name, a reason or a diagnosis may hold, and no output may act upon."""


def environment(**changes: Any) -> dict[str, Any]:
    """The surroundings of a run, with some of them changed."""
    return {
        "python": "3.11.7",
        "platform": "Linux x86_64",
        "system": "Debian GNU/Linux 12 (bookworm), glibc 2.36",
        "cpu": "A Processor",
        "cpu_features": ["AVX2", "FMA3"],
        "threads": 1,
        "versions": {"jax": "0.10.2", "numpy": "2.4.6", "torch": "2.13.0"},
        "devices": ["cpu"],
        "accelerators": [],
        "numpy": "2.4.6",
        "settings": {},
        **changes,
    }


def entry(subject: Subject = TORCH, version: str = "2.13.0", **changes: Any) -> Entry:
    """What a subject offers."""
    given: dict[str, Any] = {
        "raw": {"name": subject.backend[:100], "dtypes": ["float64", "float32"], "supports": "all"},
        "functions": ("attention",),
        "versions": {subject.backend: version},
    }
    return Entry(subject, **{**given, **changes})


def result(
    quantity: str = "C",
    case: str = CASE,
    dtype: str = "float32",
    subject: Subject = TORCH,
    status: str = Status.PASSED,
    **changes: Any,
) -> Result:
    """A result as it usually looks, by its status."""
    given: dict[str, Any] = {"last": quantity == "C"}
    if status == Status.PASSED:
        given |= {
            **{"grade": "conforming", "ratio": 0.125, "resolution": 1e-6, "ulp": 1.5, "bits": 23.5},
            **{"digest": "a" * 64, "seconds": 0.25, "decisive": True},
            "worst": {
                **{"index": [0, 1], "value": 0.5, "certified": 0.5000001},
                **{"error": 1e-7, "bound": 8e-7},
            },
        }
    elif status == Status.FAILED:
        given |= {
            **{"clause": "bound", "ratio": 400.0, "digest": "b" * 64, "reason": "too far away"},
            "diagnosis": "C equals the result with 1/d instead of 1/√c",
            "worst": {
                **{"index": [0, 1], "value": 0.75, "certified": 0.5},
                **{"error": 0.25, "bound": 6.25e-4},
            },
        }
    elif status not in (Status.MISSING, Status.INDECISIVE):
        given |= {"reason": f"because of {status}"}
    return Result(Cell(subject, dtype, case, quantity), status, **{**given, **changes})


def lines(
    results: Sequence[Result] = (),
    surroundings: Mapping[str, Any] | None = None,
    entries: Iterable[Entry] | None = None,
    footer: bool = True,
    **run: Any,
) -> Iterator[dict[str, Any]]:
    """The lines of a record of one environment; `run` changes what its header says of the run."""
    if entries is None:
        subjects = dict.fromkeys(r.cell.subject for r in results) or {TORCH: None}
        entries = [entry(subject) for subject in subjects]
    entries = tuple(entries)
    surroundings = environment() if surroundings is None else surroundings
    yield {
        "kind": "header",
        "format": FORMAT,
        "spec_version": SPEC_VERSION,
        "qkvac_version": qkvac.__version__,
        "started": "2026-01-02T03:04:05+00:00",
        "environment_id": identity(surroundings),
        "environment": dict(surroundings),
        "run": {
            **{"backends": [], "profiles": [], "dtypes": [], "devices": [], "cases": []},
            **{"tier": "default", "seeds": 0, "strict": False, "timeout": 60.0},
            **{"cells": len(results), "left_out": {}, "notes": []},
            "subjects": roster_json(entries),
            **run,
        },
    }
    yield from map(to_json, results)
    if footer:
        yield {
            "kind": "footer",
            "counts": dict(Counter(r.status for r in results)),
            "exit_status": Report(
                results, Roster(entries), strict=run.get("strict", False)
            ).exit_status,
            "cells": len(results),
            "seconds": 1.5,
            "warnings": [],
        }


def write(path: Path, *sections: Iterable[Mapping[str, Any]]) -> Path:
    """A record of the lines of one environment after the other."""
    path.write_text("".join(text(line) for section in sections for line in section), "utf-8")
    return path
