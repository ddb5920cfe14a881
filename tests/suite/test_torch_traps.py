"""Traps that PyTorch sets: the adapter's guard fires on a faulty variant of each."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError, keeps_subnormals
from qkvac.spec.inputs.layouts import apply
from qkvac.tests.suite.laboratory import Array, alone, inside, needs, normal, refusal, whole


def _torch_recompilations(limit: int, fullgraph: bool) -> dict[str, Any]:
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx as inductor

    backend = importlib.import_module("qkvac.backends.torch.adapter")
    inductor.compile_fx = lambda graph, examples: graph  # what Dynamo does is what matters
    adapter = backend.open("compile", "cpu")
    if limit:
        torch._dynamo.config.recompile_limit = limit
    if not fullgraph:
        function = adapter.functions["attention"]
        loose = torch.compile(function, backend=adapter.compile, dynamic=False)
        adapter.compiled["attention"] = loose
    for n in range(2, 12):
        adapter.attention(*normal("float64", n, 3, 2))
    evidence: dict[str, Any] = adapter.evidence()
    return evidence


def _torch_recompilations_refused(fullgraph: bool) -> str:
    return refusal(Exception, _torch_recompilations, 2, fullgraph)


def test_torch_compiles_more_signatures_than_dynamo_would_by_default() -> None:
    needs("torch", "compile")
    evidence = alone(_torch_recompilations, 0, True)
    assert evidence["graphs"] == evidence["runs"] == evidence["calls"] == 10


@pytest.mark.parametrize(
    ("fullgraph", "message"), [(False, "Dynamo gave up"), (True, "Hard failure due to fullgraph")]
)
def test_torch_running_eagerly_after_too_many_recompilations_is_refused(
    fullgraph: bool, message: str
) -> None:
    needs("torch", "compile")
    assert message in alone(_torch_recompilations_refused, fullgraph)


def _torch_compile() -> None:
    importlib.import_module("qkvac.backends.torch.adapter").open("compile").attention(
        *whole("float32")
    )


def test_torch_keeps_code_for_other_vector_widths_apart(tmp_path: Path) -> None:
    """Inductor would take it from its cache, and leave parts of the result unwritten."""
    needs("torch", "compile")
    default, narrow = (
        alone(_torch_cache, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), **variables)
        for variables in ({}, {"ATEN_CPU_CAPABILITY": "default"})
    )
    assert default[0] != narrow[0]
    for folder, used in (default, narrow):
        assert folder == used


def _torch_cache() -> tuple[str, str]:
    from torch._inductor.runtime.runtime_utils import cache_dir

    backend = importlib.import_module("qkvac.backends.torch.adapter")
    assert backend.separate_cache() == backend.separate_cache()
    return backend.separate_cache(), cache_dir()


def _torch_compile_refused() -> str:
    return refusal(ModeError, _torch_compile)


def test_torch_with_dynamo_switched_off_is_refused() -> None:
    needs("torch", "compile")
    assert "Dynamo gave up" in alone(_torch_compile_refused, TORCHDYNAMO_DISABLE="1")


def _torch_precision() -> tuple[str, str]:
    import torch

    torch.set_float32_matmul_precision("medium")
    adapter = importlib.import_module("qkvac.backends.torch.adapter").open("eager")
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    return precision, refusal(ModeError, adapter.attention, *whole("float32"))


def test_torch_products_in_tensor_float_32_are_refused() -> None:
    needs("torch")
    precision, refusal = alone(_torch_precision)
    assert precision == "highest"
    assert "TensorFloat-32" in refusal


def _torch_flushing() -> tuple[bool, int, str]:
    import torch

    backend = importlib.import_module("qkvac.backends.torch.adapter")

    class Flushing(backend.Torch):  # type: ignore[misc, name-defined]
        def run(self, *call: Any) -> Any:
            torch.set_flush_denormal(True)
            return super().run(*call)

    class Helpless(Flushing):
        def undo_flushing(self) -> None:
            return None

    adapter = Flushing("eager", "cpu")
    adapter.attention(*whole("float32"))
    kept = keeps_subnormals()
    helpless = Helpless("eager", "cpu")
    return kept, adapter.flushing_undone, refusal(ModeError, helpless.attention, *whole("float32"))


def test_flushing_left_on_a_thread_is_undone_or_refused() -> None:
    needs("torch")
    kept, undone, refusal = alone(_torch_flushing)
    assert (kept, undone) == (True, 1)
    assert "flushing subnormals" in refusal


def _torch_strides(inputs: Array) -> tuple[dict[str, Any], bool]:
    adapter = importlib.import_module("qkvac.backends.torch.adapter").open("eager")
    layouts = ("C", "F", "strided", "reversed", "readonly")
    arrays = {layout: apply(inputs, layout) for layout in layouts}
    arrays["stride0"] = np.broadcast_to(inputs[:1], inputs.shape)
    tensors = {layout: adapter.to_framework(array) for layout, array in arrays.items()}
    steps = {
        layout: (tuple(s // inputs.itemsize for s in arrays[layout].strides), tensor.stride())
        for layout, tensor in tensors.items()
    }
    shared = tensors["C"].data_ptr() == arrays["C"].ctypes.data
    return steps, shared


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_gets_strides_as_they_are(dtype: str) -> None:
    needs("torch")
    steps, shared = inside("torch", _torch_strides, normal(dtype, 6, 4, 3)[0])
    given, taken = steps.pop("reversed")
    assert min(given) < 0 < min(taken), "PyTorch has no negative strides"
    assert all(given == taken for given, taken in steps.values())
    assert steps["stride0"][1][0] == 0
    assert shared, "the framework reads the caller's memory"


def _torch_signatures() -> list[tuple[int, int]]:
    import torch._inductor.compile_fx as inductor

    backend = importlib.import_module("qkvac.backends.torch.adapter")
    inductor.compile_fx = lambda graph, examples: graph
    adapter, counts = backend.open("compile"), []
    Q, K, V = (np.ones((2, n, 4), np.float32) for n in (5, 7, 7))
    keep = np.tri(5, 7, dtype=bool)
    for keywords in (
        {"scale": 0.3},
        {"scale": 0.3},
        {"scale": 0.7},
        {"scale": None},
        {"mask": keep},
        {"mask": ~keep},
        {"mask": keep, "causal": True},
        {"mask": keep.astype(np.float32)},
    ):
        adapter.scaled_dot_product_attention(Q, K, V, **keywords)
        counts.append((adapter.graphs, adapter.runs))
    return counts


def test_torch_compiles_anew_for_other_attributes_but_not_for_other_values() -> None:
    needs("torch", "compile")
    counts = alone(_torch_signatures)
    assert counts == [(1, 1), (1, 2), (2, 3), (3, 4), (4, 5), (4, 6), (5, 7), (6, 8)]
