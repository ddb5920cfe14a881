"""How pytest-xdist shares the tests out: all cells of a subject on one worker.

Each subject has a process of its own, which takes seconds to start and longer to compile for the
shapes of the cases. Spread over workers, every one of them would start it again. Marking groups
of tests for xdist's `loadgroup` is not enough: combinations of released versions of pytest and
xdist drop the groups without a word. So the subject is read from the test's id.
"""

from __future__ import annotations

import re
from typing import Final

from xdist.scheduler import LoadScopeScheduling

MATRIX: Final = re.compile(r"\btest_matrix\.py::test_identical\[(?P<subject>.+?@[^-\]]+)-")
"""A cell's id starts with its subject, `torch/compile@cpu-float32-…`. Outside a checkout the folder
of the file is not part of a test's id."""


def scope(nodeid: str) -> str:
    """What must stay together: a subject's cells, or the tests of a file."""
    found = MATRIX.search(nodeid)
    return found["subject"] if found else nodeid.partition("::")[0]


class SubjectScheduling(LoadScopeScheduling):
    """Work units are the subjects of the matrix, and every other test file."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
