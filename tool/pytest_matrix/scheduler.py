"""How pytest-xdist shares the tests out: all cells of a subject on one worker.

Each subject has a process of its own, which takes seconds to start and longer to compile for the
shapes of the cases. Spread over workers, every one of them would start it again. Marking groups
of tests for xdist's `loadgroup` is not enough: combinations of released versions of pytest and
xdist drop the groups without a word. So the subject is read from the test's id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

MATRIX: Final = re.compile(r"\btest_matrix\.py::test_identical\[(?P<subject>.+?@[^-\]]+)-")
"""A cell's id starts with its subject, `torch/compile@cpu-float32-…`. Outside a checkout the folder
of the file is not part of a test's id."""


def scope(nodeid: str) -> str:
    """What must stay together: a subject's cells, or the tests of a file."""
    found = MATRIX.search(nodeid)
    return found["subject"] if found else nodeid.partition("::")[0]


class SubjectScheduling(LoadScopeScheduling):
    """Work units are the subjects of the matrix, and every other test file.

    The files of tests go first, since nobody knows how long they take, and of the subjects those
    with most cells, so that the workers end together. A matrix has so many cells that what is done
    is forgotten, and places are looked up: xdist itself counts and searches through all tests
    whenever one of them ends.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._places: dict[WorkerController, dict[str, int]] = {}
        """Places of the tests in the list of a worker."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self._places[node] = {nodeid: place for place, nodeid in enumerate(collection)}

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        nodeid = self.registered_collections[node][item_index]
        unit = scope(nodeid)
        work = self.assigned_work[node]
        del work[unit][nodeid]
        if not work[unit]:
            del work[unit]
        self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))

    def _assign_work_unit(self, node: WorkerController) -> None:
        # Of equals the first: the queue is sorted by the number of tests.
        unit = min(self.workqueue, key=lambda unit: not unit.endswith(".py"))
        tests = self.workqueue.pop(unit)
        self.assigned_work[node].setdefault(unit, {}).update(tests)
        places = self._places[node]
        node.send_runtest_some([places[nodeid] for nodeid in tests])
