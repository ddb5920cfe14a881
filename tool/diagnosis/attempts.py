"""Attempts: what a candidate of the diagnosis cannot be evaluated for, it does not explain.

A faulty program may have no value: its shapes do not fit, a sum is divided by 0, a size is none.
That is told in the log, at debug level. Anything else that is raised is a mistake of ours: it
costs a run its diagnosis and nothing else, and is an error in the log, which fails our own tests.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

LOG: Final = logging.getLogger("qkvac.diagnosis.search")
LOG.addHandler(logging.NullHandler())

IMPOSSIBLE: Final = (ValueError, ZeroDivisionError, IndexError)
"""What a faulty program raises for operands that it cannot be computed for."""


class attempt:  # noqa: N801
    """A block that is left where it turns out to be impossible, which the log tells."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, IMPOSSIBLE):
            return False
        LOG.debug("%s: %s: %s", self.what, type(error).__name__, error)
        return True
