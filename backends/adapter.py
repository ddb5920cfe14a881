"""What an adapter is: one framework in one mode on one device, and the proof that it ran so.

Adapters share this plumbing and no arithmetic. A framework is imported inside functions only, so
that an adapter's declaration can be read where the framework is missing, and so that the process
that judges never loads one.

`attention` does the same for every framework: it looks whether settings that change results are
still as `open` left them, hands the arrays over, refuses a tensor whose dtype or device silently
changed, runs with the mode's proof, and brings the results back in the dtype that the framework
gave them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

QUANTITIES: Final = ("Q", "K", "V", "Ω", "A", "C")
"""What `attention` returns, in this order."""

SUPPORTS: Final = ("batches", "empty", "layouts")
"""What every adapter takes besides plain matrices."""


class ModeError(RuntimeError):
    """The framework did not run as the mode, the device or the dtype says."""


class DeviceError(ModeError):
    """The framework has no such device."""


class UnavailableError(ModeError):
    """The mode cannot run on this machine."""

    status = "skipped"
    """What the cells of the mode are, where the others' are `error`."""


@dataclass(frozen=True)
class Contraction:
    """A matrix product as it was recorded; shapes are of the factors after any transposition."""

    operation: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]


@dataclass(frozen=True)
class Budget:
    """The operations that one call of `attention` really performed."""

    contractions: tuple[Contraction, ...]
    transpositions: int
    """Transposing operations and transpose flags."""


class Adapter(ABC):
    """One framework in one mode on one device."""

    def __init__(self, mode: str, device: str) -> None:
        self.mode = mode
        self.device = device
        self.calls = 0
        self.flushing_undone = 0

    def attention(self, X: Array, Wq: Array, Wk: Array, Wv: Array) -> dict[str, Array]:
        """Q, K, V, Ω, A and C of X[…, n, d] and weights [d, c], in the framework's own dtypes.

        Raises ModeError where the mode, device or dtype was not honoured.
        """
        self.check_settings()
        with self._floating_point_restored():
            results = self.run(*map(self._given, (X, Wq, Wk, Wv)))
            outputs = dict(zip(QUANTITIES, map(self._received, results), strict=True))
        self.calls += 1
        for name, output in outputs.items():
            if output.dtype != X.dtype:
                raise ModeError(
                    f"{name} is {output.dtype.name} where the inputs are {X.dtype.name}"
                )
        return outputs

    @abstractmethod
    def check_settings(self) -> None:
        """Raise ModeError if a setting that changes results is not as `open` left it."""

    @abstractmethod
    def run(self, *tensors: Any) -> Sequence[Any]:
        """The framework's tensors of QUANTITIES; raise ModeError if the mode did not run."""

    @abstractmethod
    def to_framework(self, array: Array) -> Any:
        """The array as a tensor on the device, with its layout where the framework has layouts."""

    @abstractmethod
    def to_numpy(self, tensor: Any) -> Array:
        """The tensor as an array of the same dtype."""

    @abstractmethod
    def dtype_of(self, tensor: Any) -> str:
        """The dtype's name, as NumPy spells it."""

    @abstractmethod
    def device_of(self, tensor: Any) -> str:
        """The device's name, as `devices` spells it."""

    @abstractmethod
    def evidence(self) -> dict[str, Any]:
        """Facts that show how the calls so far ran."""

    @abstractmethod
    def budget(self, X: Array, Wq: Array, Wk: Array, Wv: Array) -> Budget:
        """The operations recorded while the same `attention` runs."""

    def _given(self, array: Array) -> Any:
        tensor = self.to_framework(array)
        if self.dtype_of(tensor) != array.dtype.name:
            raise ModeError(
                f"{array.dtype.name} input became {self.dtype_of(tensor)} in the framework"
            )
        self._check_device(tensor)
        return tensor

    def _received(self, tensor: Any) -> Array:
        self._check_device(tensor)
        array = self.to_numpy(tensor)
        if (array.dtype.name, array.shape) != (self.dtype_of(tensor), tuple(tensor.shape)):
            raise ModeError(
                f"a {self.dtype_of(tensor)}{list(tensor.shape)} result was read as "
                f"{array.dtype.name}{list(array.shape)}"
            )
        return array

    def _check_device(self, tensor: Any) -> None:
        if self.device_of(tensor) != self.device:
            raise ModeError(f"a tensor lies on {self.device_of(tensor)}, not on {self.device}")

    @contextmanager
    def _floating_point_restored(self) -> Iterator[None]:
        """Leave the calling thread's subnormals as they were; a framework may set flushing."""
        kept = keeps_subnormals()
        yield
        if kept and not keeps_subnormals():
            self.flushing_undone += 1
            self.undo_flushing()
            if not keeps_subnormals():
                raise ModeError("the framework left this thread flushing subnormals to zero")

    def undo_flushing(self) -> None:
        """Make the calling thread keep subnormals again, where the framework can."""
        return None


def keeps_subnormals() -> bool:
    """Whether the calling thread's arithmetic keeps subnormals, as input and as result."""
    smallest, normal = np.float64(2.0**-1074), np.float64(2.0**-1022)
    return bool(smallest * np.float64(1) != 0 and normal * np.float64(0.5) != 0)


def threads() -> int:
    """How many threads a framework may use: QKVAC_THREADS, by default 1."""
    return int(os.environ.get("QKVAC_THREADS", "1"))


def require(mode: str, modes: Iterable[str]) -> None:
    """Raise ModeError for a mode that the adapter does not declare."""
    if mode not in modes:
        raise ModeError(f"unknown mode {mode!r}; this backend has {', '.join(modes)}")


def choose(device: str, found: Iterable[str]) -> None:
    """Raise DeviceError for a device that the framework does not find."""
    if device not in (found := tuple(found)):
        raise DeviceError(f"no device {device!r} here; the framework finds {', '.join(found)}")


def installed(*distributions: str) -> dict[str, str]:
    """Versions of those distributions that are installed, without importing any."""
    found = {}
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
