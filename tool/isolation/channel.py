"""The worker's end of the pipes to the judging process, and the limits that a worker sets itself.

The pipes are a worker's own: whatever a port prints, closes or forks, a reply is written by this
process, to the pipe that it was given, or not at all.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Final

from qkvac.isolation.descendants import adopt
from qkvac.isolation.protocol import Message, read, write

CHANNEL_LOST: Final = 74
"""Exit status after the port closed or replaced the pipes to the judging process."""

OUT_OF_MEMORY: Final = (
    *("out of memory", "can't allocate memory", "cannot allocate memory"),
    *("not enough memory", "resource_exhausted", "bad_alloc", "memoryerror"),
    # TensorFlow's class and messages, and what CUDA and its libraries return.
    *("resourceexhausted", "oom when allocating", "failed to allocate memory"),
    *("error_out_of_memory", "status_alloc_failed", "errormemoryallocation"),
)
"""What libraries say, in small letters, when an allocation fails."""


def is_out_of_memory(text: str) -> bool:
    """Whether a message of a library says that an allocation failed."""
    return any(phrase in text.lower() for phrase in OUT_OF_MEMORY)


class Channel:
    """The two pipes. A forked copy of this process cannot answer in its stead."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests = open(requests, "rb", buffering=0)  # noqa: SIM115
        self._replies = open(replies, "wb")  # noqa: SIM115
        self._identity = self._look()
        self._process = os.getpid()
        os.register_at_fork(after_in_child=self._leave)

    def receive(self) -> Message:
        """The next request; raises EOFError when the judging process is gone."""
        self._check()
        return read(self._requests)

    def send(self, message: Message) -> None:
        self._check()
        write(self._replies, message)

    def _look(self) -> list[tuple[int, int]]:
        found = (os.fstat(fd) for fd in (self._requests.fileno(), self._replies.fileno()))
        return [(status.st_dev, status.st_ino) for status in found]

    def _check(self) -> None:
        """Leaves when this is a forked copy, or when the pipes were closed or replaced."""
        if os.getpid() != self._process:
            os._exit(0)
        try:
            same = self._look() == self._identity
        except (OSError, ValueError):
            same = False
        if not same:
            os._exit(CHANNEL_LOST)

    def _leave(self) -> None:
        for fd in (self._requests.fileno(), self._replies.fileno()):
            os.close(fd)


def confine(memory: int, lifeline: int) -> None:
    """Limits this process's memory (0: no limit), has it adopt what its descendants leave behind,
    and die with the judging process.

    The limit is on private writable memory, since frameworks reserve far more addresses than
    they use. On Linux the kernel kills the process group when the other end of the lifeline
    closes, even inside a loop that never returns to Python; elsewhere the end is noticed at the
    next request.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    die_with_parent(lifeline, os.getpgrp())
    adopt()
    watch = select.poll()
    watch.register(lifeline, select.POLLHUP)
    if watch.poll(0):
        os._exit(0)


def die_with_parent(lifeline: int, group: int) -> None:
    """Has a process group killed when the other end of the lifeline closes; Linux only."""
    if sys.platform == "linux":
        import fcntl
        import signal

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
