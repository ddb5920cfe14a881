"""Trainable modules in JAX: a pytree of parameters, and linear layers of Flax and Equinox."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from qkvac.backends.adapter import UnavailableError, choose, installed, require
from qkvac.backends.jax import adapter as framework
from qkvac.backends.module_forms import PROFILES, Form, Trained, no_biases

QKVAC: Final[dict[str, Any]] = {
    "name": "jax-modules",
    "requires": "jax",
    "modes": ("parameters", "linear-flax", "linear-equinox"),
    "shapes": {"parameters": "few", "linear-flax": "few", "linear-equinox": "few"},
    "evidence": {
        "parameters": {"modules": "some"},
        "linear-flax": {"modules": "some"},
        "linear-equinox": {"modules": "some"},
    },
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": PROFILES,
    "supports": ("batches", "empty", "layouts"),
    "deterministic": True,
    "arithmetic": framework.ARITHMETIC,
}

devices = framework.devices
environment = framework.environment


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return framework.versions() | installed("flax", "equinox")


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    library = mode.removeprefix("linear-")
    if library != mode and find_spec(library) is None:
        return f"{library} is not installed"
    return None


def form(mode: str) -> Form:
    """The modules of a mode."""
    return {"parameters": _parameters, "linear-flax": _flax, "linear-equinox": _equinox}[mode]()


def _parameters() -> Form:
    """A pytree; whether it is causal is kept beside it."""
    import jax

    from qkvac.backends.jax import modules

    def make(d: int, c: int, *, biases: str, causal: bool, like: Any) -> Any:
        no_biases(biases)
        return modules.initial(jax.random.key(0), d, c, like.dtype), causal

    def descend(module: Any, X: Any, T: Any, rate: float) -> Any:
        parameters, found = modules.descend(module[0], X, T, rate)
        return (parameters, module[1]), found

    return Form(
        "dict",
        make,
        lambda module, weights: (modules.checked(module[0], weights), module[1]),
        lambda module, X: modules.self_attention(module[0], X, module[1]),
        lambda module, X, dC: modules.gradients(module[0], X, dC, module[1]),
        descend,
        lambda module: module[0],
    )


def _flax() -> Form:
    from flax import nnx

    from qkvac.backends.jax import flax_modules as modules

    def make(d: int, c: int, *, biases: str, causal: bool, like: Any) -> Any:
        return modules.LinearSelfAttention(
            d, c, biases=biases, causal=causal, dtype=like.dtype, rngs=nnx.Rngs(0)
        )

    def load(module: Any, weights: Any) -> Any:
        modules.load(module, weights)
        return module

    def descend(module: Any, X: Any, T: Any, rate: float) -> Any:
        return module, modules.descend(module, X, T, rate)

    return Form(
        *("flax.nnx.Linear", make, load, lambda module, X: module(X)),
        *(modules.gradients, descend, modules.checkpoint),
    )


def _equinox() -> Form:
    import jax

    from qkvac.backends.jax import equinox_modules as modules

    def make(d: int, c: int, *, biases: str, causal: bool, like: Any) -> Any:
        key = jax.random.key(0)
        return modules.LinearSelfAttention(
            d, c, biases=biases, causal=causal, dtype=like.dtype, key=key
        )

    return Form(
        *("equinox.nn.Linear", make, modules.loaded, lambda module, X: module(X)),
        *(modules.gradients, modules.descend, modules.checkpoint),
    )


def open(mode: str = "parameters", device: str = "cpu") -> JaxModules:
    """The adapter. Raises ModeError, DeviceError and UnavailableError."""
    require(mode, QKVAC["modes"])
    if reason := unavailable(mode):
        raise UnavailableError(reason)
    choose(device, devices())
    return JaxModules(mode, device, form(mode))


class JaxModules(Trained, framework.Jax):
    """Modules in JAX, called as they are."""
