"""Attempts: what a candidate of the diagnosis cannot be evaluated for, it does not explain.

A faulty program may have no value: its shapes do not fit, a sum is divided by 0, a size is none.
That is told in the log, at debug level. Anything else that is raised is a mistake of ours: it
costs a run its diagnosis and nothing else, and is an error in the log, which fails our own tests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOG: Final = logging.getLogger("qkvac.diagnosis")
LOG.addHandler(logging.NullHandler())

IMPOSSIBLE: Final = (ValueError, ZeroDivisionError, IndexError)
"""What a faulty program raises for operands that it cannot be computed for."""


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Goes on after the block where it turns out to be impossible."""
    try:
        yield
    except IMPOSSIBLE as error:
        LOG.debug("%s: %s: %s", what, type(error).__name__, error)
