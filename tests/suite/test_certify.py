"""Certified values: which arithmetic they come from, how sharp they are, what stays unknown."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import pytest
from flint import ctx

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.rounding import bounds
from qkvac.spec.enclosures.arb_balls import working_precision
from qkvac.spec.enclosures.enclosure import certify
from qkvac.spec.formats import dtype as numpy_dtype
from qkvac.spec.grammar import equations
from qkvac.spec.grammar.equations import parse
from qkvac.tests.suite.carriers import (
    ATTENTION,
    attention_case,
    draw,
)
from qkvac.tests.suite.multiprecision import misses, truth


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arithmetics that certifications go through."""
    names = []
    original = equations.evaluate

    def spying(program: Any, algebra: Any, *rest: Any) -> Any:
        label = type(algebra).__name__.removesuffix("Algebra")
        detail = (
            f" {ctx.prec}" if label == "Ball" else f" {algebra.slices}" if label[0] == "D" else ""
        )
        names.append(label + detail)
        return original(program, algebra, *rest)

    monkeypatch.setattr(equations, "evaluate", spying)
    return names


@pytest.mark.parametrize(
    ("dtype", "n", "expected"),
    [
        ("float16", 8, ["Interval"]),
        ("bfloat16", 8, ["Interval"]),
        ("float32", 600, ["Interval"]),
        ("float64", 8, ["Ball 128"]),
        ("float64", 600, ["DoubleDouble 2"]),
    ],
)
def test_the_arithmetic_follows_from_dtype_and_length(
    tried: list[str], dtype: str, n: int, expected: list[str]
) -> None:
    inputs, sizes = attention_case(0, "normal", n, 4, 3)
    inputs = {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}
    found = certify(ATTENTION, inputs, sizes, dtype)
    assert tried == expected
    assert list(found) == ["Q", "K", "V", "Ω", "A", "C"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("family", "shape"),
    [
        *product(
            ["normal", "hot", "sparse", "cancelling", "wide", "tiny"],
            [(1, 1, 1), (6, 3, 2), (33, 20, 7)],
        ),
        ("normal", (600, 9, 5)),
        ("hot", (600, 9, 5)),
    ],
)
def test_radii_are_small_beside_the_bounds(dtype: str, family: str, shape: tuple[int, ...]) -> None:
    """What identical means is decided by the bound alone, the oracle takes under 1/1024 of it."""
    inputs, sizes = attention_case(4, family, *shape)
    if family in ("wide", "tiny") and dtype != "float64":
        inputs = {name: np.ldexp(x, -np.frexp(np.abs(x).max())[1]) for name, x in inputs.items()}
    inputs = {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}
    bound = bounds(ATTENTION, inputs, sizes, Arithmetic.for_dtype(dtype))
    found = certify(ATTENTION, inputs, sizes, dtype, bound=bound)
    assert all(found[name].sharp(limit).all() for name, limit in bound.items())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", [33, 600])
def test_the_first_arithmetic_is_sharp_enough_for_ordinary_data(
    tried: list[str], dtype: str, n: int
) -> None:
    inputs, sizes = attention_case(4, "normal", n, 20, 7)
    inputs = {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}
    bound = bounds(ATTENTION, inputs, sizes, Arithmetic.for_dtype(dtype))
    tried.clear()
    certify(ATTENTION, inputs, sizes, dtype, bound=bound)
    assert len(tried) == 1


def test_precision_rises_until_the_radius_is_small_beside_the_bound(tried: list[str]) -> None:
    inputs, sizes = attention_case(2, "normal", 4, 3, 2)
    inputs["X"] *= 2.0**45  # scores near 2**90: 128 bits leave 38 for the exponentials
    bound = {name: np.full((4, 4), 2.0**-60) for name in ("A",)}
    found = certify(ATTENTION, inputs, sizes, "float64", wanted=["A"], bound=bound)
    assert tried == ["Ball 128", "Ball 256"]
    assert list(found) == ["A"]
    assert found["A"].sharp(bound["A"]).all()
    assert misses(found["A"], truth(ATTENTION, inputs, sizes)["A"]) == []


def test_precision_stops_rising_where_it_cannot_help(tried: list[str]) -> None:
    inputs, sizes = attention_case(2, "normal", 4, 3, 2)
    inputs["X"][1, 1] = np.inf
    found = certify(ATTENTION, inputs, sizes, "float64")
    assert tried == ["Ball 128", "Ball 256"]
    assert np.isinf(found["Q"].radius[1]).all()
    assert found["Q"].known[[0, 2, 3]].all()


def test_an_unattainable_bound_ends_at_the_cap(tried: list[str]) -> None:
    inputs, sizes = attention_case(2, "normal", 4, 3, 2)
    found = certify(ATTENTION, inputs, sizes, "float64", bound={"A": np.zeros((4, 4))})
    assert tried[0] == "Ball 128"
    assert tried[-1] in ("Ball 256", "Ball 512")
    assert (found["A"].radius > 0).any()


def test_exact_quantities_are_certified_until_their_rounding_is(tried: list[str]) -> None:
    """Tied scores near 2**60: float64 cannot bound the weights, Arb has them exactly 1/2."""
    program = parse("S[n, n]\nA[n, n] = softmax(S / 3, axis=1)")
    inputs = {"S": np.full((2, 2), 2.0**60, dtype=np.float32)}
    vague = certify(program, inputs, {"n": 2}, "float32")["A"]
    assert not vague.rounded("float32")[1].all()
    found = certify(program, inputs, {"n": 2}, "float32", exact=["A"])["A"]
    assert tried == ["Interval", "Interval", "Ball 128"]
    value, certain = found.rounded("float32")
    assert certain.all()
    assert value.tolist() == [[0.5, 0.5]] * 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("culprit", [np.nan, np.inf, -np.inf])
def test_entries_that_depend_on_no_number_are_unknown_and_no_others(
    dtype: str, culprit: float
) -> None:
    program = ATTENTION.restricted(frozenset({"A", "V"}), "C")
    rng = np.random.default_rng(0)
    A, V = rng.random((4, 4)), draw(rng, (4, 3), "normal")
    A[2, 1], V[3, 0] = culprit, culprit
    inputs = {"A": A.astype(numpy_dtype(dtype)), "V": V.astype(numpy_dtype(dtype))}
    found = certify(program, inputs, {"n": 4, "c": 3, "d": 1}, dtype)["C"]
    unknown = np.zeros((4, 3), dtype=bool)
    unknown[2], unknown[:, 0] = True, True
    assert np.isinf(found.radius).tolist() == unknown.tolist()
    assert np.isnan(found.hi).tolist() == unknown.tolist()
    assert np.isinf(found.error(found.hi)).tolist() == unknown.tolist()
    assert not found.rounded(dtype)[1][unknown].any()


def test_values_beyond_float64_are_known_to_be(recwarn: pytest.WarningsRecorder) -> None:
    program = parse("X[n, n]\nY[n, n] = X @ X\nZ[n, n] = Y - Y")
    inputs = {"X": np.array([[1e200, 0.0], [1.0, -1e200]])}
    found = certify(program, inputs, {"n": 2}, "float64")
    assert found["Y"].hi.tolist() == [[np.inf, 0], [0, np.inf]]
    value, certain = found["Y"].rounded("float32")
    assert certain.all()
    assert value.tolist() == [[np.inf, 0], [0, np.inf]]
    assert found["Z"].known.all()
    assert not recwarn


def test_only_what_is_wanted_is_evaluated(tried: list[str]) -> None:
    inputs, sizes = attention_case(0, "normal", 3, 3, 2)
    found = certify(ATTENTION, {k: inputs[k] for k in ("X", "Wq")}, sizes, "float64", wanted=["Q"])
    assert list(found) == ["Q"]


def test_float32_operands_reach_from_the_largest_to_the_smallest() -> None:
    largest, smallest = float(np.float32(3.4e38)), 2.0**-149
    X = np.array([[largest, smallest], [-largest, 1.0]], dtype=np.float32)
    W = np.array([[largest, smallest], [smallest, largest]], dtype=np.float32)
    inputs = {"X": X, "Wq": W, "Wk": W, "Wv": W}
    sizes = {"n": 2, "d": 2, "c": 2}
    true, found = truth(ATTENTION, inputs, sizes), certify(ATTENTION, inputs, sizes, "float32")
    for name in true:
        assert misses(found[name], true[name]) == []
        assert found[name].known.all()


def test_working_precision_is_restored() -> None:
    before = ctx.prec
    with working_precision(333):
        assert ctx.prec == 333
    assert ctx.prec == before
    with pytest.raises(ZeroDivisionError), working_precision(333):
        1 // (ctx.prec - 333)
    assert ctx.prec == before


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which can flush subnormals")
def test_nothing_is_certified_where_subnormals_are_flushed() -> None:
    script = """
import numpy, torch
from qkvac.spec.enclosures import enclosure
from qkvac.spec.grammar import equations
if not torch.set_flush_denormal(True):
    print("refused")
else:
    program = equations.parse("X[n]\\nY[n] = X + X")
    try:
        enclosure.certify(program, {"X": numpy.ones(1)}, {"n": 1}, "float32")
    except enclosure.FlushedSubnormalsError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr
