"""Self-attention in dask.array: lazily, in one chunk or in many.

In mode `chunks` every axis of every input is cut in two, so that sums, maxima and products are
put together from parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import Array, Library, ModeError, choose, installed, require
from qkvac.backends.array_api import WRITTEN, functions

QKVAC: Final[dict[str, Any]] = {
    "name": "dask",
    "requires": "dask",
    "modes": ("whole", "chunks"),
    "shapes": {"chunks": "few"},
    "dtypes": ("float64", "float32"),
    "devices": ("cpu",),
    "profiles": tuple(WRITTEN),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {"softmax": "shifted, divided", "flushes": False},
}


def open(mode: str = "whole", device: str = "cpu") -> Dask:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    import dask.array

    return Dask(mode, device, functions(dask.array))


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that it computes on, with NumPy's arrays as chunks."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("dask", "numpy")


def environment() -> dict[str, Any]:
    """The scheduler that runs the graph."""
    return {"scheduler": "synchronous"}


class Dask(Library):
    """Graphs of NumPy operations, run on the calling thread."""

    def __init__(self, mode: str, device: str, functions: Any) -> None:
        super().__init__(mode, device, functions)
        self.tasks = 0
        self.chunks = 0

    def check_settings(self) -> None:
        return None

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import dask.array

        self.chunks = max(
            (tensor.npartitions for tensor in tensors if tensor is not None), default=0
        )
        with np.errstate(all="ignore"):
            lazy = self.functions[profile](*tensors, **keywords)
            for name, tensor in lazy.items():
                if not isinstance(tensor, dask.array.Array):
                    raise ModeError(f"{name} was computed outside dask")
            self.tasks = max(len(tensor.__dask_graph__()) for tensor in lazy.values())
            computed = dask.compute(*lazy.values(), scheduler="synchronous")
        return dict(zip(lazy, computed, strict=True))

    def to_framework(self, array: Array) -> Any:
        import dask.array

        halves = tuple(-(-size // 2) for size in array.shape)
        return dask.array.from_array(array, chunks=halves if self.mode == "chunks" else -1)

    def to_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def device_of(self, tensor: Any) -> str:
        return "cpu"

    def evidence(self) -> dict[str, Any]:
        return {"calls": self.calls, "chunks": self.chunks, "tasks": self.tasks}
