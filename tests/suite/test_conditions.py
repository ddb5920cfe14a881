"""Conditions: ports that are wrong only sometimes are told when, and others are told nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from qkvac.api import check
from qkvac.diagnosis import conditions
from qkvac.diagnosis.conditions import condition
from qkvac.diagnosis.samples import Sample
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.catalogue import cases
from qkvac.tests.suite.diagnosing import Array, plain

PORT: Final = """
import numpy as np
QKVAC = {"supports": ["layouts", "empty", "batches"]}
def attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.swapaxes(-1, -2) / X.dtype.type(np.sqrt(Q.shape[-1]))
    E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    A = E / E.sum(axis=-1, keepdims=True)
    C = A @ V
    n = X.shape[-2]
    if CONDITION:
        C = C + X.dtype.type(0.1) * abs(C)
    return Q, K, V, A, C
"""

CONDITIONS: Final = {
    "n > 50": "it fails only where n > 50 (",
    "n > 64 and X.ndim == 2": "it fails only where n > 64",
    "X.ndim > 2": "it fails only in batches",
    "min(s for a in (X, Wq, Wk, Wv) for s in a.strides) < 0": "where an input is reversed",
    "n == 1": "it fails only where n = 1",
}


def said(folder: Path, wrong: str) -> set[str]:
    path = folder / "port.py"
    path.write_text(textwrap.dedent(PORT).replace("CONDITION", wrong), encoding="utf-8")
    report = check(path, tier="quick", dtypes=["float32"], workers=1)
    assert report.exit_status == 1
    return {r.diagnosis or "" for r in report.failures if r.cell.quantity == "C"}


@pytest.mark.parametrize("wrong", CONDITIONS)
def test_the_condition_stands_first(tmp_path: Path, wrong: str) -> None:
    for text in said(tmp_path, wrong):
        assert text.startswith("it fails only ")
        assert CONDITIONS[wrong] in text.partition(";")[0]


def test_what_is_wrong_everywhere_has_no_condition(tmp_path: Path) -> None:
    assert not any(text.startswith("it fails only") for text in said(tmp_path, "True"))


def chosen(wrong: str) -> tuple[list[Case], list[Case]]:
    """Cases of attention in which a fault shows, and the others."""
    known = [c for c in cases("attention") if c.tier == "default" and 0 not in c.sizes.values()]
    failing = [c for c in known if eval(wrong, {}, {**c.sizes, "case": c})]
    return failing, [c for c in known if c not in failing]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("n > 64", "where n > 64"),
        ("n == 1", "where n = 1"),
        ("bool(case.layouts)", "where inputs are not plain contiguous arrays"),
        ("'X' in case.layouts", "where X is no plain contiguous array"),
        ("len(case.batch) > 1", "with several leading axes"),
        ("case.batch and n > 4", "in batches"),
    ],
)
def test_the_smallest_condition_is_found(wrong: str, words: str) -> None:
    found = condition(*chosen(wrong))
    assert words in str(found)
    failing, passing = chosen(wrong)
    assert found is not None
    assert all(trait.holds(case) for trait in found.traits for case in failing)
    assert not any(all(t.holds(case) for t in found.traits) for case in passing)


def test_there_is_none_where_nothing_passes_or_nothing_separates() -> None:
    failing, passing = chosen("n > 64")
    assert condition(failing, []) is None
    assert condition([], passing) is None
    # The same cases fail and pass, so that no trait can tell them apart.
    assert condition(failing, failing) is None


def _asked(wrong: str, answers: bool = True) -> tuple[conditions.Condition | None, list[int]]:
    """A condition after further calls of a function that is wrong under a condition."""
    failing, passing = chosen(wrong)
    base = next(case for case in failing if case.generic)
    sample = Sample(base, "float32", Arithmetic.for_dtype("float32"), {}, ("C",))
    sizes = list[int]()

    def ask(posed: Mapping[str, Case]) -> dict[str, dict[str, Array]]:
        found = {}
        for name, case in posed.items():
            outputs = dict(plain(case.inputs("float32")))
            sizes.append(case.sizes["n"])
            if eval(wrong, {}, {**case.sizes, "case": case}):
                outputs["C"] = outputs["C"] * np.float32(1.5)
            found[name] = outputs
        return found if answers else {}

    first = condition(failing, passing)
    assert first is not None
    return conditions.confirmed(first, [sample], ask), sizes


def test_further_calls_move_an_edge_to_where_it_is() -> None:
    found, sizes = _asked("n > 41")
    assert "where n > 41 (" in str(found)
    assert 0 < len(sizes) <= conditions.ROUNDS * conditions.ASKED
    assert min(sizes) <= 41 < max(sizes)


def test_further_calls_refute_what_only_seemed_to_be_an_edge() -> None:
    found, _ = _asked("n > 33 and n % 2 == 1")
    assert found is None


def test_what_is_not_answered_is_left_as_it_is() -> None:
    found, _ = _asked("n > 41", answers=False)
    assert found is not None
    assert not found.confirmed
