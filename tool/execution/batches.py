"""Ports that work on files: answers of a program, and of a folder that was written before.

Both answer a job from the file that holds the quantities of its case. A program is called once for
all cases of a dtype. Where that call fails, the cases that it left without an answer are put to
it one by one, so that each of them gets a status of its own.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from qkvac.cells import FILES, Status
from qkvac.checks import registry
from qkvac.checks.findings import Finding, Visit
from qkvac.checks.relations import IN_ADVANCE, further
from qkvac.execution.plan import Job
from qkvac.execution.runner import PATIENCE, Answer
from qkvac.execution.vectors import declined_name, file_name, related, size_limit, vectors, write
from qkvac.isolation import tensors
from qkvac.isolation.commands import Ending, Run, words_of
from qkvac.isolation.process import Outcome, Worker, surroundings
from qkvac.isolation.tensors import TensorFileError
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.conventions import restored
from qkvac.subjects.roster import Entry, memory_limit
from qkvac.subjects.selection import Options
from qkvac.targets.arrays import ResultError, by_quantity
from qkvac.targets.ports import known_functions
from qkvac.texts import NAME, line
from qkvac.usage import UsageError

REASON: Final = 4096
"""Bytes that a file with a reason may have."""


def outcome_of(folder: Path, case: Case, id: str, dtype: str) -> Outcome:
    """What a file says about the quantities of a case; no quantities where there is no file."""
    name = file_name(id, dtype)
    function = known_functions()[case.profile]
    try:
        if folder.is_symlink():
            raise TensorFileError("lies in a folder that is a link")
        data = tensors.read(folder, name, size_limit(case))
        if data is None:
            return _declined(folder, id, dtype) or Outcome("ok", f"no file {name}")
        arrays = tensors.decode(data)
    except TensorFileError as error:
        return Outcome("error", f"{name} {error}")
    try:
        return Outcome("ok", outputs=by_quantity(arrays, function.returns, function.optional))
    except ResultError as error:
        return Outcome("error", f"{name}: {error}")


def _declined(folder: Path, id: str, dtype: str) -> Outcome | None:
    """What the port says of a case that it is not made for, in a file that holds the reason."""
    told = tensors.read(folder, declined_name(id, dtype), REASON)
    if told is None:
        return None
    words = line(told.decode("utf-8", "replace").strip(), NAME)
    return Outcome("unsupported", words or "declined")


def answer_from(job: Job, look: Callable[[str], Outcome]) -> Answer:
    """The answer to a job, from the outcomes of its vectors by id."""
    profile, conventions = job.case.profile, job.entry.declaration.conventions

    def read(id: str) -> Outcome:
        found = look(id)
        return replace(found, outputs=restored(profile, found.outputs, conventions))

    outcome = read(job.case.id)
    if outcome.status != "ok":
        return _everywhere(job, outcome)
    if not outcome.outputs:
        return Answer(outcome, dict.fromkeys(job.checks, Finding(Status.MISSING, outcome.reason)))
    return Answer(outcome, {name: _finding(job, name, outcome, read) for name in job.checks})


def _finding(job: Job, check: str, outcome: Outcome, look: Callable[[str], Outcome]) -> Finding:
    """What a check finds whose further calls were made already."""
    if check not in IN_ADVANCE:
        return Finding(Status.UNSUPPORTED, FILES)
    inputs = job.case.inputs(job.dtype)
    others = []
    for number, _ in enumerate(further(check, job.case, job.dtype, inputs), 1):
        found = look(related(job.case.id, check, number))
        if found.status == "ok" and not found.outputs:
            found = Outcome(Status.MISSING, found.reason)
        if found.status != "ok":
            return Finding(found.status, found.reason)
        others.append(found)
    if check == "repeat":
        outcome = replace(outcome, unstable=_differing(outcome, others[0]))
    answers = iter(others)
    visit = Visit(
        job.entry, job.dtype, job.case, inputs, outcome, lambda _: next(answers), lambda: None
    )
    return registry.finding(check, visit)


def _differing(first: Outcome, second: Outcome) -> tuple[str, ...]:
    names = dict.fromkeys([*first.outputs, *second.outputs])
    return tuple(
        name
        for name in names
        if name not in first.outputs
        or name not in second.outputs
        or first.outputs[name].tobytes() != second.outputs[name].tobytes()
    )


class FolderRunner:
    """Answers from the outputs that somebody else's run of a port left in a folder."""

    starts: Final = 0

    def __init__(self, entry: Entry, outputs: Path) -> None:
        self._entry = entry
        self._outputs = outputs.resolve()

    def answer(self, job: Job) -> Answer:
        """Never raises for what the files hold."""
        if job.status:
            return Answer(Outcome(job.status, job.reason))
        exported = self._entry.exported or {}
        for vector in vectors(job):
            if exported[job.dtype].get(vector.id, vector.digest) != vector.digest:
                reason = f"the exported inputs of {vector.id} are not the spec's: export again"
                return _everywhere(job, Outcome("error", reason))
        return answer_from(job, lambda id: outcome_of(self._outputs, job.case, id, job.dtype))

    def interrupt(self) -> None:
        return None

    def close(self) -> None:
        return None


class CommandRunner:
    """Answers of a program."""

    def __init__(self, entry: Entry, options: Options) -> None:
        self.starts = 0
        """How many times the program was started."""
        subject = entry.subject
        self._words = words_of(subject.port or "")
        self._timeout = options.timeout
        self._environment = surroundings(subject.mode, subject.device, options.threads)
        self._memory = memory_limit(subject.device, options)
        self._conventions = entry.declaration.conventions
        self._folder = tempfile.TemporaryDirectory(prefix="qkvac-", ignore_cleanup_errors=True)
        self._jobs = list[Job]()
        self._asked = set[str]()
        """Dtypes of which all cases were put to the program at once."""
        self._found = dict[tuple[str, str], Path | Outcome]()
        """By dtype and case: the folder of the outputs, or what became of the call."""
        self._silent = 0
        self._run: Run | None = None
        self._interrupted = threading.Event()

    def expect(self, jobs: Iterable[Job]) -> None:
        """Says which jobs will be asked for, so that they can be put to the program at once."""
        self._jobs = [job for job in jobs if not job.status]

    def answer(self, job: Job) -> Answer:
        """Never raises for what the program does, but UsageError if it cannot be started."""
        if job.status:
            return Answer(Outcome(job.status, job.reason))
        if _key(job) not in self._found and job.dtype not in self._asked:
            same = [j for j in self._jobs if j.dtype == job.dtype and _key(j) not in self._found]
            if len(same) > 1:
                self._asked.add(job.dtype)
                self._ask_together(same)
        if _key(job) not in self._found:
            self._ask_alone(job)
        found = self._found[_key(job)]
        if isinstance(found, Outcome):
            return _everywhere(job, found)
        return answer_from(job, lambda id: outcome_of(found, job.case, id, job.dtype))

    def interrupt(self) -> None:
        """Kills the program if it runs, and refuses to start it again; from any thread."""
        self._interrupted.set()
        if (run := self._run) is not None:
            run.kill()

    def close(self) -> None:
        """Ends the program if it runs, and deletes its files."""
        self._interrupted.set()
        if self._run is not None:
            self._run.end()
        self._folder.cleanup()

    def _ask_together(self, jobs: list[Job]) -> None:
        """Puts jobs to the program at once, and keeps what can be relied on."""
        ending, outputs = self._call(jobs)
        if ending.status != "ok":
            answered = [job for job in jobs if _is_answered(outputs, job)]
            # With an answer to everything, no case accounts for the failure: then none is kept.
            jobs = answered if len(answered) < len(jobs) else []
        self._found.update({_key(job): outputs for job in jobs})

    def _ask_alone(self, job: Job) -> None:
        if self._silent >= PATIENCE:
            self._found[_key(job)] = Outcome("skipped", "port unresponsive")
            return
        ending, outputs = self._call([job])
        if ending.status == "ok":
            self._found[_key(job)] = outputs
        else:
            self._found[_key(job)] = Outcome(
                ending.status, ending.reason, output=ending.output, seconds=ending.seconds
            )
        exhausted = ending.status == "error" and ending.reason.startswith("out of memory")
        silent = ending.status in ("crash", "timeout") or exhausted
        self._silent = self._silent + 1 if silent else 0

    def _call(self, jobs: list[Job]) -> tuple[Ending, Path]:
        """Calls the program for some jobs; how it ended, and the folder for its outputs."""
        folder = Path(self._folder.name, str(self.starts))
        inputs, outputs = folder / "inputs", folder / "outputs"
        if self._interrupted.is_set():
            return Ending("skipped", "the run was ended"), outputs
        self.starts += 1
        inputs.mkdir(parents=True)
        outputs.mkdir()
        asked = [vector for job in jobs for vector in vectors(job, self._conventions)]
        write(inputs, asked)
        names = (n for v in asked for n in (v.file, declined_name(v.id, v.dtype)))
        places = [outputs / name for name in names]
        words = [*self._words, str(inputs), str(outputs)]
        try:
            self._run = Run(words, self._environment, self._memory)
        except UsageError as error:
            if self.starts == 1:
                raise
            return Ending("error", str(error)), outputs
        if self._interrupted.is_set():
            self._run.kill()
        progress = partial(_count, places)
        ending = self._run.finish(progress, self._timeout)
        named = {str(inputs): "INPUTS", str(outputs): "OUTPUTS"}
        if len(jobs) == 1:
            named |= {Path(vector.file).stem: "CASE" for vector in asked}
        return _alike(ending, named), outputs


def _alike(ending: Ending, named: Mapping[str, str]) -> Ending:
    """An ending in words that do not depend on the folder and the case, so that they compare."""
    reason, output = ending.reason, ending.output
    for place, name in named.items():
        reason, output = reason.replace(place, name), output.replace(place, name)
    return replace(ending, reason=reason, output=output)


def _key(job: Job) -> tuple[str, str]:
    return job.dtype, job.case.id


def _everywhere(job: Job, outcome: Outcome) -> Answer:
    """An outcome that holds for all cells of a job."""
    return Answer(outcome, dict.fromkeys(job.checks, Finding(outcome.status, outcome.reason)))


def _is_answered(outputs: Path, job: Job) -> bool:
    """Whether there are readable quantities, or a reason for none, for all vectors of a job."""
    found = (outcome_of(outputs, job.case, vector.id, job.dtype) for vector in vectors(job))
    return all(outcome.outputs or outcome.status == "unsupported" for outcome in found)


def _count(places: list[Path]) -> int:
    return sum(os.path.lexists(place) for place in places)


Kept: TypeAlias = dict[str, Worker | CommandRunner]
"""What can go on to answer, by subject id."""
