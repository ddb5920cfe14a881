"""What to run and how: the options that the command line, pytest and Python share."""

from __future__ import annotations

import difflib
import fnmatch
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qkvac.draw import Draw, draw_of
from qkvac.spec.cases.catalogue import (
    Case,
    cases,
    crossed_cases,
    find,
    known_ids,
    profiles_with_cases,
)
from qkvac.spec.registry import remembered
from qkvac.subjects import breadth
from qkvac.targets.declaration import DTYPES
from qkvac.targets.ports import nicknamed
from qkvac.usage import UsageError, unknown

TIERS: Final = ("quick", "default", "full")

DRAWS: Final = 1000
"""Most further draws of a random case."""

COMPILE_ALLOWANCE: Final = 4.0
"""The first call of a compiled mode in a shape and dtype may take this many timeouts."""


@dataclass(frozen=True)
class Selection:
    """What to run; an empty tuple selects everything.

    `backends` are names like "torch" or "torch/compile"; with a `port`, adapters are not run.
    `cases` are shell patterns over case ids, with or without the profile.
    """

    backends: tuple[str, ...] = ()
    port: str | None = None
    profiles: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    tier: str = TIERS[0]
    seeds: int = 0
    """Further draws of every random case; one at least where there is an `entropy`."""
    declare: tuple[str, ...] = ()
    """What a port declares besides, in dotted TOML; wins over its own declaration."""
    graded: tuple[str, ...] = ()
    """Folders of exported inputs and of a port's outputs, where those are to be judged."""
    entropy: str = ""
    """What further draws come from, if not from seeds that everybody knows."""

    @property
    def declared(self) -> str:
        """The words of the command line that declare the same again."""
        return shlex.join(word for text in self.declare for word in ("--declare", text))

    def check(self) -> None:
        """Raises UsageError for a dtype, profile, tier or case that does not exist."""
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise unknown("dtype", dtype, DTYPES)
        for profile in self.profiles:
            if profile not in profiles_with_cases():
                called = nicknamed(profile)
                raise unknown("profile", profile, profiles_with_cases(), near=called)
        if self.tier not in TIERS:
            raise unknown("tier", self.tier, TIERS)
        if not 0 <= self.seeds <= DRAWS:
            raise UsageError(
                f"--seeds {self.seeds}: it is a number of additional draws, at most {DRAWS}"
            )
        if not self.cases:
            return
        known = [case.id for name in profiles_with_cases() for case in self._drawn(name)]
        for pattern in self.cases:
            if any(_matches(id, pattern) for id in known):
                continue
            crossed = (case.id for name in profiles_with_cases() for case in self._crossed(name))
            if not any(_matches(id, pattern) for id in crossed):
                raise unknown("case", pattern, known, "qkvac cases", _families(pattern, known))

    def chosen(self, profile: str, without: frozenset[str] = frozenset()) -> Iterator[Case]:
        """Selected cases of a profile in the order of the spec, of every tier; draws follow.

        Crossed cases come last, where the tier has any, adapted to a port that lacks `without`.
        """
        if self.profiles and profile not in self.profiles:
            return
        for case in self._every(profile, without):
            if not self.cases or any(_matches(case.id, pattern) for pattern in self.cases):
                yield case

    def _drawn(self, profile: str) -> tuple[Case, ...]:
        return _drawn(profile, max(self.seeds, bool(self.entropy)), self.entropy)

    def _every(self, profile: str, without: frozenset[str]) -> Iterator[Case]:
        yield from self._drawn(profile)
        yield from self._crossed(profile, without)

    def _crossed(self, profile: str, without: frozenset[str] = frozenset()) -> tuple[Case, ...]:
        """Crossed cases of a profile, on fresh data where there is an `entropy`."""
        if self.tier == TIERS[0]:
            return ()
        own = crossed_cases(profile, without)
        return tuple(c.drawn(str(Draw(1, self.entropy))) for c in own) if self.entropy else own

    def runs(self, case: Case, dtype: str, shapes: str = breadth.ALL) -> bool:
        """Whether the tier has the case; by default, modes may run some or few shapes."""
        if self.tier == "full":
            return True
        return case.tier == "default" and breadth.includes(shapes, case, dtype)


def _families(pattern: str, known: Iterable[str]) -> list[str]:
    """The pattern of the family of cases that a word may be meant for."""
    families = dict.fromkeys(id.split("/")[1] for id in known)
    word = pattern.rstrip("/*").rpartition("/")[2]
    near = (
        [word] if word in families else difflib.get_close_matches(word, families, n=1, cutoff=0.7)
    )
    return [f"'{family}/*'" for family in near]


def _matches(id: str, pattern: str) -> bool:
    short = id.partition("/")[2]
    return fnmatch.fnmatchcase(id, pattern) or fnmatch.fnmatchcase(short, pattern)


@remembered
def _drawn(profile: str, seeds: int, entropy: str) -> tuple[Case, ...]:
    draws: list[int | str] = [0, *(str(Draw(n, entropy)) for n in range(1, seeds + 1))]
    return tuple(
        case.drawn(draw) for case in cases(profile) for draw in draws[: None if case.random else 1]
    )


def known_case(id: str) -> Case | None:
    """The case of an id, that of a further draw included; None for an unknown one."""
    found = find(id)
    if found is not None:
        return found
    base, draw = draw_of(id)
    found = find(base)
    if found is None or draw is None or not 0 < draw.number <= DRAWS or not found.random:
        return None
    return found.drawn(str(draw))


def find_case(id: str) -> Case:
    """The case of an id; raises UsageError for an unknown one, with the id that is nearest."""
    found = known_case(id)
    if found is None:
        raise unknown("case", id, known_ids(), "qkvac cases")
    return found


@dataclass(frozen=True)
class Options:
    """How to run. Nothing here changes a verdict."""

    workers: int = 0
    """Subjects at a time, and processes that judge; 0 is one per core, at most 4."""
    timeout: float = 60.0
    """Seconds a case may take."""
    memory: int = 0
    """Bytes a process on the CPU may use; 0 is half of the machine's."""
    threads: int = 1
    """Threads of each tested process."""
    strict: bool = False
    fail_fast: bool = False
    cache: bool = True
    deviations: Path | None = None
    """A file whose known deviations are added to the suite's own."""

    @property
    def parallel(self) -> int:
        return self.workers or min(4, cores())


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def size(text: str) -> int:
    """Bytes of a size like 4G, 512M or 1.5GiB; raises UsageError."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    shift = units.get(number[-1:], 0)
    try:
        value = int(float(number[:-1] if shift else number) * (1 << shift))
    except (ValueError, OverflowError):
        value = 0
    if value <= 0:
        raise UsageError(f"{text!r} is no size; write 4G or 512M")
    return value
