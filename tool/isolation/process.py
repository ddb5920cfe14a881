"""Workers as the engine sees them: a target, calls, and an outcome for every call.

A worker is started when it is first needed, and again after it crashed or hung. A call never
raises for what a port does: it has an outcome, and the next call works.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

import numpy as np

from qkvac.isolation.channel import is_out_of_memory
from qkvac.isolation.child import Child, WorkerCrash, WorkerError, WorkerTimeout
from qkvac.isolation.protocol import Message
from qkvac.isolation.slots import Slot
from qkvac.targets.ports import PortError
from qkvac.texts import line, short

__all__ = [
    "BackendError",
    "Greeting",
    "Outcome",
    "PortError",
    "Target",
    "Worker",
    "WorkerCrash",
    "WorkerError",
    "WorkerTimeout",
    "default_memory",
]

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

THREADS: Final = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NPROC", "PJRT_NPROC"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"),
    "QKVAC_THREADS",
)
"""Environment variables that pin the thread pools of NumPy's libraries and the frameworks (XLA
reads NPROC or PJRT_NPROC), and the one that adapters and ports may read."""

MODEST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
)
"""Settings without which one framework takes most of a GPU's memory; the user's own win."""

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class BackendError(Exception):
    """A backend cannot run in this mode on this device; the message is one line."""

    def __init__(self, reason: str, status: str = "error", traceback: str = "") -> None:
        super().__init__(reason)
        self.status = status
        """"error", "unsupported" or "skipped"."""
        self.traceback = traceback


@dataclass(frozen=True)
class Target:
    """What a worker serves: a backend's adapter, or a port, in one mode on one device."""

    backend: str | None = None
    port: str | None = None
    mode: str = "default"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if (self.backend is None) == (self.port is None):
            raise ValueError("a target is either a backend or a port")


@dataclass(frozen=True)
class Greeting:
    """What a worker says once it has loaded its target."""

    declaration: Mapping[str, Any]
    """The raw declaration; `qkvac.targets.declaration.parse` checks it."""
    functions: tuple[str, ...]
    """The profiles for which there is a function."""
    versions: Mapping[str, str]
    devices: tuple[str, ...]
    notes: tuple[str, ...]
    """Names of the port that look like a misspelt function."""
    environment: Mapping[str, Any]
    """python, numpy, ml_dtypes, pid, threads, fp_environment, frameworks (those imported), and
    backend (what the adapter says of its own)."""
    seconds: float
    """From the start of the process until it had loaded."""


@dataclass(frozen=True)
class Outcome:
    """What became of a call."""

    status: str
    """"ok", "error", "unsupported", "skipped", "crash" or "timeout"."""
    reason: str = ""
    """One line, where the status is not "ok"."""
    traceback: str = ""
    output: str = ""
    """The last text that the process printed for this call, where the status is not "ok"."""
    outputs: Arrays = field(default_factory=dict)
    """Quantity → array as it was returned, C-contiguous; an absent quantity is absent."""
    excess: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Quantity → dtype and shape of what is larger than it may be, and was not taken over."""
    seconds: float = 0.0
    """Time of the first repetition, until its arrays could be read."""
    times: tuple[float, ...] = ()
    mutated: tuple[str, ...] = ()
    """Inputs of which a bit, a gap between entries or a flag was changed."""
    aliases: tuple[tuple[str, str], ...] = ()
    """(output, input or output) pairs that share memory; "earlier C" is the last call's C."""
    unstable: tuple[str, ...] = ()
    """Quantities whose bits differ between repetitions."""
    overwritten: tuple[str, ...] = ()
    """Quantities of the first repetition that a later one wrote into."""
    fp_environment: str = "unchanged"
    """What the call left changed, such as "subnormals flushed" or "rounding upward"."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What the adapter says about how the calls so far ran."""
    evidence_before: Mapping[str, Any] = field(default_factory=dict)
    """What it said before this call."""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


class Worker:
    """The handle of one worker; a context manager. Not for use by several threads at once."""

    def __init__(
        self,
        target: Target,
        *,
        threads: int = 1,
        memory: int | None = None,
        timeout: float = 60.0,
        load_timeout: float = 180.0,
        environment: Mapping[str, str] = _EMPTY,
    ) -> None:
        """`memory` is in bytes (None: no limit), timeouts in seconds: of a call, of loading."""
        self.target = target
        self.starts = 0
        """How many processes were started."""
        self._memory = memory
        self._timeout = timeout
        self._load_timeout = load_timeout
        self._environment = surroundings(target.mode, target.device, threads, environment)
        self._child: Child | None = None
        self._slot: Slot | None = None
        self._greeting: Greeting | None = None
        self._owner = os.getpid()
        self._last_output = ""
        self._interrupted = False
        _live.add(self)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def output(self) -> str:
        """The last text that was printed since the latest request began."""
        child = self._child
        return child.output if child is not None else self._last_output

    def hello(self) -> Greeting:
        """Starts the process if there is none, and loads the target.

        Raises PortError or BackendError where the target cannot be loaded, WorkerCrash or
        WorkerTimeout where its process dies or hangs while it loads.
        """
        greeted = self._greeting
        if greeted is not None and self._child is not None:
            return greeted
        self.close()
        self._slot = Slot(self.target.device, lambda: self._interrupted)
        started = time.monotonic()
        try:
            self._child = Child(self._environment, self._memory)
        except OSError as error:
            raise WorkerCrash(f"the worker's process cannot be started: {error}") from error
        self.starts += 1
        # Looked at after the process is known, as `interrupt` looks at the process last.
        if self._interrupted:
            self.close()
            raise WorkerCrash("the run was ended")
        asked = (
            {"port": self.target.port}
            if self.target.port is not None
            else {"backend": self.target.backend}
        )
        header = self.request({"op": "hello", **asked}, {}, self._load_timeout).header
        if not header["ok"]:
            self.close()
            if self.target.port is not None:
                raise PortError(line(header["reason"]))
            raise _backend_error(header)
        try:
            found = greeting(header, time.monotonic() - started)
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise WorkerCrash(f"the greeting is malformed: {line(repr(error))}") from None
        self._greeting = found
        return found

    def call(
        self,
        profile: str,
        inputs: Arrays,
        *,
        dtype: str = "",
        attributes: Mapping[str, Any] = _EMPTY,
        layouts: Mapping[str, str] = _EMPTY,
        repeat: int = 1,
        wanted: Sequence[str] = (),
        limits: Mapping[str, int] = _EMPTY,
        timeout: float | None = None,
    ) -> Outcome:
        """Calls the target's function of a profile, `repeat` times on the same arrays.

        `inputs` are keyed by the names of the spec; what is absent is passed as None.
        `layouts` maps input names to layouts of `inputs.layouts`. `wanted` names inputs whose
        gradients are to be computed and no others, which adapters alone are asked for. `limits`
        are the most entries that an array may have by quantity; of a larger one dtype and shape
        are told.
        """
        header = {
            **{"op": "call", "profile": profile, "dtype": dtype, "repeat": repeat},
            **{"attributes": dict(attributes), "layouts": dict(layouts), "wanted": list(wanted)},
            "limits": dict(limits),
        }
        try:
            self.hello()
            reply = self.request(header, inputs, timeout)
        except WorkerTimeout as error:
            return Outcome("timeout", error.reason, output=error.output)
        except WorkerCrash as error:
            if is_out_of_memory(error.output[-4000:]):
                return Outcome("error", f"out of memory: {error.reason}", output=error.output)
            return Outcome("crash", error.reason, output=error.output)
        except PortError as error:
            return Outcome("error", str(error), output=self.output)
        except BackendError as error:
            return Outcome(error.status, str(error), error.traceback, self.output)
        try:
            return self._outcome(reply)
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            return Outcome("crash", f"the answer is malformed: {line(repr(error))}")

    def budget(
        self, profile: str, inputs: Arrays, *, attributes: Mapping[str, Any] = _EMPTY
    ) -> Mapping[str, Any] | None:
        """The operations that the adapter performs; None where it records none.

        Raises what `hello` raises, and BackendError.
        """
        self.hello()
        header = {"op": "budget", "profile": profile, "attributes": dict(attributes)}
        reply = self.request(header, inputs, None).header
        if not reply["ok"]:
            if reply["status"] == "unsupported":
                return None
            raise _backend_error(reply)
        budget: Mapping[str, Any] = reply["budget"]
        return budget

    def devices(self) -> tuple[str, ...]:
        """The devices that the target finds; raises what `hello` raises."""
        return self.hello().devices

    def request(
        self, header: Mapping[str, Any], arrays: Arrays, timeout: float | None = None
    ) -> Message:
        """Sends one request to the running process; raises WorkerTimeout or WorkerCrash."""
        child = self._child
        if child is None:
            raise WorkerCrash("no process is running")
        try:
            reply = child.exchange(Message(header, arrays), timeout or self._timeout)
        except BaseException:
            self._forget()
            raise
        if type(reply.header.get("ok")) is not bool:
            self.close()
            raise WorkerCrash("the answer is malformed", self.output)
        if reply.header.get("spoilt"):
            self.close()
        return reply

    def close(self) -> None:
        """Ends the process and its descendants; the next call starts another one."""
        self._forget()

    def interrupt(self) -> None:
        """Kills the process, from any thread; a call that waits for it returns, later ones fail."""
        self._interrupted = True
        if (child := self._child) is not None:
            child.kill()

    def _forget(self) -> None:
        child, self._child, self._greeting = self._child, None, None
        slot, self._slot = self._slot, None
        if child is not None and os.getpid() == self._owner:
            child.end()
            self._last_output = child.output
        if slot is not None:
            slot.close()

    def _outcome(self, reply: Message) -> Outcome:
        header = reply.header
        if not header["ok"]:
            error = _backend_error(header)
            return Outcome(error.status, str(error), error.traceback, self.output)
        return Outcome(
            "ok",
            outputs=reply.arrays,
            excess={str(n): (str(d), tuple(map(int, s))) for n, (d, s) in header["excess"].items()},
            seconds=float(header["seconds"]),
            times=tuple(map(float, header["times"])),
            mutated=tuple(map(str, header["mutated"])),
            aliases=tuple((str(x), str(y)) for x, y in header["aliases"]),
            unstable=tuple(map(str, header["unstable"])),
            overwritten=tuple(map(str, header["overwritten"])),
            fp_environment=str(header["fp_environment"]),
            evidence=dict(header["evidence"]),
            evidence_before=dict(header["evidence_before"]),
        )


def greeting(header: Mapping[str, Any], seconds: float) -> Greeting:
    """The greeting in a reply; raises KeyError, TypeError or ValueError for a malformed one."""
    return Greeting(
        declaration=dict(header["declaration"]),
        functions=tuple(map(str, header["functions"])),
        versions={short(k): short(v) for k, v in dict(header["versions"]).items()},
        devices=tuple(map(str, header["devices"])),
        notes=tuple(map(line, header["notes"])),
        environment=dict(header["environment"]),
        seconds=seconds,
    )


def surroundings(
    mode: str, device: str, threads: int, more: Mapping[str, str] = _EMPTY
) -> dict[str, str]:
    """The environment variables of a process that is tested."""
    return {
        **MODEST,
        **os.environ,
        **{name: str(threads) for name in THREADS},
        **more,
        "QKVAC_MODE": mode,
        "QKVAC_DEVICE": device,
    }


def _backend_error(header: Mapping[str, Any]) -> BackendError:
    status = header.get("status")
    return BackendError(
        line(header.get("reason")),
        status if status in ("unsupported", "skipped") else "error",
        str(header.get("traceback")),
    )


_live: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for worker in list(_live):
        worker.close()


def default_memory() -> int:
    """Half of the memory that this process may use, in bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total // 2
