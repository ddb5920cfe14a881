"""The roster: which subjects there are and what each of them offers.

It is made once, before anything is enumerated (`execution.survey`), and can be sent on as text to
other processes that take part in the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from qkvac.cells import COMMAND, FILES, Subject
from qkvac.isolation.process import (
    Target,
    Worker,
    default_memory,
)
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.cases.visibility import has_blind_queries
from qkvac.spec.registry import known_profiles
from qkvac.subjects import breadth
from qkvac.subjects.selection import Options
from qkvac.targets.declaration import DTYPES, Declaration, parse

ALL: Final = "all"
"""The selection of every device that there is."""


@dataclass(frozen=True)
class Entry:
    """A subject and what it offers."""

    subject: Subject
    raw: Mapping[str, Any] = field(hash=False)
    """Its declaration, as it was declared."""
    functions: tuple[str, ...]
    """Profiles that it has functions for."""
    versions: Mapping[str, str] = field(hash=False)
    skipped: str = ""
    """Why it cannot run on this machine; "" if it can."""
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Dtypes that it does not offer after all, and why."""
    notes: tuple[str, ...] = ()
    exported: Mapping[str, Mapping[str, str]] | None = field(default=None, hash=False)
    """SHA-256 of the inputs that were given out, by dtype and id; None where all cases are put."""

    @cached_property
    def declaration(self) -> Declaration:
        return parse(self.raw, functions=self.functions, source=self.subject.backend)

    @property
    def shapes(self) -> str:
        """How many shapes are run: ALL, SOME or FEW of `qkvac.subjects.breadth`; of ports all."""
        if self.subject.port is not None:
            return breadth.ALL
        return self.declaration.shapes.get(self.subject.mode, breadth.ALL)

    @property
    def lays_out_nothing(self) -> bool:
        """Whether its inputs have no memory layout of their own."""
        return self.subject.form == COMMAND or "layouts" not in self.declaration.supports

    @property
    def compiled(self) -> bool:
        """Whether every shape is compiled anew, so that few shapes are run."""
        return self.shapes == breadth.FEW

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Offered dtypes, widest first."""
        return tuple(d for d in DTYPES if d in self.declaration.dtypes and d not in self.refused)

    def arithmetic(self, dtype: str) -> Arithmetic:
        """The declared arithmetic model in a dtype."""
        fields = self.declaration.arithmetic(dtype, self.subject.mode, self.subject.device)
        return Arithmetic.for_dtype(dtype, fields)

    def lacks(self, case: Case) -> str:
        """Why the case is not put to the subject, in a few words; "" if it is.

        What the subject takes alone and the case is not, or what it needs and the subject does not
        support.
        """
        if case.layouts and self.subject.form == COMMAND:
            return FILES
        chosen = self.declaration.conventions
        other = known_profiles()[case.profile].base and chosen["empty_row"] != "zeros"
        if other and has_blind_queries(case, chosen["causal_alignment"]):
            # Only weights of 0 make these gradients what the derived equations say.
            return "empty rows"
        outside = self.declaration.only.excludes(case)
        return outside or min(case.needs - self.declaration.supports, default="")

    @property
    def target(self) -> Target:
        mode, device = self.subject.mode, self.subject.device
        if self.subject.port is not None:
            return Target(port=self.subject.port, mode=mode, device=device)
        return Target(backend=self.subject.backend, mode=mode, device=device)


@dataclass(frozen=True)
class Roster:
    """All subjects of a run, in order."""

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """What was left out of it, one line each."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "notes": self.notes,
                "entries": [
                    {**{f.name: getattr(e, f.name) for f in fields(e)}, "subject": vars(e.subject)}
                    for e in self.entries
                ],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Roster:
        table = json.loads(text)
        entries = tuple(
            Entry(
                **{
                    **entry,
                    "subject": Subject(**entry["subject"]),
                    "functions": tuple(entry["functions"]),
                    "notes": tuple(entry["notes"]),
                }
            )
            for entry in table["entries"]
        )
        return cls(entries, tuple(table["notes"]))


LOADING: Final = 180.0
"""Seconds for a framework to load; a port has four timeouts, like the first call of a mode."""


def memory_limit(device: str, options: Options) -> int | None:
    """Bytes that a process may use on a device; None on one with a memory of its own."""
    on_host = device.partition(":")[0] == "cpu"
    return (options.memory or default_memory()) if on_host else None


def process_of(target: Target, options: Options) -> Worker:
    """The handle of a process that is not started yet."""
    limit = memory_limit(target.device, options)
    load = LOADING if target.port is None else min(LOADING, 4 * options.timeout)
    return Worker(
        target, threads=options.threads, memory=limit, timeout=options.timeout, load_timeout=load
    )


def wanted(selected: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the found devices that are selected; "cuda" selects the first of "cuda:0", ….

    Without a selection all are, and with "all".
    """
    if not selected or ALL in selected:
        return found
    exact = [d for d in found if d in selected]
    kinds = [d for d in selected if d not in found]
    first = [next((f for f in found if f.partition(":")[0] == kind), None) for kind in kinds]
    return tuple(dict.fromkeys([*exact, *(d for d in first if d)]))
