"""Trainable modules in NumPy: plain parameters, and linear layers."""

from __future__ import annotations

from typing import Any, Final

from qkvac.backends.adapter import choose, require
from qkvac.backends.module_forms import PROFILES, Form, Trained, no_biases
from qkvac.backends.numpy import adapter as framework
from qkvac.backends.numpy import modules

QKVAC: Final[dict[str, Any]] = {
    "name": "numpy-modules",
    "requires": "numpy",
    "modes": ("parameters", "linear"),
    "evidence": {"parameters": {"modules": "some"}, "linear": {"modules": "some"}},
    "shapes": {"parameters": "few", "linear": "few"},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": PROFILES,
    "supports": ("batches", "empty", "layouts"),
    "deterministic": True,
    "arithmetic": {"softmax": "shifted, divided", "flushes": False},
}

devices = framework.devices
environment = framework.environment
unavailable = framework.unavailable
versions = framework.versions


def form(mode: str) -> Form:
    """The modules of a mode."""

    def make(d: int, c: int, *, biases: str, causal: bool, like: Any) -> Any:
        if mode == "linear":
            return modules.LinearSelfAttention(d, c, biases=biases, causal=causal, dtype=like.dtype)
        no_biases(biases)
        return modules.SelfAttention(d, c, causal=causal, dtype=like.dtype)

    def load(module: Any, weights: Any) -> Any:
        modules.load(module, weights)
        return module

    def descend(module: Any, X: Any, T: Any, rate: float) -> Any:
        return module, modules.descend(module, X, T, rate)

    name = "LinearSelfAttention" if mode == "linear" else "SelfAttention"
    return Form(
        *(name, make, load, lambda module, X: module.forward(X)),
        *(modules.gradients, descend, modules.checkpoint, modules.turned),
    )


def open(mode: str = "parameters", device: str = "cpu") -> NumPyModules:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return NumPyModules(mode, device, form(mode))


class NumPyModules(Trained, framework.NumPy):
    """Modules in NumPy, called as they are."""
