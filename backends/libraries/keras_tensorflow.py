"""Keras on TensorFlow: its function, its layer, and its layer with scores."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from qkvac.backends import keras_attention
from qkvac.backends.adapter import Adapter, choose, require
from qkvac.backends.tensorflow import adapter as framework

QKVAC: Final[dict[str, Any]] = keras_attention.declaration(
    "tensorflow",
    shapes={"layer": "few", "scores": "few"},
    arithmetic={"softmax": "fused", "flushes": False},
)

devices = keras_attention.devices
environment = framework.environment
unavailable = keras_attention.unavailable
versions = partial(keras_attention.versions, "tensorflow")


def open(mode: str = "ops", device: str = "cpu") -> Adapter:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return KerasTensorFlow(mode, device)


class KerasTensorFlow(keras_attention.Keras, framework.TensorFlow):
    """Keras with tensors of TensorFlow's."""

    backend = "tensorflow"
