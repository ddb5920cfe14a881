"""Shards: the cells of a run split over machines that know nothing of each other.

What stays together is a group: the jobs of one subject, function and dtype. Whether something is
proved, and what is wrong with a port, is found out from such a group as a whole; so all that k
shards find is what one run finds. Every machine makes the whole plan and the same split of it,
from the costs of the groups and from their names alone.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from qkvac.cells import Result, Status
from qkvac.execution import costs
from qkvac.spec.cases.catalogue import known_ids
from qkvac.usage import UsageError

if TYPE_CHECKING:
    from qkvac.execution.plan import Job, Plan
    from qkvac.records.deviations import Deviation

Group: TypeAlias = tuple[str, str, str]
"""Subject id, function and dtype."""


@dataclass(frozen=True)
class Shard:
    """One of the equal parts of a run."""

    number: int
    """From 1 on."""
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard of a text like 2/4; raises UsageError."""
        found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text.strip())
        number, of = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= of:
            raise UsageError(f"--shard {text}: write 2/4 for the second of four parts")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def group(job: Job) -> Group:
    """What a job has to stay together with."""
    return job.entry.subject.id, job.case.profile, job.dtype


def split(plan: Plan, shard: Shard | None) -> Plan:
    """The shard's part of a plan, in the plan's order; all of it without a shard.

    Raises UsageError, whichever the shard, if there are too few groups to give one to each.
    """
    if shard is None:
        return plan
    shares = assign(plan.jobs, shard.of)
    return replace(plan, jobs=tuple(j for j in plan.jobs if shares[group(j)] == shard.number))


def assign(jobs: Iterable[Job], count: int) -> dict[Group, int]:
    """The number of the shard that every group belongs to; raises UsageError.

    The longest groups are given out first, each to the shard that will then have the least to do.
    A shard has to start the subject of a group that is its first of that subject, so that groups
    of a subject tend to stay together. The largest load exceeds the smallest by one group and one
    start at most.
    """
    work = Counter[Group]()
    for job in jobs:
        work[group(job)] += costs.milliseconds(job)
    busy = sum(map(bool, work.values()))
    if count > busy:
        raise UsageError(f"--shard …/{count}: what is selected can be split into {busy} at most")
    loads = [0] * count
    started = [set[str]() for _ in range(count)]
    shares = dict[Group, int]()
    for key in sorted(work, key=lambda key: (-work[key], key)):
        starts = [work[key] > 0 and key[0] not in subjects for subjects in started]
        totals = [
            load + work[key] + costs.START * start
            for load, start in zip(loads, starts, strict=True)
        ]
        best = min(range(count), key=lambda i: (bool(started[i]), totals[i], i))
        loads[best] = totals[best]
        started[best].add(key[0])
        shares[key] = best + 1
    return shares


def due(entries: Iterable[Deviation], here: Plan, whole: Plan) -> tuple[Deviation, ...]:
    """Of known deviations that nothing met here, those that are worth telling.

    Not those that another shard can meet, nor those of cases or dtypes that were not selected.
    """
    own = {group(job) for job in here.jobs}
    elsewhere = [job for job in whole.jobs if not job.status and group(job) not in own]
    asked = dict[str, set[tuple[str, str]]]()
    for job in whole.jobs:
        asked.setdefault(job.entry.subject.name, set()).add((job.dtype, job.case.id))
    return tuple(
        known
        for known in entries
        if _selected(known, asked) and not any(_meets(known, job) for job in elsewhere)
    )


def _selected(known: Deviation, asked: Mapping[str, set[tuple[str, str]]]) -> bool:
    """Whether the selection leaves anything that an entry may be about, or nothing could."""
    about = [pairs for name, pairs in asked.items() if fnmatch.fnmatchcase(name, known.backend)]
    if not about:
        return True
    return any(known.speaks_of(*pair) for pairs in about for pair in pairs) or not any(
        known.covers_case(id) for id in known_ids()
    )


def _meets(known: Deviation, job: Job) -> bool:
    return fnmatch.fnmatchcase(job.entry.subject.name, known.backend) and any(
        known.covers(Result(cell, Status.PASSED), job.entry) for cell in job.cells
    )


def header(shard: Shard, whole: Plan) -> Mapping[str, Any]:
    """What a record says about its shard, so that the shards of one run are known as such."""
    digest = hashlib.sha256("\n".join(cell.id for cell in whole.cells).encode()).hexdigest()
    return {
        "number": shard.number,
        "of": shard.of,
        "cells": len(whole.cells),
        "plan": digest[:16],
    }
