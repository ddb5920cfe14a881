"""Trainable modules in TensorFlow: `tf.Variable`s, and Keras' `Dense` layers."""

from __future__ import annotations

from typing import Any, Final

from qkvac.backends import keras_attention
from qkvac.backends.adapter import choose, installed, require
from qkvac.backends.module_forms import PROFILES, Form, Trained, no_biases
from qkvac.backends.tensorflow import adapter as framework

QKVAC: Final[dict[str, Any]] = {
    "name": "tensorflow-modules",
    "requires": "tensorflow",
    "modes": ("parameters", "linear"),
    "evidence": {"parameters": {"modules": "some"}, "linear": {"modules": "some"}},
    "shapes": {"parameters": "few", "linear": "few"},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": PROFILES,
    "supports": ("batches", "empty", "layouts"),
    "deterministic": True,
    "arithmetic": {**framework.ARITHMETIC, "softmax": "fused"},
}

devices = framework.devices
environment = framework.environment
unavailable = framework.unavailable


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return framework.versions() | installed("keras")


def form(mode: str) -> Form:
    """The modules of a mode."""
    import tensorflow as tf

    from qkvac.backends.tensorflow import modules

    def make(d: int, c: int, *, biases: str, causal: bool, like: Any) -> Any:
        if mode == "linear":
            return modules.LinearSelfAttention(
                d, c, biases=biases, causal=causal, dtype=like.dtype.name
            )
        no_biases(biases)
        return modules.SelfAttention(d, c, causal=causal, dtype=like.dtype)

    def load(module: Any, weights: Any) -> Any:
        modules.load(module, weights)
        return module

    def descend(module: Any, X: Any, T: Any, rate: float) -> Any:
        return module, modules.descend(module, X, T, rate)

    return Form(
        "keras.layers.Dense" if mode == "linear" else "tf.Variable",
        make,
        load,
        lambda module, X: module(X),
        modules.gradients,
        descend,
        modules.checkpoint,
        tf.linalg.matrix_transpose,
    )


def open(mode: str = "parameters", device: str = "cpu") -> TensorFlowModules:
    """The adapter. Raises DeviceError, and ModeError where Keras runs on another framework."""
    require(mode, QKVAC["modes"])
    # Whoever imports TensorFlow gets Keras on what the environment names.
    keras_attention.select("tensorflow")
    choose(device, devices())
    return TensorFlowModules(mode, device, form(mode))


class TensorFlowModules(Trained, framework.TensorFlow):
    """Modules in TensorFlow, called as they are."""
