"""Small ports for the tests of the engine, written to files because they run in processes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkvac.cells import Result
from qkvac.engine.engine import Engine
from qkvac.subjects.selection import Options, Selection

PLAIN = """
import os, signal, time
import numpy as np

def plain(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, A, A @ V

attention = plain
"""

SMALL = "normal/6x3x2"
MAIN = "normal/33x20x7"
ONE = "normal/1x20x7"


def write(folder: Path, text: str = "", name: str = "my_port") -> str:
    """A port that is right except for what `text` changes; returns its path."""
    path = folder / f"{name}.py"
    path.write_text(PLAIN + textwrap.dedent(text), encoding="utf-8")
    return str(path)


def run(
    port: str | None = None,
    *cases: str,
    dtypes: tuple[str, ...] = ("float32",),
    backends: tuple[str, ...] = (),
    **options: Any,
) -> list[Result]:
    """All results of some cases of the mission's profile."""
    results = list[Result]()
    selection = Selection(backends, port, ("attention",), dtypes, cases=cases)
    with Engine(selection, Options(**{"workers": 1, **options})) as engine:
        engine.run(results.append)
    return results


def statuses(results: list[Result], case: str = "") -> Mapping[str, str]:
    """Status by quantity, of the cells of one case of `attention`."""
    return {
        result.cell.quantity: result.status
        for result in results
        if result.cell.case == f"attention/{case}" or not case
    }
