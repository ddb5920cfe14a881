"""The statuses, each defined once: what can become of a quantity or a check, and what it is worth.

Whatever counts, prints, styles, records or reports results under pytest reads them from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Outcome = Literal["passed", "failed", "skipped", "xfailed"]


@dataclass(frozen=True)
class Status:
    """What can become of a quantity or a check."""

    name: str
    meaning: str
    """In words."""
    outcome: Outcome
    """What it is under pytest."""
    mark: str
    """The kind of its marks on a page; of a pass, its grade says more."""
    style: str
    """How a terminal shows it."""
    short: str
    """The name in a narrow column; "" where nothing is to be seen."""
    rank: int
    """How much it says of several results together: the one of the lowest rank is told."""
    required: bool = True
    """Whether the cell counts among those that had to pass."""
    passes: bool = False
    """Whether it is a pass, which can be evidence that something conforms."""

    @property
    def fails(self) -> bool:
        """Whether it makes a run fail."""
        return self.outcome == "failed"


def _bad(name: str, meaning: str, rank: int, short: str = "") -> Status:
    return Status(name, meaning, "failed", "failed", "bold red", short or name[:7], rank)


def _absent(name: str, meaning: str, rank: int) -> Status:
    return Status(name, meaning, "skipped", "absent", "dim", "–", rank, required=False)


PASSED: Final = Status(
    "passed", "with one of these grades", "passed", "plain", "green", "passed", 7, passes=True
)
FAILED: Final = _bad("failed", "a clause is broken", 3)
ERROR: Final = _bad(
    "error",
    "an exception, a nonzero exit status, a file that cannot be read, no more memory",
    2,
)
CRASH: Final = _bad("crash", "the process died: SIGSEGV, abort", 0)
TIMEOUT: Final = _bad("timeout", "no answer within `--timeout` seconds", 1)
MISSING: Final = _bad("missing", "the result, C, is not there", 4)
NOT_REPORTED: Final = _absent(
    "not reported", "a step on the way is not there; C is judged without it", 11
)
UNSUPPORTED: Final = _absent(
    "unsupported", "the port does not claim it: an input, a dtype or a profile, in one word", 12
)
SKIPPED: Final = _absent("skipped", "it could not be run here, with the reason", 13)
INFORMATIONAL: Final = _absent(
    "informational", "it was looked at, and nothing is required of it", 10
)
INDECISIVE: Final = Status(
    "indecisive",
    "the bounds of this case are too wide to tell",
    "skipped",
    "open",
    "yellow",
    "indecis",
    9,
)
KNOWN_DEVIATION: Final = Status(
    "known deviation",
    "a failure that a file of known deviations expects",
    "xfailed",
    "known",
    "yellow",
    "known",
    6,
)
UNEXPECTED_PASS: Final = _bad("unexpected pass", "such a failure that is gone", 5, "passes")

NOT_SEEN: Final = Status(
    "not seen here",
    "a pass where a processor of another kind is known to deviate",
    "skipped",
    "plain",
    "green",
    "unseen",
    8,
    passes=True,
)

STATUSES: tuple[Status, ...] = (
    *(PASSED, FAILED, ERROR, CRASH, TIMEOUT, MISSING, NOT_REPORTED, UNSUPPORTED, SKIPPED),
    *(INFORMATIONAL, INDECISIVE, KNOWN_DEVIATION, UNEXPECTED_PASS, NOT_SEEN),
)


def named(name: str) -> Status:
    """The status of a name; raises ValueError where there is none."""
    for status in STATUSES:
        if status.name == name:
            return status
    raise ValueError(f"{name!r} is no status: {', '.join(names())}")


def names() -> tuple[str, ...]:
    """What the statuses are called."""
    return tuple(status.name for status in STATUSES)


def ranked() -> tuple[Status, ...]:
    """Those first that say most of several results together."""
    return tuple(sorted(STATUSES, key=lambda status: status.rank))
