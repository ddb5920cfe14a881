"""The judge: from a port's answer to verdicts, in a process that imports no framework.

Judging is arithmetic of its own weight, so it runs in as many processes as cores are to be used
(`main`), while the tested processes go on with the next case. Where there is
only one process to use, as in a worker of pytest-xdist, the same judge is called directly.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from threading import Condition, Event, Timer
from types import TracebackType
from typing import Any, BinaryIO, Final, cast

import numpy as np

from qkvac.digests import digest
from qkvac.engine.cache import Certifier
from qkvac.isolation.descendants import TOKEN
from qkvac.isolation.origins import command, without_places
from qkvac.isolation.process import THREADS
from qkvac.isolation.protocol import Message, ProtocolError, read, write
from qkvac.spec.attention import Arithmetic
from qkvac.spec.registry import choose, sources
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.subjects.selection import find_case
from qkvac.targets.arrays import DTYPES

QUESTIONS: Final = 4 << 20
"""Entries of all quantities of the questions that a judge keeps in mind."""
PENDING: Final = 16 << 20
"""Bytes of answers that may wait for one judge; a larger answer waits where no other does."""
OVERHEAD: Final = 1 << 20
"""What an answer counts for besides its arrays."""
GRACE: Final = 2.0
"""Seconds that a judge gets to end when it is asked to."""
PATIENCE: Final = 600.0
"""Seconds that a judge may take for an answer: many times what the largest cases need."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Task:
    """An answer to judge: the case and dtype asked, the declared model, the arrays returned."""

    case: str
    dtype: str
    arithmetic: Arithmetic
    outputs: Mapping[str, Array] = field(hash=False)
    conventions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Declared choices that change results."""
    excess: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict, hash=False)
    """Dtype and shape of what was returned and is larger than it may be."""


@dataclass(frozen=True)
class Judged:
    """Verdicts by quantity, as plain values, and what the judge has to tell the user."""

    verdicts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str = ""
    """What went wrong in the judge itself; nothing may."""


class Judge:
    """Judges in the calling process. Questions are kept, since backends are asked the same."""

    def __init__(self, folder: Path | None) -> None:
        self._certify = Certifier(folder)
        self._questions: OrderedDict[tuple[object, ...], Question] = OrderedDict()
        self._entries = 0
        """Entries of all quantities of these questions."""

    def judge(self, task: Task) -> Judged:
        try:
            verdicts = judge(self._question(task), {**task.outputs, **_hollow(task.excess)})
        except Exception as error:  # a judge that fails on a strange answer is a fault of ours
            return Judged(error=f"the suite could not judge this: {type(error).__name__}: {error}")
        warnings, self._certify.warnings = tuple(self._certify.warnings), []
        return Judged(
            {name: asdict(verdict) for name, verdict in verdicts.items()},
            {name: digest(array) for name, array in task.outputs.items()},
            warnings,
        )

    def _question(self, task: Task) -> Question:
        case = find_case(task.case)
        # Cases that differ in layout alone put the same question.
        inputs = (case.profile, case.variant, case.recipe, case.seed, case.batch)
        numbers = (*case.sizes.items(), *case.attributes.items())
        model = (task.dtype, task.arithmetic, tuple(sorted(task.conventions.items())))
        key = (*inputs, numbers, case.exact, case.generic, *model)
        if key not in self._questions:
            self._questions[key] = Question(
                *(case, task.dtype, task.arithmetic),
                certify=self._certify,
                conventions=task.conventions,
            )
            self._entries += _weight(self._questions[key])
        self._questions.move_to_end(key)
        while self._entries > QUESTIONS and len(self._questions) > 1:
            self._entries -= _weight(self._questions.popitem(last=False)[1])
        return self._questions[key]

    def submit(self, task: Task) -> Future[Judged]:
        """The same, in the form of `Judges`."""
        done: Future[Judged] = Future()
        done.set_result(self.judge(task))
        return done

    def close(self) -> None:
        return None


def _hollow(excess: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """Arrays that are nothing but their dtype and shape."""
    return {
        name: np.broadcast_to(np.zeros((), DTYPES[dtype]), tuple(shape))
        for name, (dtype, shape) in excess.items()
    }


def _weight(question: Question) -> int:
    return sum(map(prod, question.contract.values()))


class JudgeError(Exception):
    """A judging process answered nothing; the message is one line."""


class JudgeProcess:
    """A judge in a process of its own; started at the first task, and after it was ended."""

    def __init__(self, folder: Path | None, patience: float = PATIENCE) -> None:
        """A process that gives no answer within `patience` seconds is ended."""
        self._folder = folder
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process if it is not running; it loads while its first task is prepared."""
        if self._process is None:
            pipe = subprocess.PIPE
            # A session of its own: Ctrl-C is handled by the process that the user started.
            self._process = subprocess.Popen(
                command("qkvac.engine.judging", folder=str(self._folder or ""), profiles=sources()),
                stdin=pipe,
                stdout=pipe,
                start_new_session=True,
                # Idle threads of a BLAS spin, and take from the tested processes.
                env={**without_places(os.environ), **dict.fromkeys(THREADS, "1"), TOKEN: "judge"},
            )

    def _ask(self, message: Message) -> Mapping[str, Any]:
        self.start()
        process = self._process
        assert process is not None
        # A process that is stopped does not end by itself, and reads nothing either.
        late = Event()

        def end() -> None:
            late.set()
            process.kill()

        watch = Timer(self._patience, end)
        watch.daemon = True
        watch.start()
        try:
            write(cast(BinaryIO, process.stdin), message)
            return read(cast(BinaryIO, process.stdout)).header
        except (OSError, EOFError, ProtocolError) as error:
            self.close()
            what = f"gave no answer within {self._patience:g} s" if late.is_set() else "ended"
            raise JudgeError(f"a judging process {what}: {error}") from error
        finally:
            watch.cancel()

    def judge(self, task: Task) -> Judged:
        header = {
            **{"case": task.case, "dtype": task.dtype, "arithmetic": asdict(task.arithmetic)},
            "conventions": dict(task.conventions),
            "excess": {name: list(told) for name, told in task.excess.items()},
        }
        try:
            reply = self._ask(Message(header, task.outputs))
        except JudgeError as error:
            return Judged(error=str(error))
        return Judged(reply["verdicts"], reply["digests"], tuple(reply["warnings"]), reply["error"])

    def modules(self) -> tuple[str, ...]:
        """Names of the top-level modules that the process has imported."""
        return tuple(self._ask(Message({"modules": True}))["modules"])

    def close(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                with suppress(OSError):
                    stream.close()
            self._process.terminate()
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class Room:
    """Room for a number of bytes; what is larger gets in where nothing else is."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._changed = Condition()

    def enter(self, weight: int) -> None:
        """Waits until there is room, and takes it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + weight <= self._size)
            self._taken += weight

    def leave(self, weight: int) -> None:
        with self._changed:
            self._taken -= weight
            self._changed.notify_all()


class Judges:
    """Several judging processes. A case in a dtype always goes to the same one, which knows it."""

    def __init__(self, count: int, folder: Path | None, patience: float = PATIENCE) -> None:
        self._processes = [JudgeProcess(folder, patience) for _ in range(count)]
        self._threads = [ThreadPoolExecutor(1, f"judge-{i}") for i in range(count)]
        self._routes: dict[tuple[str, str], int] = {}
        self._load = [0] * count
        self._room = Room(count * PENDING)

    def start(self) -> None:
        """Starts the processes now, so that they load while the tested ones do."""
        for process in self._processes:
            process.start()

    def submit(self, task: Task) -> Future[Judged]:
        key = (task.case, task.dtype)
        if key not in self._routes:
            least = self._load.index(min(self._load))
            self._routes[key] = least
            self._load[least] += 1000 + sum(array.size for array in task.outputs.values())
        at = self._routes[key]
        weight = OVERHEAD + sum(array.nbytes for array in task.outputs.values())
        self._room.enter(weight)
        judged = self._threads[at].submit(self._processes[at].judge, task)
        judged.add_done_callback(lambda _: self._room.leave(weight))
        return judged

    def close(self) -> None:
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def __enter__(self) -> Judges:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def main(folder: str, profiles: list[str]) -> None:
    """Judges tasks from standard input until it is closed; `folder` is the cache's, or "".

    `profiles` are files and modules that declare some besides the suite's own.
    `qkvac.isolation.origins.command` starts it.
    """
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    choose(profiles)
    own = Judge(Path(folder) if folder else None)
    while True:
        try:
            request = read(requests)
        except EOFError:
            return
        header = request.header
        if "modules" in header:
            names = sorted({name.partition(".")[0] for name in sys.modules})
            write(replies, Message({"modules": names}))
            continue
        arithmetic = Arithmetic(**header["arithmetic"])
        asked = header["case"], header["dtype"], arithmetic, request.arrays
        judged = own.judge(Task(*asked, header["conventions"], header["excess"]))
        write(replies, Message(_plain(asdict(judged))))


def _plain(value: Any) -> Any:
    """With numbers that JSON lacks as text; `float` reads both."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
