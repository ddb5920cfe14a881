"""The report of a run: counts, the exit status, and the sentence that sums it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qkvac.cells import Result, Status
from qkvac.diagnosis.failures import explain
from qkvac.execution.shards import Shard
from qkvac.records.conclusion import (
    CONFORMS,
    DEVIATES,
    KNOWN,
    NOT_RUN,
    OUTDATED,
    UNFINISHED,
    UNPROVED,
    Conclusion,
)
from qkvac.records.deviations import Deviation
from qkvac.records.identity import Identity, identities
from qkvac.records.sentences import said
from qkvac.records.words import FAILED, INDECISIVE, PASSED
from qkvac.subjects.roster import Roster
from qkvac.subjects.selection import Selection

__all__ = ["Report", "explain"]


@dataclass(frozen=True)
class Report:
    """What a run found."""

    results: Sequence[Result]
    roster: Roster = field(default_factory=lambda: Roster(()))
    selection: Selection = field(default_factory=Selection)
    strict: bool = False
    planned: int = 0
    """Cells that the run was to have."""
    left_out: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Cases times dtypes that the tier leaves out, by subject id."""
    not_exercised: tuple[Deviation, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    shard: Shard | None = None
    """The part of the run that this is; None for all of it."""
    whole: int = 0
    """Cells of the run with all its shards."""
    ended: bool = True
    """Whether the run came to its end."""

    @cached_property
    def counts(self) -> Counter[str]:
        """Cells by status."""
        return Counter(result.status for result in self.results)

    @cached_property
    def failures(self) -> tuple[Result, ...]:
        """Results that make the run fail."""
        return tuple(r for r in self.results if self.is_failure(r))

    def is_failure(self, result: Result) -> bool:
        suspicious = self.strict and result.grade == "suspicious"
        return not result.ok or suspicious

    @cached_property
    def undecided(self) -> tuple[tuple[str, str, str], ...]:
        """(subject id, profile, dtype) that were offered and have no decisive pass of a result.

        Every gradient is a result, so that each of them has to be proved somewhere. What this
        machine could not run at all is not offered on it; nor is what a mode of an adapter
        declines whatever the case, since profiles are declared for all of its modes.
        """
        offered = dict[tuple[str, str, str], dict[str, bool]]()
        skipped, declined, tried = (set[tuple[str, str, str]]() for _ in range(3))
        for result in self.results:
            cell = result.cell
            if not result.last:
                continue
            key = (cell.subject.id, cell.profile, cell.dtype)
            if result.status == Status.SKIPPED:
                skipped.add(key)
                continue
            proofs = offered.setdefault(key, {})
            if result.status != Status.UNSUPPORTED:
                tried.add(key)
                # A listed deviation is proved as well as a pass.
                proved = result.decisive or result.status == Status.KNOWN_DEVIATION
                proofs[cell.quantity] = proofs.get(cell.quantity, False) or proved
            elif cell.subject.port is None:
                declined.add(key)
        absent = (skipped | declined) - tried
        return tuple(
            key
            for key, proofs in offered.items()
            if not (proofs and all(proofs.values())) and key not in absent
        )

    @property
    def stopped(self) -> int:
        """Planned cells that have no result, because the run was interrupted."""
        return max(self.planned - len(self.results), 0)

    @property
    def exit_status(self) -> int:
        if self.failures:
            return FAILED
        # What a shard holds may all be unsupported; that others prove something, it cannot know.
        if self.undecided or not (self.proves or self.shard):
            return INDECISIVE
        return PASSED

    @property
    def proves(self) -> bool:
        """Whether any cell passed decisively."""
        return any(result.decisive for result in self.results)

    @property
    def passed(self) -> bool:
        return self.exit_status == PASSED

    @cached_property
    def identities(self) -> tuple[Identity, ...]:
        """Which subjects agree bit for bit."""
        return identities(self.results)

    @property
    def required(self) -> int:
        """Cells that were run and had to pass."""
        return sum(
            count for status, count in self.counts.items() if status not in Status.NOT_REQUIRED
        )

    @cached_property
    def silent(self) -> tuple[str, ...]:
        """Ids of subjects that were asked and never gave an answer that could be judged."""
        asked = [r for r in self.results if r.status not in Status.NOT_REQUIRED]
        answered = {r.cell.subject.id for r in asked if r.status not in Status.UNANSWERED}
        ids = dict.fromkeys(r.cell.subject.id for r in asked)
        return tuple(id for id in ids if id not in answered)

    @cached_property
    def conclusion(self) -> Conclusion:
        """What the run comes to."""
        if self.failures:
            if all(r.status == Status.UNEXPECTED_PASS for r in self.failures):
                return OUTDATED
            bad = {r.cell.subject.id for r in self.failures}
            return NOT_RUN if bad <= {*self.silent} else DEVIATES
        if self.stopped or not self.ended:
            return UNFINISHED
        if self.exit_status == INDECISIVE or not self.proves:
            return UNPROVED
        return KNOWN if self.counts[Status.KNOWN_DEVIATION] else CONFORMS

    @property
    def said(self) -> str:
        """What the run comes to in words, which those of its conclusion stand before.

        A second sentence says which part of a run it is about.
        """
        text = said(self)
        if self.shard is None:
            return text
        part = f"Shard {self.shard.number} of {self.shard.of}"
        return f"{text} {part}: {self.planned:,} of {self.whole:,} cells."

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, or in two of a part of a run."""
        return f"{self.conclusion.word}: {self.said}"

    def only(self, subject: str) -> tuple[str, ...]:
        """What a subject takes alone, in the words that are the reasons for what it is not asked.

        Nothing of a subject that is not in the roster.
        """
        return self._only.get(subject, ())

    @cached_property
    def _only(self) -> Mapping[str, tuple[str, ...]]:
        return {e.subject.id: e.declaration.only.words for e in self.roster.entries}

    @cached_property
    def profiles(self) -> tuple[str, ...]:
        """Profiles that some subject offers."""
        return tuple(dict.fromkeys(r.cell.profile for r in self.results if r.offered))

    def to_json(self) -> dict[str, Any]:
        """Totals as plain values; the results themselves are in the record's form."""
        return {
            "conclusion": self.conclusion.word,
            "sentence": self.sentence,
            "exit_status": self.exit_status,
            **({"shard": str(self.shard), "whole": self.whole} if self.shard else {}),
            **({"entropy": self.selection.entropy} if self.selection.entropy else {}),
            "counts": dict(self.counts),
            "left_out": dict(self.left_out),
            "identities": [
                {
                    **{"profile": i.profile, "dtype": i.dtype, "quantity": i.quantity},
                    **{"cases": i.cases, "classes": i.classes},
                }
                for i in self.identities
            ],
            "warnings": list(self.warnings),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        from qkvac.records.summary import plain

        return plain(self)
