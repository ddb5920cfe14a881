"""Cells: the smallest things that pass or fail, and what became of them.

A cell is one quantity, or one check, of one case in one dtype, asked of one subject. Everything
that counts, prints, records or parametrises goes over cells and their results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from qkvac.spec.verdicts import clauses, statuses
from qkvac.texts import visible

CHECKS: Final = (
    "unchanged",
    "repeat",
    "state",
    "scaling",
    "signs",
    "future",
    "first-row",
    "own-row",
    "batch",
    "sensitivity",
    "permutation",
    "samples",
    "mask-forms",
    "subsets",
    "environment",
    "budget",
    "mode",
)
"""What is asked of an implementation besides the values of its quantities."""


COMMAND: Final = "command"
"""A port that is a program, called for folders of files."""
FOLDER: Final = "folder"
"""A port of which only a folder of outputs is known, and the folder of its inputs."""
LOADED: Final = "loaded"
"""A port that is called in the process that asks for the check."""
NO_FUNCTION: Final = "no function"
"""Why a profile is not offered; its name follows."""
FILES: Final = "files"
"""Why a port that works on files is not asked for something."""


class _Registered(type):
    """Names of statuses by what they are, as `qkvac.spec.verdicts.statuses` has them."""

    @property
    def ALL(cls) -> tuple[str, ...]:  # noqa: N802
        return statuses.names()

    @property
    def BAD(cls) -> frozenset[str]:  # noqa: N802
        """What makes a run fail (exit status 1)."""
        return frozenset(status.name for status in statuses.STATUSES if status.fails)

    @property
    def UNANSWERED(cls) -> tuple[str, ...]:  # noqa: N802
        """Failures without an answer that could be judged."""
        return (statuses.ERROR.name, statuses.CRASH.name, statuses.TIMEOUT.name)

    @property
    def PASSES(cls) -> frozenset[str]:  # noqa: N802
        """Passes, with those where processors of another kind are known to deviate."""
        return frozenset(status.name for status in statuses.STATUSES if status.passes)

    @property
    def NOT_REQUIRED(cls) -> tuple[str, ...]:  # noqa: N802
        """What neither passes nor fails, and nobody has to answer for."""
        return tuple(status.name for status in statuses.STATUSES if not status.required)

    @property
    def SKIPPING(cls) -> tuple[str, ...]:  # noqa: N802
        """What is told, neither failed nor excused: a skipped test under pytest."""
        return tuple(s.name for s in statuses.STATUSES if s.outcome == "skipped")


class Status(metaclass=_Registered):
    """The names of what can become of a cell."""

    PASSED: Final = statuses.PASSED.name
    FAILED: Final = statuses.FAILED.name
    ERROR: Final = statuses.ERROR.name
    CRASH: Final = statuses.CRASH.name
    TIMEOUT: Final = statuses.TIMEOUT.name
    MISSING: Final = statuses.MISSING.name
    NOT_REPORTED: Final = statuses.NOT_REPORTED.name
    UNSUPPORTED: Final = statuses.UNSUPPORTED.name
    SKIPPED: Final = statuses.SKIPPED.name
    INFORMATIONAL: Final = statuses.INFORMATIONAL.name
    INDECISIVE: Final = statuses.INDECISIVE.name
    KNOWN_DEVIATION: Final = statuses.KNOWN_DEVIATION.name
    UNEXPECTED_PASS: Final = statuses.UNEXPECTED_PASS.name
    NOT_SEEN: Final = statuses.NOT_SEEN.name


@dataclass(frozen=True)
class Subject:
    """What is tested, in a process of its own: a mode of a backend or of a port, on a device."""

    backend: str
    """The adapter's name, or a short name of the port."""
    mode: str
    device: str
    port: str | None = None
    """The port as the user named it; None for an adapter."""
    form: str = ""
    """COMMAND, FOLDER, LOADED, or "" for what is called in a worker's process."""
    declare: str = ""
    """What the user declared of the port besides, as words of the command line."""

    @property
    def name(self) -> str:
        """The subject without its device: `torch/compile`."""
        return self.backend if self.mode == "default" else f"{self.backend}/{self.mode}"

    @property
    def id(self) -> str:
        return f"{self.name}@{self.device}"


@dataclass(frozen=True)
class Cell:
    """One thing that passes or fails; `quantity` is a quantity of the profile or a check."""

    subject: Subject
    dtype: str
    case: str
    """The case's id; its first part is the profile."""
    quantity: str

    @property
    def id(self) -> str:
        return f"{self.subject.id}-{self.dtype}-{self.case}-{self.quantity}"

    @property
    def profile(self) -> str:
        return self.case.partition("/")[0]

    @property
    def is_check(self) -> bool:
        return self.quantity in CHECKS


@dataclass(frozen=True)
class Result:
    """What became of a cell. Numbers are as in `qkvac.spec.verdicts.verdict.Verdict`."""

    cell: Cell
    status: str
    grade: str | None = None
    clause: str | None = None
    """The word of the clause that failed."""
    ratio: float | None = None
    """Largest error over its bound."""
    resolution: float | None = None
    ulp: float | None = None
    z: float | None = None
    rms: float | None = None
    bits: float | None = None
    """Effective precision in bits."""
    resembles: str | None = None
    """A coarser format that the errors look like."""
    digest: str | None = None
    """SHA-256 of the canonical bytes of the output."""
    reason: str | None = None
    diagnosis: str | None = None
    """What is probably wrong, in words."""
    seconds: float | None = None
    """Time of the case's call, shared by the cells of the case."""
    worst: dict[str, Any] | None = field(default=None, hash=False)
    """The worst element: index, value, certified, error, bound."""
    decisive: bool = False
    """Whether the pass is evidence: some entries, and sharp enough."""
    last: bool = False
    """Whether the quantity is the result of a profile that is offered in this dtype."""
    detail: str | None = None
    """Longer text: a traceback, or the output of a process that died."""

    @property
    def offered(self) -> bool:
        """Whether it shows by itself that its profile is offered in this dtype.

        Of a case that is unsupported, the result and the checks show it, and what stands before
        the result does not.
        """
        return self.status != Status.UNSUPPORTED or self.last or self.cell.is_check

    @property
    def absent(self) -> bool:
        """Whether it says that the subject has no function for its profile."""
        return self.status == Status.UNSUPPORTED and self.reason == no_function(self.cell.profile)

    @property
    def compared(self) -> bool:
        """Whether its errors, if it has any, were compared with bounds."""
        clause = clauses.find(self.clause or "")
        return clause is None or not clause.of_form

    @property
    def ok(self) -> bool:
        return self.status not in Status.BAD

    @property
    def line(self) -> str:
        """The result in one line."""
        parts = [self.status]
        if self.grade:
            parts.append(self.grade)
        if self.clause:
            parts.append(self.clause)
        text = f"{self.cell.id}: {', '.join(parts)}"
        return visible(f"{text}: {self.reason}" if self.reason else text)


def no_function(profile: str) -> str:
    """Why every cell of a profile is unsupported that a subject has no function for."""
    return f"{NO_FUNCTION} {profile}"
