"""Functions of one entry at a time, far from 0: a quotient of exponentials is no number there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from qkvac.spec import registry
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.verdicts.verdict import Question, judge

Array = np.ndarray[Any, Any]

OWN: Final = """
from qkvac.spec import Profile

GATED = Profile(
    "gated", "projected tokens behind a gate",
    '''
    X[n, d]
    W[d, c]
    G[d, c]
    C[n, c] = FUNCTION(X @ G) * (X @ W)
    ''',
    takes="X, W, G", returns="C", shared="W, G",
)
"""


def naive(x: Array) -> Array:
    e = np.exp(x)
    return np.asarray(e / (1 + e))


def usual(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def quotient(x: Array) -> Array:
    up, down = np.exp(x), np.exp(-x)
    return np.asarray((up - down) / (up + down))


@pytest.fixture
def choose(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    def chosen(function: str) -> None:
        file = tmp_path / "mine.py"
        file.write_text(OWN.replace("FUNCTION", function), encoding="utf-8")
        registry.choose([file])

    yield chosen
    registry.choose()


def failing(function: Callable[[Array], Array], dtype: str) -> set[str]:
    """Families that a port with a function of its own fails."""
    return {case.family for case in cases("gated") if _fails(case, function, dtype)}


def _fails(case: Case, function: Callable[[Array], Array], dtype: str) -> bool:
    if dtype not in case.dtypes:
        return False
    inputs = case.inputs(dtype)
    X, W, G = (inputs[name] for name in "XWG")
    with np.errstate(all="ignore"):
        C = function(X @ G) * (X @ W)
    question = Question(case, dtype, Arithmetic.for_dtype(dtype))
    return judge(question, {"C": C})["C"].status == "failed"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_quotients_of_exponentials_are_caught(choose: Callable[[str], None], dtype: str) -> None:
    choose("sigmoid")
    assert not failing(usual, dtype)
    assert failing(naive, dtype) == {"saturated"}
    choose("tanh")
    assert not failing(np.tanh, dtype)
    assert "saturated" in failing(quotient, dtype)


def test_what_does_not_saturate_has_no_such_case() -> None:
    registry.choose()
    found = {
        case.profile
        for name in registry.known_profiles()
        for case in cases(name)
        if case.family == "saturated"
    }
    assert not found
