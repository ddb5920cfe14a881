"""What a tested process has started, wherever that went, and its end. Linux only.

A child that leaves its session and clears its environment is still the child of somebody: of the
process that started it, or, once that has ended, of the nearest one that adopts. Workers adopt
what their descendants leave behind; the command line does so as well, for the descendants of
workers that died and of programs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOKEN: Final = "QKVAC_PROCESS"
"""Environment variable by which descendants that left the process group are found."""
ROUNDS: Final = 3
"""How often processes are looked for, since they may start others until they are killed."""
PAUSE: Final = 0.02
"""Seconds in which a process that is being started has got its environment."""

_SET_CHILD_SUBREAPER: Final = 36
_theirs = dict[int, frozenset[int]]()
"""By number of a process that ends what it adopts, the children that it had before."""


@dataclass(frozen=True)
class _Process:
    parent: int
    session: int


def adopt() -> None:
    """Has what descendants of this process leave behind become its children."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopt_and_end() -> None:
    """The same, and has `kill_orphans` end them; for a process that starts nothing but ours."""
    _theirs[os.getpid()] = frozenset(_children(os.getpid()))
    adopt()


def kill_descendants(pid: int) -> None:
    """Kills all descendants of a process that adopts, and had better be stopped."""
    _kill_while(lambda: _descendants(pid))


def kill_marked(token: str) -> None:
    """Kills processes that inherited a token, such as daemons in sessions of their own."""
    mark = f"{TOKEN}={token}".encode()
    _kill_while(lambda: [pid for pid in _numbers() if mark in _environment(pid)])


def kill_orphans() -> None:
    """Kills adopted children: in another session, and without the mark that all of ours carry."""
    own = os.getpid()
    if own not in _theirs:
        return

    def orphans() -> set[int]:
        return {
            pid
            for pid, process in _children(own).items()
            if pid not in _theirs[own]
            and process.session != os.getsid(0)
            and TOKEN.encode() not in _environment(pid)
        }

    found = orphans()
    if found:
        time.sleep(PAUSE)
        for pid in found & orphans():
            _kill_while(lambda pid=pid: _descendants(pid))  # type: ignore[misc]
            _kill([pid])
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _kill_while(find: Callable[[], Iterable[int]]) -> None:
    for _ in range(ROUNDS):
        if not _kill(find()):
            return


def _kill(pids: Iterable[int]) -> bool:
    """Whether there was one to kill."""
    found = False
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            found = True
    return found


def _descendants(pid: int) -> list[int]:
    children = dict[int, list[int]]()
    for child, process in _living().items():
        children.setdefault(process.parent, []).append(child)
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found


def _children(pid: int) -> dict[int, _Process]:
    return {child: process for child, process in _living().items() if process.parent == pid}


def _living() -> Mapping[int, _Process]:
    """All processes that have not ended."""
    found = {}
    for pid in _numbers():
        with suppress(OSError, ValueError):
            # The name before the last bracket may hold anything.
            words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if words[0] not in "ZX":
                found[pid] = _Process(int(words[1]), int(words[3]))
    return found


def _numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
