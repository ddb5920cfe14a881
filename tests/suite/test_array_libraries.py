"""MLX, tinygrad and the Array API: what they take, what they refuse, and that the named ran."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError
from qkvac.targets.packages import adapter as module
from qkvac.tests.suite.laboratory import DTYPES, Array, alone, inside, refusal

LIBRARIES = {
    "array-api-strict": ("array_api_strict", ("eager",)),
    "dask": ("dask", ("whole", "chunks")),
    "mlx": ("mlx", ("eager",)),
    "tinygrad": ("tinygrad", ("python", "clang")),
}
MODES = pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, (_, modes) in LIBRARIES.items() for mode in modes]
)


def _needs(name: str, mode: str) -> None:
    if importlib.util.find_spec(LIBRARIES[name][0]) is None:
        pytest.skip(f"{name} is not installed")
    if reason := module(name).unavailable(mode):
        pytest.skip(reason)


@cache
def _opened(name: str, mode: str) -> Any:
    return module(name).open(mode, "cpu")


def _call(name: str, mode: str, arrays: list[Array], keywords: dict[str, Any]) -> dict[str, Array]:
    outputs = _opened(name, mode).scaled_dot_product_attention(*arrays, **keywords)
    return {key: np.array(value) for key, value in outputs.items()}


def _refusal(name: str, mode: str, arrays: list[Array], keywords: dict[str, Any]) -> str:
    def call() -> None:
        _call(name, mode, arrays, keywords)

    return refusal(NotImplementedError, call)


def drawn(dtype: str = "float32") -> list[Array]:
    """Q [2, 4, 3, 5], K [2, 2, 6, 5], V [2, 2, 6, 2]: two query heads share keys."""
    draw = np.random.default_rng(0).standard_normal
    shapes = ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 2))
    return [draw(shape).astype(DTYPES[dtype]) for shape in shapes]


def expected(arrays: list[Array], keep: Array | None = None) -> Array:
    """C in float64."""
    Q, K, V = (array.astype(float) for array in arrays)
    K, V = (np.repeat(array, 2, axis=1) for array in (K, V))
    logits = Q @ K.swapaxes(-1, -2) / np.sqrt(5)
    if keep is not None:
        logits = np.where(keep, logits, -np.inf)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    C: Array = powers / powers.sum(axis=-1, keepdims=True) @ V
    return C


@MODES
def test_masks_and_the_triangle(name: str, mode: str) -> None:
    _needs(name, mode)
    keep = np.random.default_rng(1).random((3, 6)) < 0.6
    keep[:, 0] = True
    last = 3 if name == "mlx" else 0
    for keywords, kept in (
        ({}, None),
        ({"mask": keep}, keep),
        ({"mask": np.where(keep, np.float32(0), np.float32(-np.inf))}, keep),
        ({"causal": True}, np.tri(3, 6, last, dtype=bool)),
    ):
        found = inside(f"{name}/{mode}", _call, name, mode, drawn(), keywords)
        np.testing.assert_allclose(found["C"], expected(drawn(), kept), atol=1e-5)


def _lacking(name: str, mode: str) -> dict[str, str]:
    """Dtypes that the compiler of a mode has no type for, and why."""
    own = module(name)
    return own.lacking(own.compiler()) if (name, mode) == ("tinygrad", "clang") else {}


@MODES
def test_dtypes_are_kept(name: str, mode: str) -> None:
    _needs(name, mode)
    for dtype in module(name).QKVAC["dtypes"]:
        if reason := _lacking(name, mode).get(dtype):
            assert reason in inside(f"{name}/{mode}", _refusal, name, mode, drawn(dtype), {})
            continue
        found = inside(f"{name}/{mode}", _call, name, mode, drawn(dtype), {})
        assert found["C"].dtype == DTYPES[dtype]
        exact = expected(drawn(dtype))
        assert np.abs(found["C"].astype(float) - exact).max() < 16 * np.finfo("f2").eps


@pytest.mark.parametrize(
    ("name", "mode", "keywords", "reason"),
    [
        ("mlx", "eager", {"causal": True, "mask": np.ones((3, 6), bool)}, "mask of its own"),
        ("tinygrad", "python", {"causal": True, "mask": np.ones((3, 6), bool)}, "exclude"),
        ("tinygrad", "python", {"scale": 0.5}, "no argument scale"),
    ],
)
def test_what_cannot_be_said_is_refused(
    name: str, mode: str, keywords: dict[str, Any], reason: str
) -> None:
    _needs(name, mode)
    assert reason in inside(f"{name}/{mode}", _refusal, name, mode, drawn(), keywords)


def _chunks(mode: str) -> int:
    _call("dask", mode, drawn(), {})
    return int(_opened("dask", mode).evidence()["chunks"])


def test_dask_counts_its_chunks() -> None:
    _needs("dask", "whole")
    assert inside("dask/whole", _chunks, "whole") == 1
    assert inside("dask/chunks", _chunks, "chunks") > 1


def _escaped(name: str, mode: str) -> str:
    """An operation that leaves the library for NumPy."""
    opened = module(name).open(mode, "cpu")
    opened.functions = {"scaled_dot_product_attention": lambda Q, K, V: {"C": np.asarray(Q)}}
    return refusal(ModeError, opened.scaled_dot_product_attention, *drawn())


def test_results_of_another_library_are_noticed() -> None:
    for name, mode, text in (
        ("array-api-strict", "eager", "no array of the standard"),
        ("dask", "whole", "outside dask"),
    ):
        _needs(name, mode)
        assert text in inside(f"{name}/{mode}", _escaped, name, mode)


def _elsewhere() -> str:
    import mlx.core

    opened = module("mlx").open("eager", "cpu")
    x = np.ones((1, 1, 2, 2), np.float32)
    opened.scaled_dot_product_attention(x, x, x)
    original = mlx.core.default_device
    mlx.core.default_device = lambda: mlx.core.Device(mlx.core.gpu)
    try:
        return refusal(ModeError, opened.scaled_dot_product_attention, x, x, x)
    finally:
        mlx.core.default_device = original


def test_another_device_of_mlx_is_noticed() -> None:
    _needs("mlx", "eager")
    assert "not on the CPU" in alone(_elsewhere)


def _on_another_device() -> str:
    opened = module("tinygrad").open("python", "cpu")
    opened.mode = "clang"
    x = np.ones((1, 1, 2, 2), np.float32)
    return refusal(ModeError, opened.scaled_dot_product_attention, x, x, x)


def test_another_device_of_tinygrad_is_noticed() -> None:
    _needs("tinygrad", "python")
    assert "not on CPU" in alone(_on_another_device)


def test_without_clang_tinygrad_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in str(module("tinygrad").unavailable("clang"))
    assert module("tinygrad").unavailable("python") is None


def compiler(folder: Path, refuses: str, version: str = "clang version 14.0.6") -> str:
    """A compiler that says its version, and refuses programs with a word in them."""
    path = folder / "clang"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Debian {version}" && exit\n'
        f"! grep -q -e '{refuses}'\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("refuses", "version", "said"),
    [
        ("__bf16", "clang version 14.0.6", {"bfloat16": "clang 14 has no __bf16"}),
        ("__fp16", "clang", {"float16": "clang has no __fp16"}),
        ("no such word", "clang version 19.1.7", {}),
    ],
)
def test_a_compiler_is_asked_for_the_types_of_tinygrad(
    tmp_path: Path, refuses: str, version: str, said: dict[str, str]
) -> None:
    assert module("tinygrad").lacking(compiler(tmp_path, refuses, version)) == said


def _refused_of(path: str) -> str:
    os.environ["CC"] = path
    opened = module("tinygrad").open("clang", "cpu")
    x = np.ones((1, 1, 2, 2), DTYPES["bfloat16"])
    return refusal(NotImplementedError, opened.scaled_dot_product_attention, x, x, x)


def test_what_the_compiler_cannot_do_is_refused_with_its_reason(tmp_path: Path) -> None:
    _needs("tinygrad", "python")
    assert alone(_refused_of, compiler(tmp_path, "__bf16")) == "clang 14 has no __bf16"
