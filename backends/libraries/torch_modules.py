"""Trainable modules of PyTorch: plain `nn.Parameter`s, and `nn.Linear` layers."""

from __future__ import annotations

from typing import Any, Final

from qkvac.backends.adapter import choose, require
from qkvac.backends.module_forms import PROFILES, Form, Trained, no_biases
from qkvac.backends.torch import adapter as framework

QKVAC: Final[dict[str, Any]] = {
    "name": "torch-modules",
    "requires": "torch",
    "modes": ("parameters", "linear"),
    "evidence": {"parameters": {"modules": "some"}, "linear": {"modules": "some"}},
    "shapes": {"parameters": "few", "linear": "few"},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", *framework.ACCELERATORS),
    "profiles": PROFILES,
    "supports": ("batches", "empty", "layouts"),
    "deterministic": True,
    "arithmetic": {
        "softmax": "reciprocal",
        "flushes": False,
        # oneDNN multiplies bfloat16 with instructions that treat subnormals as zero.
        "bfloat16": {"flushes": True},
        **{kind: {"softmax": "fused", "flushes": True} for kind in framework.ACCELERATORS},
    },
}

devices = framework.devices
environment = framework.environment
versions = framework.versions


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def form(mode: str) -> Form:
    """The modules of a mode."""
    from qkvac.backends.torch import modules

    def make(d: int, c: int, *, biases: str, causal: bool, like: Any) -> Any:
        options = {"causal": causal, "dtype": like.dtype, "device": like.device}
        if mode == "linear":
            return modules.LinearSelfAttention(d, c, biases=biases, **options)
        no_biases(biases)
        return modules.SelfAttention(d, c, **options)

    def load(module: Any, weights: Any) -> Any:
        modules.load(module, weights)
        return module

    def descend(module: Any, X: Any, T: Any, rate: float) -> Any:
        return module, modules.descend(module, X, T, rate)

    return Form(
        "LinearSelfAttention" if mode == "linear" else "SelfAttention",
        make,
        load,
        lambda module, X: module(X),
        modules.gradients,
        descend,
        modules.checkpoint,
    )


def open(mode: str = "parameters", device: str = "cpu") -> TorchModules:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return TorchModules(mode, device, form(mode))


class TorchModules(Trained, framework.Torch):
    """Modules in PyTorch, called as they are."""
