"""Keras on JAX: its function, its layer, and its layer with scores."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from qkvac.backends import keras_attention
from qkvac.backends.adapter import Adapter, choose, require
from qkvac.backends.jax import adapter as framework

QKVAC: Final[dict[str, Any]] = keras_attention.declaration(
    "jax",
    shapes=dict.fromkeys(keras_attention.MODES, "few"),
    arithmetic={"softmax": "fused", "flushes": False},
)

devices = keras_attention.devices
environment = framework.environment
unavailable = keras_attention.unavailable
versions = partial(keras_attention.versions, "jax")


def open(mode: str = "ops", device: str = "cpu") -> Adapter:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return KerasJax(mode, device)


class KerasJax(keras_attention.Keras, framework.Jax):
    """Keras with tensors of JAX's."""

    backend = "jax"
