"""A reproduction is run as it is printed, and shows what the failure says."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac.api import check
from qkvac.cells import Result
from qkvac.diagnosis.failures import blocks
from qkvac.diagnosis.reproduction import MOST, snippet
from qkvac.diagnosis.samples import Sample
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.registry import forward_profiles, gradient_profiles, known_profiles
from qkvac.tests.suite.own_variants import FUNCTIONS, declared
from qkvac.tests.suite.shelf import PORTS

CASES = {case.id.partition("/")[2]: case for case in cases("attention")}


def printed(block: str) -> str | None:
    """The snippet of a failure's block, as somebody would copy it."""
    _, found, lines = block.partition("or with NumPy alone:\n")
    return textwrap.dedent(lines) if found else None


def failures(port: str, *names: str) -> Iterator[tuple[Result, str]]:
    report = check(
        PORTS / f"{port}.py",
        dtypes=["float32"],
        cases=[f"attention/{name}" for name in names],
        workers=1,
    )
    for failure in report.failures:
        (block,), _ = blocks([failure])
        yield failure, block


@pytest.mark.parametrize("port", ["scaled_by_token_width", "queries_and_keys_swapped"])
def test_what_is_printed_runs_and_shows_the_failure(port: str) -> None:
    """In a bare interpreter, with NumPy alone."""
    seen = set[str]()
    for failure, block in failures(port, "normal/6x3x2"):
        code = printed(block)
        if code is None:
            continue
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        words = done.stdout.split()
        assert failure.worst is not None
        value, returned = float(words[words.index("be") + 1]), float(words[-1])
        assert returned == pytest.approx(float(failure.worst["value"]), rel=1e-15)
        assert value == pytest.approx(float(failure.worst["certified"]), rel=1e-6)
        assert abs(value - returned) > float(failure.worst["bound"])
        seen.add(failure.cell.quantity)
        assert len(code.splitlines()) <= 14
    assert len(seen) >= 2


def test_the_smallest_failing_case_is_explained() -> None:
    report = check(
        PORTS / "scaled_by_token_width.py",
        dtypes=["float32"],
        cases=["attention/normal/*"],
        workers=1,
    )
    shown, _ = blocks(report.failures)
    assert all("attention/normal/2x3x5" in block.splitlines()[0] for block in shown)


def test_a_result_alone_is_reproduced_from_the_inputs() -> None:
    case, model = CASES["normal/6x3x2"], Arithmetic.for_dtype("float32")
    sample = Sample(case, "float32", model, {"C": np.zeros((6, 2), np.float32)}, ("C",))
    worst = {"index": [1, 0], "bound": 1e-7}
    assert snippet(sample, "C", worst) is None
    code = snippet(sample, "C", worst, whole=True)
    assert code is not None
    assert "X2 @ Wv" in code


def some(name: str) -> list[Case]:
    """The smallest case of every variant, those with a mask and a batch among them."""
    small = [
        case
        for case in cases(name)
        if not case.layouts
        and prod(case.sizes.values()) * prod(case.batch) > 0
        and _length(case) < 40
        and "float64" in case.dtypes
    ]
    chosen = {(c.variant, c.masked, bool(c.batch), c.family == "normal"): c for c in small}
    return list(chosen.values())


def _length(case: Case) -> int:
    return max(case.sizes.values())


@pytest.mark.parametrize("profile", [*forward_profiles(), *FUNCTIONS])
def test_every_entry_of_every_profile_is_what_the_lines_say(tmp_path: Path, profile: str) -> None:
    with declared(tmp_path):
        assert reproduced(profile) == set(forward_profiles()[profile].quantities)


@pytest.mark.parametrize("profile", [*gradient_profiles(), "cross_gradients"])
def test_gradients_of_single_samples_are_reproduced_as_well(tmp_path: Path, profile: str) -> None:
    with declared(tmp_path):
        own = set(known_profiles()[profile].returns)
        assert reproduced(profile) & own or profile == "embedding_gradients"


def reproduced(profile: str) -> set[str]:
    """Quantities of which lines are shown; each is run on values that are right."""
    rng, shown = np.random.default_rng(1), set[str]()
    for case in some(profile):
        inputs = case.inputs("float64")
        with np.errstate(all="ignore"):
            right = compute(case.program, inputs, case.bindings, "float64")
        if not all(np.all(np.isfinite(array)) for array in right.values()):
            continue
        model = Arithmetic.for_dtype("float64")
        for name in case.quantities:
            for whole in (False, True):
                sample = Sample(case, "float64", model, right, (name,))
                index = tuple(int(rng.integers(size)) for size in right[name].shape)
                code = snippet(sample, name, {"index": index, "bound": 1e-9}, whole)
                if code is None:
                    continue
                scope: dict[str, Any] = {"print": lambda *words: None}
                exec(code, scope)
                size = np.abs(right[name]).max() + 1
                assert abs(scope["value"] - right[name][index]) <= 1e-11 * size, code
                shown.add(name)
    return shown


def test_an_entry_behind_a_mask_is_told_to_be_zero() -> None:
    case = next(c for c in cases("scaled_dot_product_attention") if c.variant == "causal")
    right = compute(case.program, case.inputs("float64"), case.bindings, "float64")
    sample = Sample(case, "float64", Arithmetic.for_dtype("float64"), right, ("A",))
    index = (0,) * (right["A"].ndim - 1) + (1,)
    code = snippet(sample, "A", {"index": index, "bound": 0.0})
    assert code is not None
    assert "value = 0.0" in code


def test_long_arrays_are_not_printed() -> None:
    case, model = CASES["normal/577x24x10"], Arithmetic.for_dtype("float32")
    outputs = {"Ω": np.zeros((577, 577), np.float32), "A": np.zeros((577, 577), np.float32)}
    sample = Sample(case, "float32", model, outputs, ("A",))
    assert snippet(sample, "A", {"index": [0, 0], "bound": 1e-7}) is None
    assert MOST < 577
