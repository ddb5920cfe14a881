"""Traps that frameworks set: each adapter's guard fires on a faulty variant."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.targets.declaration import parse
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
    backend = importlib.import_module("qkvac.backends.numpy.adapter")
    profiles = importlib.import_module("qkvac.backends.numpy.profiles")
    monkeypatch.setattr(profiles, "product", np.matmul)
    backend.open().attention(*whole("float32"))
    with pytest.raises(ModeError, match="Q is float32 where the inputs are bfloat16"):
        backend.open().attention(*whole("bfloat16"))


def test_the_numpy_recorder_counts_other_spellings() -> None:
    backend = importlib.import_module("qkvac.backends.numpy.adapter")
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


# Traps: JAX -----------------------------------------------------------------------------------


def _jax_without_x64() -> tuple[str, str]:
    import jax

    backend = importlib.import_module("qkvac.backends.jax.adapter")

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
    importlib.import_module("qkvac.backends.jax.adapter").open("jit").attention(*normal("float32"))


def _jax_jit_refused() -> str:
    return refusal(ModeError, _jax_jit)


def test_jax_with_jit_disabled_is_refused() -> None:
    needs("jax")
    assert "jax_disable_jit is on" in alone(_jax_jit_refused, JAX_DISABLE_JIT="1")


def _jax_precision() -> str:
    import jax

    adapter = importlib.import_module("qkvac.backends.jax.adapter").open("eager")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    return refusal(ModeError, adapter.attention, *normal("float32"))


def test_jax_products_in_tensor_float_32_are_refused() -> None:
    needs("jax")
    assert "TensorFloat-32" in alone(_jax_precision)


def _jax_second_device() -> dict[str, Any]:
    import jax

    backend = importlib.import_module("qkvac.backends.jax.adapter")

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

    backend = importlib.import_module("qkvac.backends.jax.adapter")
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

    adapter = importlib.import_module("qkvac.backends.tensorflow.adapter").open(mode)
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
    backend = importlib.import_module("qkvac.backends.tensorflow.adapter")
    adapter = backend.open("function")
    adapter.attention(*whole("float32"))
    adapter.mode = "xla"
    return refusal(ModeError, adapter.attention, *whole("float32"))


def test_tensorflow_graphs_that_xla_does_not_compile_are_refused() -> None:
    needs("tensorflow")
    assert "not marked for XLA" in inside("tensorflow", _tensorflow_without_xla)


def _tensorflow_precision() -> str:
    import tensorflow as tf

    adapter = importlib.import_module("qkvac.backends.tensorflow.adapter").open("eager")
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

    backend = importlib.import_module("qkvac.backends.tensorflow.adapter")
    profiles = importlib.import_module("qkvac.backends.tensorflow.profiles")

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
    declared = parse(importlib.import_module("qkvac.backends.tensorflow.adapter").QKVAC).arithmetic(
        "float64", "eager", "cpu"
    )
    question = Question(case, "float64", Arithmetic.for_dtype("float64", declared))
    inputs = [question.inputs[name] for name in ("X", "Wq", "Wk", "Wv")]
    right = judge(question, inside("tensorflow", attention, "tensorflow", "eager", inputs))
    wrong = judge(question, inside("tensorflow", _tensorflow_cast, inputs))
    assert all(verdict.status == "passed" for verdict in right.values())
    assert wrong["A"].status == "failed"
    assert wrong["A"].clause == "local"
    assert wrong["A"].ratio > 1e4


def _tensorflow_second_device() -> dict[str, Any]:
    import tensorflow as tf

    backend = importlib.import_module("qkvac.backends.tensorflow.adapter")
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
