"""Cells: the smallest things that pass or fail, and what became of them.

A cell is one quantity, or one check, of one case in one dtype, asked of one subject. Everything
that counts, prints, records or parametrises goes over cells and their results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

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
FILES: Final = "files"
"""Why a port that works on files is not asked for something."""


class Status:
    """What can become of a cell."""

    PASSED: Final = "passed"
    FAILED: Final = "failed"
    ERROR: Final = "error"
    CRASH: Final = "crash"
    TIMEOUT: Final = "timeout"
    MISSING: Final = "missing"
    NOT_REPORTED: Final = "not reported"
    UNSUPPORTED: Final = "unsupported"
    SKIPPED: Final = "skipped"
    INFORMATIONAL: Final = "informational"
    INDECISIVE: Final = "indecisive"
    KNOWN_DEVIATION: Final = "known deviation"
    UNEXPECTED_PASS: Final = "unexpected pass"
    NOT_SEEN: Final = "not seen here"

    ALL: Final = (
        *(PASSED, FAILED, ERROR, CRASH, TIMEOUT, MISSING, NOT_REPORTED, UNSUPPORTED, SKIPPED),
        *(INFORMATIONAL, INDECISIVE, KNOWN_DEVIATION, UNEXPECTED_PASS, NOT_SEEN),
    )
    BAD: Final = frozenset({FAILED, ERROR, CRASH, TIMEOUT, MISSING, UNEXPECTED_PASS})
    """What makes a run fail (exit status 1)."""
    PASSES: Final = frozenset({PASSED, NOT_SEEN})
    """Passes, with those where processors of another kind are known to deviate."""
    NOT_REQUIRED: Final = (SKIPPED, UNSUPPORTED, NOT_REPORTED, INFORMATIONAL)
    """What neither passes nor fails, and nobody has to answer for."""


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
    """What became of a cell. Numbers are as in `qkvac.spec.verdict.Verdict`."""

    cell: Cell
    status: str
    grade: str | None = None
    clause: str | None = None
    """The clause that failed: contract, E, L, B or M."""
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
        """Whether it says more than that the subject has no such function."""
        return self.status != Status.UNSUPPORTED or self.last or self.cell.is_check

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
            parts.append(f"clause {self.clause}" if self.clause != "contract" else "contract")
        text = f"{self.cell.id}: {', '.join(parts)}"
        return f"{text}: {self.reason}" if self.reason else text
