"""What an adapter is: one framework in one mode on one device, and the proof that it ran so.

Adapters share this plumbing and no arithmetic. A framework is imported inside functions only, so
that an adapter's declaration can be read where the framework is missing, and so that the process
that judges never loads one.

An adapter's module has a function for each profile that it offers, written as a user of the
framework would write it. `Adapter.answer` does the rest alike for all of them: it looks whether
settings that change results are still as `open` left them, hands the arrays over, refuses a tensor
whose dtype or device silently changed, runs with the mode's proof, and brings the results back in
the dtype that the framework gave them.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, ClassVar, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

Functions: TypeAlias = "Mapping[str, Callable[..., Mapping[str, Any]]]"
"""By profile: a function of the framework's tensors, with the profile's signature.

It returns the quantities that it has by name; None stands for one that it has not.
"""


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
    """The operations that one call really performed."""

    contractions: tuple[Contraction, ...]
    transpositions: int
    """Transposing operations and transpose flags."""


class Adapter(ABC):
    """One framework in one mode on one device."""

    keeps_dtype: ClassVar[bool] = True
    """Whether a result of another dtype means that the mode did not run as it should."""

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        self.mode = mode
        self.device = device
        self.functions = functions
        self.calls = 0
        self.flushing_undone = 0
        for profile in functions:
            setattr(self, profile, partial(self.answer, profile))

    def answer(self, profile: str, *arrays: Array | None, **keywords: Any) -> dict[str, Array]:
        """The quantities that the function of a profile returns, in the framework's own dtypes.

        Arguments are those of the profile's function, as arrays; an absent one is None. Raises
        ModeError where the mode, device or dtype was not honoured.
        """
        self.check_settings()
        with self._floating_point_restored():
            results = self.run(profile, *self.given(arrays, keywords))
            outputs = {
                name: self._received(tensor)
                for name, tensor in results.items()
                if tensor is not None
            }
        self.calls += 1
        asked = next(a.dtype for a in arrays if a is not None and a.dtype.kind not in "bi")
        for name, output in outputs.items():
            if self.keeps_dtype and output.dtype != asked:
                raise ModeError(f"{name} is {output.dtype.name} where the inputs are {asked.name}")
        return outputs

    def subset(
        self, profile: str, wanted: Sequence[str], *arrays: Array | None, **keywords: Any
    ) -> dict[str, Array]:
        """The gradients of the inputs that are named in `wanted`, and of no other.

        Raises NotImplementedError where a function computes all gradients at once.
        """
        if "wanted" not in inspect.signature(self.functions[profile]).parameters:
            raise NotImplementedError("all gradients come at once")
        return self.answer(profile, *arrays, **keywords, wanted=tuple(wanted))

    def given(
        self, arrays: Sequence[Array | None], keywords: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call as the framework's tensors."""
        tensors = [None if array is None else self._given(array) for array in arrays]
        named = {
            name: self._given(value) if isinstance(value, np.ndarray) else value
            for name, value in keywords.items()
        }
        return tensors, named

    @abstractmethod
    def check_settings(self) -> None:
        """Raise ModeError if a setting that changes results is not as `open` left it."""

    @abstractmethod
    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The framework's tensors by quantity; raise ModeError if the mode did not run."""

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
    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        """The operations recorded while the function of a profile runs on the same arguments."""

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


class Library(Adapter):
    """Attention as a library offers it; its dtypes are judged, and it records no operations."""

    keeps_dtype = False

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        raise NotImplementedError("the library's operations are not recorded")


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
