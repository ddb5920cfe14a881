"""One process of a worker, seen from the judging process: start it, ask it, end it.

Waiting is for three things at once, the reply, the port's printed text and the end of the
process, so that neither endless output nor a pipe that a forked child keeps open can block it.
The process gets its pipes by inheritance.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sysconfig
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from qkvac.isolation.channel import CHANNEL_LOST
from qkvac.isolation.origins import PLACES, command, without_places
from qkvac.isolation.protocol import Message, ProtocolError, frames, incoming
from qkvac.isolation.supervised import TICK, Supervised, close, signal_name
from qkvac.spec.registry import sources

GRACE: Final = 1.0
"""Seconds that a process gets to say where it hangs, or to end after it closed its pipe."""

_CHUNK: Final = 1 << 18
_TRACE = re.compile(r"Current thread [^\n]*most recent call first\):\n((?:  File .*\n?)*)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?: in (\w+))?')


class WorkerError(Exception):
    """A worker did not answer; the message is one line."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.output = output
        """The last text that the process printed for this request."""


class WorkerTimeout(WorkerError):  # noqa: N818
    """A worker gave no answer in time, and was killed."""


class WorkerCrash(WorkerError):  # noqa: N818
    """A worker's process ended, or sent something that is no answer and was killed."""

    def __init__(self, reason: str, output: str = "", status: int | None = None) -> None:
        super().__init__(reason, output)
        self.status = status
        """Exit status; negative for a signal, None where it is unknown."""

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended the process, if one did."""
        return signal_name(self.status) if self.status is not None and self.status < 0 else None


class Child(Supervised):
    """A running worker, `qkvac.isolation.worker.main`."""

    def __init__(self, environment: Mapping[str, str], memory: int | None) -> None:
        """Starts the process with `environment` and at most `memory` bytes (None: no limit)."""
        self._count = 0
        with ExitStack() as stack:
            pipes = [os.pipe() for _ in range(3)]
            for fd in (fd for pipe in pipes for fd in pipe):
                stack.callback(close, fd)
            (requests, self._requests), (self._replies, replies) = pipes[:2]
            lifeline, self._lifeline = pipes[2]
            super().__init__(
                command(
                    *("qkvac.isolation.worker", "-u", "-X", "faulthandler"),
                    requests=requests,
                    replies=replies,
                    lifeline=lifeline,
                    memory=memory or 0,
                    places=environment.get(PLACES, ""),
                    profiles=sources(),
                ),
                without_places(environment),
                (requests, replies, lifeline),
            )
            stack.pop_all()
        for fd in (requests, replies, lifeline):
            os.close(fd)
        for fd in (self._requests, self._replies):
            os.set_blocking(fd, False)

    def exchange(self, message: Message, timeout: float) -> Message:
        """Sends a request and waits for its reply; both together take at most `timeout` seconds.

        Raises WorkerTimeout or WorkerCrash; the process is ended then, and whenever anything
        else interrupts the wait, since what it would send later answers nothing.
        """
        self._count += 1
        self._printed.clear()
        outgoing = frames(Message({**message.header, "id": self._count}, message.arrays))
        try:
            reply = self._converse(outgoing, time.monotonic() + timeout)
        except TimeoutError:
            raise WorkerTimeout(
                f"no answer within {timeout:g} s{self._abort()}", self.output
            ) from None
        except ProtocolError as error:
            self.end()
            raise WorkerCrash(
                f"the process wrote to the worker's own pipe: {error}", self.output
            ) from None
        except EOFError:
            raise self._crash() from None
        except BaseException:
            self.end()
            raise
        if reply.header.get("id") != self._count:
            self.end()
            raise WorkerCrash("the process answered another request than asked", self.output)
        return reply

    def end(self) -> int | None:
        status = super().end()
        for fd in (self._requests, self._replies, self._lifeline):
            close(fd)
        self._requests = self._replies = self._lifeline = -1
        return status

    def _converse(self, outgoing: list[memoryview], deadline: float) -> Message:
        """Writes and reads as the pipes allow; EOFError when the process has ended."""
        incomplete = incoming()
        wanted = next(incomplete)
        outgoing = [buffer for buffer in outgoing if len(buffer)]
        poll = select.poll()
        poll.register(self._text, select.POLLIN)
        poll.register(self._replies, select.POLLIN)
        poll.register(self._requests, select.POLLOUT)
        looked = time.monotonic()
        ended = False
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError
            ready = dict(poll.poll(min(TICK, deadline - now) * 1000))
            if self._text in ready and self._read_text() is False:
                poll.unregister(self._text)
            if self._requests in ready and not self._write(outgoing):
                poll.unregister(self._requests)
            if self._replies in ready:
                try:
                    while count := os.readv(self._replies, [wanted]):
                        wanted = wanted[count:] if count < len(wanted) else next(incomplete)
                except BlockingIOError:
                    continue
                except StopIteration as complete:
                    self._drain()
                    message: Message = complete.value
                    return message
                raise EOFError
            if ended:
                raise EOFError
            if now - looked >= TICK:
                looked = now
                ended = self._wait(0)

    def _write(self, outgoing: list[memoryview]) -> bool:
        """Writes what the pipe takes; whether something is left to write."""
        try:
            while outgoing:
                count = os.write(self._requests, outgoing[0][:_CHUNK])
                outgoing[0] = outgoing[0][count:]
                if not outgoing[0]:
                    del outgoing[0]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return False

    def _crash(self) -> WorkerCrash:
        alive = not self._wait(GRACE)
        status = self.end()
        if alive or status == CHANNEL_LOST:
            return WorkerCrash("the worker's own pipe was closed", self.output)
        if status is None or status >= 0:
            return WorkerCrash(f"the process left with exit status {status}", self.output, status)
        where = _location(self.output)
        if status == -signal.SIGKILL:
            where = " (the system may be out of memory)"
        return WorkerCrash(f"killed by {signal_name(status)}{where}", self.output, status)

    def _abort(self) -> str:
        """Ends a process that hangs; where it hung, if its fault handler says so."""
        with suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGABRT)
        self._wait(GRACE)
        self._drain()
        _, aborted, trace = self.output.rpartition("Fatal Python error: Aborted")
        self.end()
        where = _location(trace) if aborted else ""
        return f", hung{where}" if where else ""


def _location(text: str) -> str:
    """The innermost frame of the user's in a fault handler's text, as " in f (file, line 1)"."""
    traces = _TRACE.findall(text)
    library = sysconfig.get_paths()["stdlib"]
    ours = str(Path(__file__).parent)
    for file, line, function in _FRAME.findall(traces[-1] if traces else ""):
        if not file.startswith((library, ours, "<")) and "site-packages" not in file:
            return f" in {function or '?'} ({Path(file).name}, line {line})"
    return ""
