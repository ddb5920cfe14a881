"""How long certification takes, beside the arithmetic that it replaces; as ratios within a run.

Each test times both sides, keeps the fastest of several rounds and records the ratio. Seconds are
of the processor, so that other load on the machine does not count; run with
OPENBLAS_NUM_THREADS=1, or waiting threads do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gmpy2
import mpmath
import numpy as np
import pytest

from qkvac.spec.enclosures.arb_balls import BallAlgebra, working_precision
from qkvac.spec.enclosures.double_double import DoubleDoubleAlgebra
from qkvac.spec.enclosures.enclosure import Enclosure, certify
from qkvac.spec.grammar import equations
from qkvac.spec.registry import forward_profiles

pytestmark = pytest.mark.benchmark(timer=time.process_time)

ATTENTION = forward_profiles()["attention"].program()
DIGITS = 34
"""Decimal digits of gmpy2 and mpmath: 113 bits, less than the 128 of the balls."""


def attention(
    n: int, d: int, c: int, dtype: str = "float64"
) -> tuple[dict[str, Any], dict[str, int]]:
    rng = np.random.default_rng(0)
    inputs = {"X": rng.standard_normal((n, d))}
    inputs |= {name: rng.standard_normal((d, c)) / np.sqrt(d) for name in ("Wq", "Wk", "Wv")}
    return {k: x.astype(dtype) for k, x in inputs.items()}, {"n": n, "d": d, "c": c}


def fastest(function: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def in_objects(inputs: dict[str, Any], number: Any, exp: Any, sqrt: Any) -> None:
    """The six quantities over object arrays, as one would write them with NumPy."""
    X, Wq, Wk, Wv = (np.vectorize(number, otypes=[object])(a) for a in inputs.values())
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = (Q @ K.T) / sqrt(number(Q.shape[1]))
    E = np.vectorize(exp, otypes=[object])(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    A @ V


def in_float64(X: Any, Wq: Any, Wk: Any, Wv: Any) -> None:
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = (Q @ K.T) / np.sqrt(Q.shape[1])
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    A @ V


def certified(
    inputs: dict[str, Any], sizes: dict[str, int], dtype: str = "float64"
) -> Callable[[], Any]:
    return lambda: certify(ATTENTION, inputs, sizes, dtype)


def recorded(benchmark: Any, function: Callable[[], Any], other: float, rounds: int) -> float:
    """Seconds of `function`, with its ratio to the other side's seconds in the report."""
    benchmark.pedantic(function, rounds=rounds, warmup_rounds=1)
    own = float(benchmark.stats.stats.min)
    benchmark.extra_info.update(other_seconds=other, ratio=other / own)
    return own


def test_float64_beside_gmpy2(benchmark: Any) -> None:
    """At least 8 times faster, radius included."""
    inputs, sizes = attention(256, 256, 64)
    with gmpy2.context(precision=113):
        other = fastest(lambda: in_objects(inputs, gmpy2.mpfr, gmpy2.exp, gmpy2.sqrt), 1)
    own = recorded(benchmark, certified(inputs, sizes), other, 3)
    assert other / own >= 8


def test_float64_beside_mpmath(benchmark: Any) -> None:
    """At least 30 times faster; mpmath takes some 15 seconds for this one evaluation."""
    inputs, sizes = attention(256, 256, 64)
    with mpmath.workdps(DIGITS):
        other = fastest(lambda: in_objects(inputs, mpmath.mpf, mpmath.exp, mpmath.sqrt), 1)
    own = recorded(benchmark, certified(inputs, sizes), other, 3)
    assert other / own >= 30


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_float32_and_below_beside_plain_float64(benchmark: Any, dtype: str) -> None:
    """At most 6 times the evaluation alone, for value and radius."""
    inputs, sizes = attention(256, 256, 64, dtype)
    wide = [x.astype(np.float64) for x in inputs.values()]
    in_float64(*wide)
    other = fastest(lambda: in_float64(*wide), 40)
    own = recorded(benchmark, certified(inputs, sizes, dtype), other, 40)
    assert own / other <= 6


def enclosed(algebra: Any, inputs: dict[str, Any], sizes: dict[str, int]) -> None:
    with working_precision(128), np.errstate(all="ignore"):
        values = {name: algebra.constant(x) for name, x in inputs.items()}
        for value in equations.evaluate(ATTENTION, algebra, values, sizes).values():
            Enclosure.of(value)


def test_double_double_beside_arb(benchmark: Any) -> None:
    """At least 5 times faster where it takes over (about 10 on an idle machine)."""
    inputs, sizes = attention(512, 256, 64)
    other = fastest(lambda: enclosed(BallAlgebra(), inputs, sizes), 1)
    own = recorded(benchmark, lambda: enclosed(DoubleDoubleAlgebra(), inputs, sizes), other, 3)
    assert other / own >= 5
