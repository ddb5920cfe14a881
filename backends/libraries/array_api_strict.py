"""Self-attention in array-api-strict, the standard's minimal implementation, over NumPy.

It refuses whatever the standard does not promise, so that what passes here is what a library of
the standard has to be able to do. Its only real dtypes are float64 and float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import Array, Library, ModeError, choose, installed, require
from qkvac.backends.array_api import WRITTEN, functions

QKVAC: Final[dict[str, Any]] = {
    "name": "array-api-strict",
    "requires": "array-api-strict",
    "modes": ("eager",),
    "dtypes": ("float64", "float32"),
    "devices": ("cpu",),
    "profiles": tuple(WRITTEN),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {"softmax": "shifted, divided", "flushes": False},
}


def open(mode: str = "eager", device: str = "cpu") -> Strict:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    import array_api_strict

    return Strict(mode, device, functions(array_api_strict))


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that it computes on; its further ones are names without hardware."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("array-api-strict", "numpy")


def environment() -> dict[str, Any]:
    """The standard's version, and the flags that decide what is refused."""
    import array_api_strict

    flags = array_api_strict.get_array_api_strict_flags()
    return {name: str(value) for name, value in flags.items()}


class Strict(Library):
    """Arrays of the standard: anything else that an operation returns is noticed."""

    def check_settings(self) -> None:
        import array_api_strict

        flags = array_api_strict.get_array_api_strict_flags()
        if not (flags["boolean_indexing"] and flags["data_dependent_shapes"]):
            raise ModeError("array-api-strict is set to refuse parts of the standard")

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import array_api_strict

        with np.errstate(all="ignore"):
            results = self.functions[profile](*tensors, **keywords)
        for name, result in results.items():
            namespace = getattr(result, "__array_namespace__", lambda: None)()
            if namespace is not array_api_strict:
                raise ModeError(f"{name} is no array of the standard")
        return results

    def to_framework(self, array: Array) -> Any:
        import array_api_strict

        return array_api_strict.asarray(array)

    def to_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def dtype_of(self, tensor: Any) -> str:
        return str(np.asarray(tensor).dtype.name)

    def device_of(self, tensor: Any) -> str:
        import array_api_strict

        return "cpu" if tensor.device == array_api_strict.Device("CPU_DEVICE") else "another"

    def evidence(self) -> dict[str, Any]:
        import array_api_strict

        return {"calls": self.calls, "standard": array_api_strict.__array_api_version__}
