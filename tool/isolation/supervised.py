"""A process that may do anything: what it prints, its descendants, and its end.

POSIX only: the process leads a session of its own. Its printed text is taken as it comes and
mostly thrown away, so that neither endless output nor a pipe that a forked child keeps open can
block the one who waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from qkvac.isolation.descendants import TOKEN, kill_descendants, kill_marked, kill_orphans

OUTPUT_LIMIT: Final = 64 << 10
"""How many of the last bytes that a process printed are kept."""
TICK: Final = 0.05
"""Seconds between two looks at whether the process still runs."""

_CHUNK: Final = 1 << 18


class Supervised:
    """A running process. Its files have to be closed by `end`."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> None:
        """Starts a command that gets the file descriptors `inherited`; raises OSError."""
        self._token = uuid.uuid4().hex
        self._printed = bytearray()
        self._ended = False
        self._text, text = os.pipe()
        try:
            self._popen = subprocess.Popen(
                words,
                env={**environment, TOKEN: self._token},
                stdin=subprocess.DEVNULL,
                stdout=text,
                stderr=text,
                pass_fds=inherited,
                start_new_session=True,
            )
        except BaseException:
            close(self._text)
            raise
        finally:
            close(text)
        os.set_blocking(self._text, False)

    @property
    def output(self) -> str:
        """The last text that was printed, at most OUTPUT_LIMIT bytes."""
        return self._printed.decode(errors="replace")

    def end(self) -> int | None:
        """Kills the process and its descendants; its exit status, where the system has it."""
        if self._ended:
            return self._popen.returncode
        self._ended = True
        if self._popen.returncode is None:
            # Stopped, it starts nothing while what it has started is looked for.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._popen.pid, signal.SIGSTOP)
            kill_descendants(self._popen.pid)
        kill_marked(self._token)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.kill()
        self._popen.wait()
        kill_marked(self._token)
        kill_orphans()
        self._drain()
        close(self._text)
        return self._popen.returncode

    def kill(self) -> None:
        """Kills the process from any thread; the one that waits for it sees that it ended.

        Files stay open, since another thread may be waiting on them.
        """
        self._popen.kill()

    def _read_text(self) -> bool | None:
        """Takes one chunk of printed text; False at its end, None where there is none now."""
        try:
            chunk = os.read(self._text, _CHUNK)
        except BlockingIOError:
            return None
        self._printed += chunk
        del self._printed[:-OUTPUT_LIMIT]
        return bool(chunk)

    def _drain(self) -> None:
        """Takes the text that is there now, but does not run after one who keeps printing."""
        for _ in range(8):
            if not self._read_text():
                return

    def _wait(self, seconds: float) -> bool:
        """Whether the process ends within `seconds`.

        It is not reaped where the system allows that, so that its group's number stays its own.
        """
        deadline = time.monotonic() + seconds
        while not self._has_ended():
            if time.monotonic() >= deadline:
                return False
            self._drain()
            time.sleep(0.005)
        return True

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):
            return self._popen.poll() is not None
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._popen.pid, options) is not None
        except ChildProcessError:
            return True


def signal_name(status: int) -> str:
    """The name of the signal of a negative exit status."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def close(fd: int) -> None:
    """Closes a file descriptor that may be closed already."""
    with suppress(OSError):
        os.close(fd)
