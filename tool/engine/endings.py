"""Signals that ask a command to end: it ends as by Ctrl-C, with what it has found until then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = ("SIGTERM", "SIGHUP")
"""By name, since not every system has all of them."""


class Ended(KeyboardInterrupt):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_status(error: BaseException) -> int:
    """128 and the number of the signal, as a shell has it; Ctrl-C is SIGINT."""
    cause = error.__cause__ or error  # click has an exception of its own for both
    return 128 + (cause.number if isinstance(cause, Ended) else signal.SIGINT)


@contextmanager
def endings() -> Iterator[None]:
    """Has these signals raise Ended in the main thread, once; what is ignored stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    taken = [n for n in numbers if signal.getsignal(n) == signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    try:
        for number in taken:
            signal.signal(number, end)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
