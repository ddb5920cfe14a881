"""The report of a run: counts, the exit status, and the sentence that sums it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from qkvac.cells import Result, Status
from qkvac.diagnosis.failures import explain
from qkvac.execution.shards import Shard
from qkvac.records.deviations import Deviation
from qkvac.records.identity import Identity, identities
from qkvac.records.words import (
    FAILED,
    INDECISIVE,
    PASSED,
    summed_up,
)
from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS
from qkvac.subjects.roster import Roster
from qkvac.subjects.selection import Selection
from qkvac.targets.declaration import SUPPORTS

__all__ = ["Report", "explain"]

MOST: Final = 4
"""Names that a sentence lists."""


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

    @property
    def sentence(self) -> str:
        """The verdict in one sentence; a second one says which part of a run it is about."""
        if self.shard is None:
            return self._verdict
        part = f"Shard {self.shard.number} of {self.shard.of}"
        return f"{self._verdict} {part}: {self.planned:,} of {self.whole:,} cells."

    @property
    def _verdict(self) -> str:
        bad = list(dict.fromkeys(result.cell.subject.id for result in self.failures))
        if bad and all(r.status == Status.UNEXPECTED_PASS for r in self.failures):
            return f"UNEXPECTED: a known deviation of {_listed(bad)} is gone; remove its entry."
        if bad:
            quantities = list(dict.fromkeys(r.cell.quantity for r in self.failures))
            wrong = list(dict.fromkeys(r.cell.profile for r in self.failures))
            of = f" of {_listed(wrong)}" if len(self.profiles) > 1 else ""
            return (
                f"NOT IDENTICAL: {_listed(bad)} {'deviates' if len(bad) == 1 else 'deviate'} "
                f"from the spec in {_listed(quantities)}{of}."
            )
        if self.stopped:
            return f"UNFINISHED: nothing failed yet, but {self.stopped} cells were not run."
        if self.exit_status == INDECISIVE:
            several = len(self.profiles) > 1
            where = [
                f"{f'{profile} of ' if several else ''}{subject} in {dtype}"
                for subject, profile, dtype in self.undecided
            ]
            said = f"NOTHING PROVED: no decisive result for {_listed(where) or 'anything'}."
            return " ".join(filter(None, (said, self._advice)))
        if not self.proves:
            return "NOTHING TO PROVE: all that is here is skipped or unsupported."
        subjects = dict.fromkeys(r.cell.subject for r in self.results if r.decisive)
        ran = [subject.id for subject in subjects]
        if len(ran) > MOST:
            ran = list(dict.fromkeys(subject.backend for subject in subjects))
        dtypes = list(dict.fromkeys(r.cell.dtype for r in self.results if r.decisive))
        known = self.counts[Status.KNOWN_DEVIATION]
        but = f", {known} known deviations aside" if known else ""
        unclear = sum(1 for r in self.results if r.last and r.status == Status.INDECISIVE)
        if unclear:
            but += f"; {unclear} results are too coarse to tell"
        if self._coarser():
            but += "; it was judged by the coarser arithmetic that it declares"
        return (
            f"IDENTICAL: {_listed(ran)} {'computes' if len(ran) == 1 else 'compute'} the same "
            f"{self._what()} as the spec in {_listed(dtypes)}{but}."
        )

    @property
    def _advice(self) -> str:
        """What would prove more, where less is declared than was to be proved."""
        left = Counter(
            result.reason or ""
            for result in self.results
            if result.last
            and result.status == Status.UNSUPPORTED
            and (result.cell.subject.id, result.cell.profile, result.cell.dtype) in self.undecided
        )
        narrow = {word for key in self.undecided for word in self.only(key[0])}
        remedies = list[str]()
        outside = [word for word in left if word in narrow]
        lacking = [word for word in left if word in SUPPORTS]
        if outside:
            count = sum(left[word] for word in outside)
            remedies.append(
                f"taking more than `only` says ({count} results lie outside: {', '.join(outside)})"
            )
        if lacking:
            count = sum(left[word] for word in lacking)
            words = ", ".join(f'"{word}"' for word in sorted(lacking))
            remedies.append(f"{words} in `supports` ({count} results need that)")
        if not remedies:
            return ""
        remedies.append("naming in `profiles` only what is offered")
        return f"What would prove more: {', or '.join(remedies)}."

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

    def _what(self) -> str:
        """What was found to be the same: by name, unless it is all there is."""
        covered = dict[str, dict[str, None]]()
        for r in self.results:
            if r.decisive:
                covered.setdefault(r.cell.subject.id, {})[r.cell.profile] = None
        found = summed_up(dict.fromkeys(p for profiles in covered.values() for p in profiles))
        if len({tuple(profiles) for profiles in covered.values()}) > 1:
            return f"{_listed(found)}, each where it offers them,"
        return _listed(found)

    def _coarser(self) -> bool:
        """Whether a subject that passed declares coarser formats than its dtype has by default."""
        passed = {(r.cell.subject, r.cell.dtype) for r in self.results if r.decisive}
        return any(
            entry.arithmetic(dtype).truncates
            or FORMATS[getattr(entry.arithmetic(dtype), field)].precision
            < FORMATS[getattr(Arithmetic.for_dtype(dtype), field)].precision
            for entry in self.roster.entries
            for dtype in entry.dtypes
            if (entry.subject, dtype) in passed
            for field in ("storage", "operands", "accumulation", "elementwise", "scores")
        )

    def to_json(self) -> dict[str, Any]:
        """Totals as plain values; the results themselves are in the record's form."""
        return {
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


def _listed(words: Iterable[str]) -> str:
    """Words joined as in a sentence; long lists end in a number."""
    words = list(words)
    if len(words) > MOST:
        words = [*words[: MOST - 1], f"{len(words) - MOST + 1} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
