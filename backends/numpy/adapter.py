"""Self-attention in NumPy: in matrix form, and token by token in the mode `loop`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import (
    Adapter,
    Array,
    Budget,
    Contraction,
    Functions,
    ModeError,
    choose,
    installed,
    require,
)
from qkvac.backends.numpy.gradients import FUNCTIONS as GRADIENTS
from qkvac.backends.numpy.loop import FUNCTIONS as PER_TOKEN
from qkvac.backends.numpy.loop_gradients import FUNCTIONS as PER_TOKEN_GRADIENTS
from qkvac.backends.numpy.profiles import FUNCTIONS as FORWARD

FORMS: Final[Mapping[str, Functions]] = {
    "eager": {**FORWARD, **GRADIENTS},
    "loop": {**PER_TOKEN, **PER_TOKEN_GRADIENTS},
}

QKVAC: Final[dict[str, Any]] = {
    "name": "numpy",
    "requires": "numpy",
    "modes": ("eager", "loop"),
    "evidence": {
        "eager": {"runs.[pg]*": "each call"},
        "loop": {"runs.loop*": "each call"},
    },
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": tuple(FORMS["eager"]),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {"softmax": "shifted, divided", "flushes": False},
}


def open(mode: str = "eager", device: str = "cpu") -> NumPy:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return NumPy(mode, device, FORMS[mode])


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that NumPy computes on."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """The BLAS library and the threads that it may use."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    limits = {
        name: os.environ[name]
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        if name in os.environ
    }
    return {"blas": f"{blas['name']} {blas['version']}", "threads": limits}


class NumPy(Adapter):
    """NumPy runs what it is given as it is; the modes differ in the functions."""

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        super().__init__(mode, device, functions)
        self.runs = Counter[str]()

    def check_settings(self) -> None:
        return None

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        function = self.functions[profile]
        self.runs[getattr(function, "__module__", "").rpartition(".")[2]] += 1
        with np.errstate(over="ignore", invalid="ignore"):
            return function(*tensors, **keywords)

    def to_framework(self, array: Array) -> Array:
        return array

    def to_numpy(self, tensor: Array) -> Array:
        return tensor

    def dtype_of(self, tensor: Array) -> str:
        return str(tensor.dtype.name)

    def device_of(self, tensor: Array) -> str:
        return "cpu"

    def evidence(self) -> dict[str, Any]:
        return {"calls": self.calls, "runs": dict(self.runs)}

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        recorder = Recorder()
        recorder.run(partial(self.functions[profile], **keywords), *arrays)
        return Budget(tuple(recorder.contractions), recorder.transpositions)


PRODUCTS = ("matmul", "matvec", "vecmat", "vecdot", "dot", "inner", "vdot", "tensordot", "einsum")
TRANSPOSITIONS = ("transpose", "swapaxes", "moveaxis", "rollaxis", "matrix_transpose")


class Recorder:
    """Runs a function on arrays that report every contraction and transposition made of them."""

    def __init__(self) -> None:
        self.contractions: list[Contraction] = []
        self.transpositions = 0

    def run(self, function: Callable[..., Mapping[str, Any]], *arrays: Array | None) -> None:
        """Call `function`. Raises ModeError if a result is no longer a recording array."""
        kind = type("Recorded", (Recorded,), {"recorder": self})
        given: list[Any] = [None if array is None else array.view(kind) for array in arrays]
        for result in function(*given).values():
            if not isinstance(result, kind):
                raise ModeError("an operation escaped the recording")

    def note(self, name: str, operands: Iterable[Any], result: Any) -> None:
        """Count an operation, if it is a contraction or a transposition."""
        if name in PRODUCTS:
            left, right = [x.shape for x in operands if isinstance(x, np.ndarray)][:2]
            self.contractions.append(Contraction(name, left, right, np.shape(result)))
        self.transpositions += name in TRANSPOSITIONS


class Recorded(np.ndarray):
    """An array that tells its recorder what is done with it."""

    recorder: Recorder

    @property
    def T(self) -> Any:  # noqa: N802
        return self.transpose()

    @property
    def mT(self) -> Any:  # noqa: N802
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> Any:
        self.recorder.transpositions += 1
        return super().transpose(*axes)

    def swapaxes(self, *axes: Any) -> Any:
        self.recorder.transpositions += 1
        return super().swapaxes(*axes)

    def dot(self, *operands: Any) -> Any:
        return np.dot(self, *operands)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        operands = [plain(x) for x in inputs]
        result = getattr(ufunc, method)(*operands, **options)
        self.recorder.note(ufunc.__name__, operands, result)
        return self.like(result)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        operands = [plain(x) for x in inputs]
        result = function(*operands, **options)
        self.recorder.note(function.__name__, operands, result)
        return self.like(result)

    def like(self, result: Any) -> Any:
        """A result that goes on recording."""
        return result.view(type(self)) if isinstance(result, np.ndarray) else result


def plain(value: Any) -> Any:
    """The value without its recorder, inside a sequence too."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value.view(np.ndarray) if isinstance(value, Recorded) else value
