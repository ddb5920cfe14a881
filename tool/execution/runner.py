"""The runner: puts the cases to one subject, whatever that does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from qkvac.checks import registry
from qkvac.checks.findings import Finding, Visit
from qkvac.execution.plan import Job
from qkvac.isolation.process import BackendError, Outcome, PortError, Worker, WorkerError
from qkvac.spec.conventions import presented, restored
from qkvac.subjects.limits import limits
from qkvac.subjects.roster import Entry, process_of
from qkvac.subjects.selection import COMPILE_ALLOWANCE, Options

PATIENCE: Final = 3
"""Cases in a row that may crash, hang or exhaust the memory before the rest are skipped."""


ENDED: Final = Outcome("skipped", "the run was ended")


@dataclass(frozen=True)
class Answer:
    """What a subject made of a job: the call's outcome, and what its checks found."""

    outcome: Outcome = field(hash=False)
    findings: Mapping[str, Finding] = field(default_factory=dict, hash=False)


class Runner:
    """Runs jobs of one subject in its process, which is started when the first job needs it."""

    def __init__(self, entry: Entry, options: Options, process: Worker | None = None) -> None:
        """Goes on with `process` if there is one already."""
        self.process = process or process_of(entry.target, options)
        self._entry = entry
        self._timeout = options.timeout
        self._compiled = set[tuple[Any, ...]]()
        self._silent = 0
        self._refusal: Outcome | None = None
        self._closed = False
        self.settings: Mapping[str, str] = {}
        """What the process says of its code paths and precision settings, once it is asked."""

    @property
    def starts(self) -> int:
        """How many processes were started."""
        return self.process.starts

    def answer(self, job: Job) -> Answer:
        """Never raises for what the subject does."""
        if job.status:
            return Answer(Outcome(job.status, job.reason))
        if self._closed:
            return Answer(ENDED)
        if self._refusal is None:
            self._refusal = self._obstacle()
        if self._refusal is not None:
            return Answer(self._refusal)
        inputs = job.case.inputs(job.dtype)
        outcome = self._call(job, inputs, repeat=2 if "repeat" in job.checks else 1)
        self._count(outcome)
        if outcome.status != "ok":
            finding = Finding(outcome.status, outcome.reason)
            return Answer(outcome, dict.fromkeys(job.checks, finding))

        def ask(changed: Mapping[str, np.ndarray[Any, Any]]) -> Outcome:
            return self._call(job, changed)

        def subset(wanted: Sequence[str]) -> Outcome:
            return self._call(job, inputs, wanted=wanted)

        def record() -> Mapping[str, Any] | None:
            conventions = self._entry.declaration.conventions
            given = presented(job.case.profile, inputs, conventions)
            return self.process.budget(job.case.profile, given, attributes=job.case.attributes)

        visit = Visit(job.entry, job.dtype, job.case, inputs, outcome, ask, record, subset)
        return Answer(outcome, {name: registry.finding(name, visit) for name in job.checks})

    def interrupt(self) -> None:
        """Ends what is being asked and refuses the rest; from any thread."""
        self._closed = True
        self.process.interrupt()

    def close(self) -> None:
        """Ends the process for good."""
        self._closed = True
        self.process.close()

    def _obstacle(self) -> Outcome | None:
        """Why no call can be made, as the outcome of all that are left."""
        try:
            found = self.process.hello().environment.get("backend")
            self.settings = _told(found) if isinstance(found, Mapping) else {}
        except BackendError as error:
            return Outcome(error.status, str(error), error.traceback)
        except PortError as error:
            return Outcome("error", str(error))
        except WorkerError:
            # The call will meet the same, and say whether it was a crash or a timeout.
            return None
        return None

    def _call(
        self,
        job: Job,
        inputs: Mapping[str, np.ndarray[Any, Any]],
        repeat: int = 1,
        wanted: Sequence[str] = (),
    ) -> Outcome:
        if self._closed:
            return ENDED
        shape = (job.case.profile, job.dtype, *(array.shape for array in inputs.values()))
        fresh = job.entry.compiled and shape not in self._compiled
        self._compiled.add(shape)
        profile, conventions = job.case.profile, self._entry.declaration.conventions
        outcome = self.process.call(
            profile,
            presented(profile, inputs, conventions),
            dtype=job.dtype,
            attributes=job.case.attributes,
            layouts=job.case.layouts,
            repeat=repeat,
            wanted=wanted,
            limits=limits(job.case, inputs),
            timeout=self._timeout * (COMPILE_ALLOWANCE if fresh else 1.0),
        )
        return replace(outcome, outputs=restored(profile, outcome.outputs, conventions))

    def _count(self, outcome: Outcome) -> None:
        """Counts cases in a row without an answer."""
        exhausted = outcome.status == "error" and outcome.reason.startswith("out of memory")
        if outcome.status in ("crash", "timeout") or exhausted:
            self._silent += 1
            self._compiled.clear()
            if self._silent >= PATIENCE:
                self.process.close()
                self._refusal = Outcome("skipped", "port unresponsive")
        else:
            self._silent = 0


def _told(found: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Settings as text, by name; what is not set is left out."""
    told = dict[str, str]()
    for name, value in found.items():
        if isinstance(value, Mapping):
            told |= _told(value, f"{path}{name}.")
        elif value not in (None, "", []):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            told[f"{path}{name}"] = text
    return told
