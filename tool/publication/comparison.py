"""Two archives compared cell by cell: what a new one says that an old one did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from qkvac.cells import Cell, Result, Status
from qkvac.publication.archive import Archive, Environment
from qkvac.publication.matching import Pair, pairs, renamed, results_of
from qkvac.publication.surroundings import Move, edits, incomparable, moves

GROWTH: Final = 2.0
"""An error grew when it is more than this many times what it was: more than a bit was lost,"""
NOTICED: Final = 0.25
"""and takes more than this part of its bound: two more such losses would break it."""

NEW_FAILURE: Final = "new failure"
LOST: Final = "lost"
EXCUSED: Final = "excused"
HIDDEN: Final = "hidden"
FIXED: Final = "fixed"
ADDED: Final = "added"
FAILING: Final = "failing"
GROWN: Final = "grown"
SAME: Final = "same"

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    NEW_FAILURE: ("fails, and did not before", "fail, and did not before"),
    LOST: (
        "passed before, and is not run or not decided any more",
        "passed before, and are not run or not decided any more",
    ),
    EXCUSED: (
        "deviates in a way that is listed as known, and did not before",
        "deviate in a way that is listed as known, and did not before",
    ),
    HIDDEN: (
        "failed or deviated before, and is not run or not decided any more",
        "failed or deviated before, and are not run or not decided any more",
    ),
    GROWN: ("has an error that grew towards the bound", "have errors that grew towards the bound"),
    FIXED: ("passes, and did not before", "pass, and did not before"),
    ADDED: (
        "passes, and was not run or not decided before",
        "pass, and were not run or not decided before",
    ),
    FAILING: ("fails as before", "fail as before"),
    SAME: ("says the same", "say the same"),
}
"""What can become of one cell, or of several, from one record to the other, in words."""


@dataclass(frozen=True)
class Change:
    """A cell, and what it was in either record; None where it is absent."""

    kind: str
    cell: Cell
    old: Result | None
    new: Result | None


@dataclass(frozen=True)
class Comparison:
    """What changed from one archive to another."""

    old: Archive
    new: Archive
    pairs: tuple[Pair, ...]
    changes: Mapping[str, tuple[Change, ...]]
    """Cells by what became of them; those that say the same are only counted."""
    counts: Mapping[str, int]
    """How many cells there are of every kind."""
    bits: tuple[Change, ...]
    """Results whose bits changed where they may be compared, whatever else became of the cell."""
    comparable: int
    """Results whose bits were compared."""
    incomparable: Mapping[str, int]
    """Results whose bits say nothing, by the reason."""

    @property
    def regressed(self) -> bool:
        return bool(self.counts.get(NEW_FAILURE, 0) + self.counts.get(LOST, 0))

    @property
    def grown(self) -> bool:
        """Whether some error grew towards its bound."""
        return bool(self.counts.get(GROWN, 0))

    @property
    def moves(self) -> Mapping[Move, tuple[str, ...]]:
        """What moved, and for which subjects."""
        found = dict[Move, list[str]]()
        seen = dict[tuple[str, str], tuple[Move, ...]]()
        for pair in self.pairs:
            if pair.old is not None and pair.new is not None:
                key = pair.old.id, pair.new.id
                if key not in seen:
                    seen[key] = moves(pair.old, pair.new)
                for move in (*seen[key], *edits(pair.subject, pair.old, pair.new)):
                    found.setdefault(move, []).append(pair.subject)
        return {move: tuple(subjects) for move, subjects in found.items()}


def compare(
    old: Archive, new: Archive, called: Mapping[str, str] = MappingProxyType({})
) -> Comparison:
    """Compares two archives; `called` says which subjects of the old one are which of the new one.

    Raises UsageError for a name that is not in its archive.
    """
    if called:
        old = renamed(old, new, called)
    before, after = results_of(old), results_of(new)
    matched = pairs(old, new)
    changes = dict[str, list[Change]]()
    counts, barred = Counter[str](), Counter[str]()
    bits = list[Change]()
    comparable = 0
    for pair in matched:
        strict = pair.new is not None and bool(pair.new.run["strict"])
        reason = _incomparable(pair, new)
        for one, other in _cells(pair, before, after):
            change = _change(one, other, strict)
            counts[change.kind] += 1
            if change.kind not in (SAME, FAILING):
                changes.setdefault(change.kind, []).append(change)
            if one is None or other is None or None in (one.digest, other.digest):
                continue
            if reason:
                barred[reason] += 1
                continue
            comparable += 1
            if one.digest != other.digest:
                bits.append(change)
    return Comparison(
        old,
        new,
        matched,
        {kind: tuple(changes[kind]) for kind in KINDS if kind in changes},
        counts,
        tuple(bits),
        comparable,
        barred,
    )


def grew(old: float | None, new: float | None) -> bool:
    """Whether an error over bound grew so far that it should be looked at."""
    return old is not None and new is not None and new > NOTICED and new > GROWTH * old


def _incomparable(pair: Pair, new: Archive) -> str:
    if pair.old is None or pair.new is None:
        return ""
    subject = pair.new.subjects.get(pair.subject)
    return incomparable(subject, pair.old, pair.new) if subject is not None else ""


def _cells(
    pair: Pair,
    before: Mapping[tuple[str, str], Sequence[Result]],
    after: Mapping[tuple[str, str], Sequence[Result]],
) -> Iterable[tuple[Result | None, Result | None]]:
    """The results of every cell of a pair."""
    old, new = _by_cell(pair.old, pair, before), _by_cell(pair.new, pair, after)
    for key in dict.fromkeys((*new, *old)):
        yield old.get(key), new.get(key)


def _by_cell(
    environment: Environment | None,
    pair: Pair,
    results: Mapping[tuple[str, str], Sequence[Result]],
) -> dict[str, Result]:
    if environment is None:
        return {}
    return {r.cell.id: r for r in results.get((environment.id, pair.subject), ())}


def _change(old: Result | None, new: Result | None, strict: bool) -> Change:
    known = new or old
    assert known is not None
    return Change(_kind(old, new, strict), known.cell, old, new)


def _kind(old: Result | None, new: Result | None, strict: bool) -> str:
    was, now = _state(old, strict), _state(new, strict)
    if was == now == Status.PASSED:
        ratios = (r.ratio if r is not None else None for r in (old, new))
        return GROWN if grew(*ratios) else SAME
    return _TRANSITIONS.get((was, now), SAME)


def _state(result: Result | None, strict: bool) -> str:
    """Passed, failed, known deviation, or "" for what was not run or not decided."""
    if result is None:
        return ""
    if not result.ok or (strict and result.grade == "suspicious"):
        return Status.FAILED
    if result.status in Status.PASSES:
        return Status.PASSED
    return result.status if result.status == Status.KNOWN_DEVIATION else ""


_TRANSITIONS: Final[Mapping[tuple[str, str], str]] = {
    (Status.PASSED, Status.FAILED): NEW_FAILURE,
    (Status.KNOWN_DEVIATION, Status.FAILED): NEW_FAILURE,
    ("", Status.FAILED): NEW_FAILURE,
    (Status.FAILED, Status.FAILED): FAILING,
    (Status.PASSED, ""): LOST,
    (Status.PASSED, Status.KNOWN_DEVIATION): EXCUSED,
    (Status.FAILED, Status.KNOWN_DEVIATION): EXCUSED,
    ("", Status.KNOWN_DEVIATION): EXCUSED,
    (Status.FAILED, ""): HIDDEN,
    (Status.KNOWN_DEVIATION, ""): HIDDEN,
    (Status.FAILED, Status.PASSED): FIXED,
    (Status.KNOWN_DEVIATION, Status.PASSED): FIXED,
    ("", Status.PASSED): ADDED,
}
