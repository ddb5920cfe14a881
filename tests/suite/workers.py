"""Workers for ports of a few lines, all of which are known by one mark."""

from __future__ import annotations

import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qkvac.isolation.process import (
    Outcome,
    Target,
    Worker,
)
from qkvac.tests.suite.hostile import MARK, PRELUDE, outlived


def arrays(n: int, dtype: Any = "f4") -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(n).standard_normal
    return {
        "X": draw((n, 5)).astype(dtype),
        **{name: draw((5, 3)).astype(dtype) for name in ("Wq", "Wk", "Wv")},
    }


class Ports:
    """Writes ports to files and gives workers for them, which all carry one mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.workers: list[Worker] = []

    def __call__(self, body: str, **options: Any) -> Worker:
        """A worker for a port of which `attention` is `good` unless `body` says otherwise."""
        path = self.folder / f"port{len(self.workers)}.py"
        path.write_text(PRELUDE + textwrap.dedent(body), encoding="utf-8")
        environment = {MARK: self.mark, **options.pop("environment", {})}
        self.workers.append(
            Worker(
                Target(port=str(path)),
                **{"timeout": 20.0, "memory": 4 << 30, **options},
                environment=environment,
            )
        )
        return self.workers[-1]


@contextmanager
def closing(folder: Path) -> Iterator[Ports]:
    """Ports in a folder, of which nothing may be left running at the end."""
    made = Ports(folder)
    yield made
    for worker in made.workers:
        worker.close()
    if sys.platform == "linux":
        assert not outlived(made.mark), "something is left running"


def ask(worker: Worker, n: int, **options: Any) -> Outcome:
    return worker.call("attention", arrays(n), dtype="float32", **options)
