"""Marks: what became of some cells, as one word and the numbers beside it.

The word carries the meaning; colour only repeats it, by the mark's kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qkvac.cells import Result, Status
from qkvac.records.tables import GRADES, worst_status
from qkvac.spec.verdicts import statuses

PLAIN, FAILED, KNOWN, OPEN, ABSENT = "plain", "failed", "known", "open", "absent"
"""Kinds of marks besides the grades of a pass."""


@dataclass(frozen=True)
class Mark:
    """What became of some cells."""

    word: str = ""
    """The worst grade of those that passed, or the status that matters more; "" for no cells."""
    kind: str = ABSENT
    ratio: float | None = None
    """Largest error over its bound of those that passed; None where that says nothing."""
    passed: int = 0
    required: int = 0
    """Cells that were run and had to pass."""


def mark(results: Sequence[Result], strict: bool = False) -> Mark:
    """The mark of some cells; with `strict` a suspicious one has failed."""
    if not results:
        return Mark()
    status = worst_status(results)
    passed, required = score(results, strict)
    if status != Status.PASSED:
        return Mark(status, statuses.named(status).mark, None, passed, required)
    those = [result for result in results if result.status == Status.PASSED]
    grade = max((r.grade for r in those if r.grade), key=GRADES.index, default=None)
    ratio = max((r.ratio for r in those if r.ratio is not None), default=None)
    kind = FAILED if strict and grade == "suspicious" else grade or statuses.named(status).mark
    return Mark(grade or status, kind, ratio, passed, required)


def score(results: Iterable[Result], strict: bool = False) -> tuple[int, int]:
    """Cells that passed, and cells that were run and had to: what is never shown is a part."""
    passed = required = 0
    for result in results:
        required += result.status not in Status.NOT_REQUIRED
        passed += result.status in Status.PASSES and not (strict and result.grade == "suspicious")
    return passed, required


def largest(results: Iterable[Result]) -> tuple[float | None, int]:
    """The largest error over its bound, whatever became of the cell, and how many have none.

    A result that is not finite, or of another shape, fails before its errors are compared.
    """
    own = [result for result in results if result.ratio is not None]
    compared = [r.ratio for r in own if r.compared and r.ratio is not None and r.ratio == r.ratio]
    return max(compared, default=None), len(own) - len(compared)
