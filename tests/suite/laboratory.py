"""Where tests meet frameworks: each in a process of its own, as in a run.

A test sends functions of its module there; their names start with `_`.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkvac.spec.formats import FORMATS

Array = np.ndarray[Any, Any]


def needs(name: str, mode: str = "eager") -> None:
    """Skip the test where a framework is missing or cannot run in that mode."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if reason := importlib.import_module(f"qkvac.backends.{name}.adapter").unavailable(mode):
        pytest.skip(reason)


def inside(framework: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in the process of a framework, which goes on living."""
    return _laboratory(framework).submit(function, *arguments).result()


def alone(function: Callable[..., Any], *arguments: Any, **variables: str) -> Any:
    """The result of a function in a fresh process with environment variables."""
    with _started(**variables) as pool:
        return pool.submit(function, *arguments).result()


@cache
def _laboratory(framework: str) -> ProcessPoolExecutor:
    # Another test of this process may have named a framework for Keras, which reads it once.
    return _started(KERAS_BACKEND=framework)


def _started(**variables: str) -> ProcessPoolExecutor:
    """A running process that computes on one thread."""
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**pinned, "QKVAC_THREADS": "1", **variables}.items():
            patch.setenv(key, value)
        pool.submit(os.getpid).result()
    return pool


@cache
def adapter(name: str, mode: str) -> Any:
    """The adapter, in the process that it lives in."""
    return importlib.import_module(f"qkvac.backends.{name}.adapter").open(mode, "cpu")


def attention(name: str, mode: str, inputs: list[Array]) -> dict[str, Array]:
    """What the adapter returns, in the process that it lives in."""
    outputs = adapter(name, mode).attention(*inputs)
    return {key: np.array(value) for key, value in outputs.items()}


def refusal(error: type[Exception], function: Callable[..., Any], *arguments: Any) -> str:
    """The message of the error that a call must raise."""
    try:
        function(*arguments)
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__} was raised")


DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
TOKENS, WIDTH, CHANNELS = 7, 12, 7
"""One shape for most tests: compiled modes compile for every shape and dtype."""


def whole(dtype: str, *sizes: int, batch: tuple[int, ...] = ()) -> list[Array]:
    """Small whole numbers: every sum of the products is exact in every format."""
    n, d, c = sizes or (TOKENS, WIDTH, CHANNELS)
    draw = np.random.default_rng(0)
    shapes = ((*batch, n, d), *3 * ((d, c),))
    return [draw.integers(-1, 2, shape).astype(DTYPES[dtype]) for shape in shapes]


def normal(dtype: str, *sizes: int) -> list[Array]:
    """Normal data in the usual shape, or in sizes n, d, c."""
    n, d, c = sizes or (TOKENS, WIDTH, CHANNELS)
    draw = np.random.default_rng(1).standard_normal
    shapes = ((n, d), *3 * ((d, c),))
    return [draw(shape).astype(DTYPES[dtype]) for shape in shapes]


def uniform(dtype: str) -> tuple[list[Array], dict[str, Array]]:
    """No query prefers a key: every weight is 1/n, correctly rounded."""
    X, Wq, Wk, Wv = whole(dtype)
    return [X, 0 * Wq, Wk, Wv], {"A": np.full((TOKENS, TOKENS), 1 / TOKENS)}


def lookup(dtype: str) -> tuple[list[Array], dict[str, Array]]:
    """Every query finds one key; its value has a full significand and is copied."""
    keys, bits = np.eye(TOKENS), FORMATS[dtype].precision
    draw = np.random.default_rng(2)
    values = draw.integers(2 ** (bits - 1), 2**bits, (TOKENS, WIDTH - TOKENS)) / 2.0 ** (bits - 1)
    found = np.roll(keys, 3, axis=0)
    X = np.hstack([keys, values])
    below = np.zeros((WIDTH - TOKENS, TOKENS))
    Wq = np.vstack([2.0**13 * keys, below])
    Wk = np.vstack([found.T, below])
    Wv = np.vstack([np.zeros((TOKENS, CHANNELS)), np.eye(WIDTH - TOKENS, CHANNELS)])
    V = np.hstack([values, np.zeros((TOKENS, CHANNELS - values.shape[1]))])
    inputs = [x.astype(DTYPES[dtype]) for x in (X, Wq, Wk, Wv)]
    return inputs, {"V": V, "A": found, "C": found @ V}


def cliff(dtype: str) -> tuple[list[Array], dict[str, Array]]:
    """The last key's score leads by two units in the last but one place, and takes all."""
    lead = 64.0 if dtype == "float16" else 2.0**11
    score = lead * 2.0 ** (8 if dtype == "float16" else FORMATS[dtype].precision - 2)
    X = np.zeros((TOKENS, WIDTH))
    X[:, 0], X[-1, 1], X[:, 2] = 1, 1, np.arange(TOKENS)
    Wq, Wk, Wv = np.zeros((3, WIDTH, CHANNELS))
    Wq[0, 0], Wk[0, 0], Wk[1, 0], Wv[2] = 1, score, lead, 1
    A = np.zeros((TOKENS, TOKENS))
    A[:, -1] = 1
    inputs = [x.astype(DTYPES[dtype]) for x in (X, Wq, Wk, Wv)]
    return inputs, {"A": A, "C": np.full((TOKENS, CHANNELS), TOKENS - 1)}


def assert_bits(outputs: dict[str, Array], expected: dict[str, Array], dtype: str) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(
            outputs[name].astype(float), value.astype(DTYPES[dtype]).astype(float), name
        )
