"""Programs as ports: started once for a folder of inputs, and watched until they have ended.

A program is called as `COMMAND INPUTS_DIR OUTPUTS_DIR`. It may crash, hang, print without end,
take all memory or leave processes behind; the one who waits gets one line about it.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qkvac.isolation.channel import die_with_parent, is_out_of_memory
from qkvac.isolation.supervised import TICK, Supervised, close, signal_name
from qkvac.texts import line
from qkvac.usage import UsageError

PREFIX: Final = "-- "
"""What the text of a port begins with that is a command line."""

INTERPRETERS: Final = frozenset(
    {
        *("python", "node", "deno", "bun", "ruby", "perl", "php", "lua", "julia", "java"),
        *("rscript", "octave", "dotnet", "guile", "racket", "wasmtime", "sh", "bash", "env"),
    }
)
"""Programs after which a port is not named."""


def text_of(words: Sequence[str]) -> str:
    """A command as the text of a port; raises UsageError for an empty one."""
    if not words:
        raise UsageError("name a command after --, like: qkvac check -- ./my_port --flag")
    return PREFIX + shlex.join(words)


def is_command(port: str) -> bool:
    return port.startswith(PREFIX)


def words_of(port: str) -> list[str]:
    """The words of a port that is a command; raises UsageError for unbalanced quotes."""
    try:
        words = shlex.split(port.removeprefix(PREFIX))
    except ValueError as error:
        raise UsageError(f"{port}: {error}") from error
    return words if words else shlex.split(text_of(words))


def check_program(words: Sequence[str]) -> None:
    """Raises UsageError, in one line, if the first word is no program that can be started."""
    program = words[0]
    if shutil.which(program) is not None:
        return
    if Path(program).is_dir():
        raise UsageError(f"{program} is a folder, not a program")
    if not Path(program).exists():
        where = "no such file" if os.sep in program else "no program of this name is in the PATH"
        near = f"; did you mean ./{program}?" if Path(program, ".").is_file() else ""
        raise UsageError(f"{program}: {where}{near}")
    if os.sep not in program:
        raise UsageError(f"{program} is not in the PATH; did you mean ./{program}?")
    hint = "chmod +x makes it so"
    if program.endswith(".py"):
        hint = f"a port in Python is checked without --, and a script as -- python {program}"
    raise UsageError(f"{program} is not executable; {hint}")


def short_name(words: Sequence[str]) -> str:
    """A short name of a command: that of its program, or of the file that an interpreter gets."""
    program = Path(words[0]).stem
    if program.lower().rstrip("0123456789.") in INTERPRETERS:
        files = [word for word in words[1:] if Path(word).is_file()]
        return Path((files or words)[0]).stem
    return program


@dataclass(frozen=True)
class Ending:
    """How a program ended."""

    status: str
    """"ok", "error", "crash" or "timeout"."""
    reason: str = ""
    output: str = ""
    """The last text that it printed."""
    seconds: float = 0.0


class Run(Supervised):
    """A running program."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], memory: int | None
    ) -> None:
        """Starts a program with at most `memory` bytes of its own (None: no limit).

        It dies with this process. Raises UsageError if it cannot be started.
        """
        self._started = time.monotonic()
        lifeline, self._lifeline = os.pipe()
        with ExitStack() as stack:
            stack.callback(close, lifeline)
            try:
                super().__init__(words, environment, (lifeline,))
            except OSError as error:
                close(self._lifeline)
                what = error.strerror
                if error.errno == errno.ENOEXEC:
                    what = "neither a program for this machine nor a script that begins with #!"
                raise UsageError(f"{words[0]} cannot be started: {what}") from error
            die_with_parent(lifeline, self._popen.pid)
        _limit(self._popen.pid, memory)

    def finish(self, progress: Callable[[], int], patience: float) -> Ending:
        """Waits for the end, at most `patience` seconds after the last time that `progress` rose.

        Descendants that are left then are killed.
        """
        poll = select.poll()
        poll.register(self._text, select.POLLIN)
        seen = -1
        looked = 0.0
        pause = TICK
        deadline = self._started + patience
        while not self._has_ended():
            if poll.poll(pause * 1000) and self._read_text() is False:
                # Most programs close it by ending.
                poll.unregister(self._text)
                pause = TICK / 10
            now = time.monotonic()
            if now - looked >= TICK:
                looked = now
                if (count := progress()) > seen:
                    seen, deadline = count, now + patience
            if now >= deadline:
                self.end()
                since = "" if seen <= 0 else f" after {seen} of them"
                return self._ending("timeout", f"no output within {patience:g} s{since}")
        return self._ended_by(self.end())

    def end(self) -> int | None:
        status = super().end()
        close(self._lifeline)
        self._lifeline = -1
        return status

    def _ended_by(self, status: int | None) -> Ending:
        if not status:
            return self._ending("ok", "")
        if status > 0:
            lines = [row.strip() for row in self.output.splitlines() if row.strip()]
            said = f": {line(lines[-1])}" if lines else ""
            kind, reason = "error", f"exit status {status}{said}"
        else:
            kind, reason = "crash", f"killed by {signal_name(status)}"
        if is_out_of_memory(self.output[-4000:]):
            return self._ending("error", f"out of memory: {reason}")
        return self._ending(kind, reason)

    def _ending(self, status: str, reason: str) -> Ending:
        return Ending(status, reason, self.output, time.monotonic() - self._started)


def _limit(process: int, memory: int | None) -> None:
    """Limits another process where the system can: memory, size of its files, no core file."""
    if sys.platform != "linux":
        return
    limits = {resource.RLIMIT_CORE: 0}
    if memory is not None:
        limits |= {resource.RLIMIT_DATA: memory, resource.RLIMIT_FSIZE: memory}
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.prlimit(process, kind, (bound, hard))
        except ProcessLookupError:
            return
