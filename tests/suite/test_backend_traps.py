"""Traps that frameworks set: each adapter's guard fires on a faulty variant."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError, keeps_subnormals
from qkvac.declaration import parse
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases import cases
from qkvac.spec.layouts import apply
from qkvac.spec.verdict import Question, judge
from qkvac.tests.suite.laboratory import (
    Array,
    alone,
    attention,
    inside,
    needs,
    normal,
    refusal,
    whole,
)

# Traps: NumPy ---------------------------------------------------------------------------------


def test_numpy_products_of_bfloat16_that_stay_float32_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = importlib.import_module("qkvac.backends.numpy")
    profiles = importlib.import_module("qkvac.backends.numpy_profiles")
    monkeypatch.setattr(profiles, "product", np.matmul)
    backend.open().attention(*whole("float32"))
    with pytest.raises(ModeError, match="Q is float32 where the inputs are bfloat16"):
        backend.open().attention(*whole("bfloat16"))


def test_the_numpy_recorder_counts_other_spellings() -> None:
    backend = importlib.import_module("qkvac.backends.numpy")
    x = np.ones((3, 3))
    recorder = backend.Recorder()
    recorder.run(
        lambda x: {
            "subscripts": np.einsum("ij,jk->ik", x, x),
            "dot": np.dot(x, x).dot(x),
            "axes": np.tensordot(x, x, 1),
            "turned": np.transpose(x)
            + x.T
            + x.transpose()
            + x.swapaxes(0, 1)
            + np.swapaxes(x, 0, 1),
        },
        x,
    )
    assert [c.operation for c in recorder.contractions] == ["einsum", "dot", "dot", "tensordot"]
    assert recorder.transpositions == 5
    with pytest.raises(ModeError, match="escaped"):
        backend.Recorder().run(lambda x: {"Q": np.array(x) @ np.array(x)}, x)


# Traps: PyTorch -------------------------------------------------------------------------------


def _torch_recompilations(limit: int, fullgraph: bool) -> dict[str, Any]:
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx as inductor

    backend = importlib.import_module("qkvac.backends.torch")
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
    importlib.import_module("qkvac.backends.torch").open("compile").attention(*whole("float32"))


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

    backend = importlib.import_module("qkvac.backends.torch")
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
    adapter = importlib.import_module("qkvac.backends.torch").open("eager")
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

    backend = importlib.import_module("qkvac.backends.torch")

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
    adapter = importlib.import_module("qkvac.backends.torch").open("eager")
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


# Traps: JAX -----------------------------------------------------------------------------------


def _jax_without_x64() -> tuple[str, str]:
    import jax

    backend = importlib.import_module("qkvac.backends.jax")

    class Unguarded(backend.Jax):  # type: ignore[misc, name-defined]
        def check_settings(self) -> None:
            return None

    adapter = backend.open("eager")
    unguarded = Unguarded("eager", "cpu", backend.FUNCTIONS)
    jax.config.update("jax_enable_x64", False)
    return (
        refusal(ModeError, adapter.attention, *normal("float64")),
        refusal(ModeError, unguarded.attention, *normal("float64")),
    )


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_jax_float64_that_becomes_float32_is_refused() -> None:
    needs("jax")
    setting, tensor = alone(_jax_without_x64)
    assert "jax_enable_x64 is off" in setting
    assert tensor == "float64 input became float32 in the framework"


def _jax_jit() -> None:
    importlib.import_module("qkvac.backends.jax").open("jit").attention(*normal("float32"))


def _jax_jit_refused() -> str:
    return refusal(ModeError, _jax_jit)


def test_jax_with_jit_disabled_is_refused() -> None:
    needs("jax")
    assert "jax_disable_jit is on" in alone(_jax_jit_refused, JAX_DISABLE_JIT="1")


def _jax_precision() -> str:
    import jax

    adapter = importlib.import_module("qkvac.backends.jax").open("eager")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    return refusal(ModeError, adapter.attention, *normal("float32"))


def test_jax_products_in_tensor_float_32_are_refused() -> None:
    needs("jax")
    assert "TensorFloat-32" in alone(_jax_precision)


def _jax_second_device() -> dict[str, Any]:
    import jax

    backend = importlib.import_module("qkvac.backends.jax")

    class Misplaced(backend.Jax):  # type: ignore[misc, name-defined]
        def run(self, *call: Any) -> Any:
            results = super().run(*call).items()
            return {name: jax.device_put(x, jax.devices()[0]) for name, x in results}

    found: dict[str, Any] = {"devices": backend.devices(), "environment": backend.environment()}
    for mode in ("eager", "jit"):
        adapter = backend.open(mode, "cpu:1")
        outputs = adapter.attention(*whole("float32"))
        found[mode] = {key: np.array(x) for key, x in outputs.items()}
        found[f"{mode} on"] = adapter.evidence()["device"]
    misplaced = Misplaced("eager", "cpu:1", backend.FUNCTIONS)
    found["refusal"] = refusal(ModeError, misplaced.attention, *whole("float32"))
    return found


@cache
def jax_second_device() -> dict[str, Any]:
    needs("jax")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "NPROC": "7", "XLA_FLAGS": flags}
    found: dict[str, Any] = alone(_jax_second_device, **variables)
    return found


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_jax_computes_on_a_second_device(mode: str) -> None:
    found = jax_second_device()
    assert found["devices"] == ("cpu", "cpu:1")
    assert found[f"{mode} on"] == "cpu:1"
    for key, value in inside("jax", attention, "jax", mode, whole("float32")).items():
        np.testing.assert_array_equal(found[mode][key], value, key)


def test_jax_results_on_another_device_are_refused() -> None:
    assert jax_second_device()["refusal"] == "a tensor lies on cpu, not on cpu:1"


def test_jax_takes_gpu_memory_only_as_needed_and_one_thread() -> None:
    environment = jax_second_device()["environment"]
    assert environment["preallocate"] == "false"
    assert environment["threads"] == "1"


def _jax_budget_of(spelling: str) -> tuple[int, int]:
    import jax
    import jax.numpy as jnp

    backend = importlib.import_module("qkvac.backends.jax")
    functions: dict[str, Callable[..., Any]] = {
        "X W.T": lambda x, w: x @ w.T,
        "einsum over last axes": lambda x, w: jnp.einsum("ij,kj->ik", x, w),
        "inside jit": jax.jit(lambda x, w: x @ w.T),
        "both transposed": lambda x, w: x.T @ w.T,
    }
    traced = jax.make_jaxpr(functions[spelling])(jnp.ones((4, 4)), jnp.ones((4, 4)))
    budget = backend.count(traced.jaxpr)
    return len(budget.contractions), budget.transpositions


@pytest.mark.parametrize(
    ("spelling", "transpositions"),
    [("X W.T", 1), ("einsum over last axes", 1), ("inside jit", 1), ("both transposed", 2)],
)
def test_the_jaxpr_is_counted(spelling: str, transpositions: int) -> None:
    needs("jax")
    assert inside("jax", _jax_budget_of, spelling) == (1, transpositions)


# Traps: TensorFlow ----------------------------------------------------------------------------


def _tensorflow_eagerly(mode: str) -> str:
    import tensorflow as tf

    adapter = importlib.import_module("qkvac.backends.tensorflow").open(mode)
    tf.config.run_functions_eagerly(True)
    try:
        return refusal(ModeError, adapter.attention, *whole("float32"))
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("mode", ["function", "xla"])
def test_tensorflow_functions_run_eagerly_are_refused(mode: str) -> None:
    needs("tensorflow")
    refusal = inside("tensorflow", _tensorflow_eagerly, mode)
    assert refusal == "Python ran 1 times for 0 traced graphs"


def _tensorflow_without_xla() -> str:
    backend = importlib.import_module("qkvac.backends.tensorflow")
    adapter = backend.open("function")
    adapter.attention(*whole("float32"))
    adapter.mode = "xla"
    return refusal(ModeError, adapter.attention, *whole("float32"))


def test_tensorflow_graphs_that_xla_does_not_compile_are_refused() -> None:
    needs("tensorflow")
    assert "not marked for XLA" in inside("tensorflow", _tensorflow_without_xla)


def _tensorflow_precision() -> str:
    import tensorflow as tf

    adapter = importlib.import_module("qkvac.backends.tensorflow").open("eager")
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        return refusal(ModeError, adapter.attention, *whole("float32"))
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)


def test_tensorflow_products_in_tensor_float_32_are_refused() -> None:
    needs("tensorflow")
    assert "TensorFloat-32" in inside("tensorflow", _tensorflow_precision)


def _tensorflow_cast(inputs: list[Array]) -> dict[str, Array]:
    """The scale as a Python float through `tf.cast`, which goes through float32."""
    import tensorflow as tf

    backend = importlib.import_module("qkvac.backends.tensorflow")
    profiles = importlib.import_module("qkvac.backends.tensorflow_profiles")

    class Cast(backend.TensorFlow):  # type: ignore[misc, name-defined]
        def run(self, *call: Any) -> Any:
            right = super().run(*call)
            Ω, scale = right["Ω"], math.sqrt(right["K"].shape[-1])
            A = profiles.softmax(Ω / tf.cast(scale, Ω.dtype))
            return {**right, "A": A, "C": A @ right["V"]}

    outputs = Cast("eager", "cpu", backend.FUNCTIONS).attention(*inputs)
    return {key: np.array(value) for key, value in outputs.items()}


def test_tensorflow_scale_through_float32_is_found() -> None:
    needs("tensorflow")
    case = next(case for case in cases() if case.id == "attention/normal/33x20x7")
    declared = parse(importlib.import_module("qkvac.backends.tensorflow").QKVAC).arithmetic(
        "float64", "eager", "cpu"
    )
    question = Question(case, "float64", Arithmetic.for_dtype("float64", declared))
    inputs = [question.inputs[name] for name in ("X", "Wq", "Wk", "Wv")]
    right = judge(question, inside("tensorflow", attention, "tensorflow", "eager", inputs))
    wrong = judge(question, inside("tensorflow", _tensorflow_cast, inputs))
    assert all(verdict.status == "passed" for verdict in right.values())
    assert wrong["A"].status == "failed"
    assert wrong["A"].clause == "L"
    assert wrong["A"].ratio > 1e4


def _tensorflow_second_device() -> dict[str, Any]:
    import tensorflow as tf

    backend = importlib.import_module("qkvac.backends.tensorflow")
    halves = 2 * [tf.config.LogicalDeviceConfiguration()]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)

    class Misplaced(backend.TensorFlow):  # type: ignore[misc, name-defined]
        def run(self, *call: Any) -> Any:
            with tf.device("CPU:0"):
                return {name: tf.identity(x) for name, x in super().run(*call).items()}

    found: dict[str, Any] = {"devices": backend.devices(), "environment": backend.environment()}
    for mode in ("eager", "function", "xla"):
        outputs = backend.open(mode, "cpu:1").attention(*whole("float32"))
        found[mode] = {key: np.array(x) for key, x in outputs.items()}
    misplaced = Misplaced("eager", "cpu:1", backend.FUNCTIONS)
    found["refusal"] = refusal(ModeError, misplaced.attention, *whole("float32"))
    return found


@cache
def tensorflow_second_device() -> dict[str, Any]:
    needs("tensorflow")
    found: dict[str, Any] = alone(_tensorflow_second_device, TF_FORCE_GPU_ALLOW_GROWTH="false")
    return found


@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_tensorflow_computes_on_a_second_device(mode: str) -> None:
    found = tensorflow_second_device()
    assert found["devices"] == ("cpu", "cpu:1")
    for key, value in inside("tensorflow", attention, "tensorflow", mode, whole("float32")).items():
        np.testing.assert_array_equal(found[mode][key], value, key)


def test_tensorflow_results_on_another_device_are_refused() -> None:
    assert tensorflow_second_device()["refusal"] == "a tensor lies on cpu, not on cpu:1"


def test_tensorflow_takes_gpu_memory_only_as_needed() -> None:
    assert tensorflow_second_device()["environment"]["memory_growth"] == "true"
