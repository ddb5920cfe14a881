"""Self-attention in NumPy.

NumPy has no bfloat16 of its own, and the matrix product of ml_dtypes' bfloat16 comes back as
float32. So both 16-bit types are computed as frameworks compute them: products accumulate in
float32 and are rounded to the storage type, the softmax is evaluated in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkvac.backends.adapter import (
    SUPPORTS,
    Adapter,
    Budget,
    Contraction,
    ModeError,
    choose,
    installed,
    require,
)

QKVAC = {
    "name": "numpy",
    "requires": "numpy",
    "modes": ("eager",),
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "supports": SUPPORTS,
    "deterministic": True,
    "arithmetic": {"softmax": "shifted, divided", "flushes": False},
}


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> tuple[Any, ...]:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
    Ω = product(Q, K.swapaxes(-1, -2))
    A = softmax(Ω / Ω.dtype.type(math.sqrt(K.shape[-1])))
    return Q, K, V, Ω, A, product(A, V)


def product(left: Any, right: Any) -> Any:
    """left @ right, accumulated in `wide` and rounded to the dtype of `left`."""
    accumulator = wide(left.dtype)
    result = left.astype(accumulator, copy=False) @ right.astype(accumulator, copy=False)
    return result.astype(left.dtype, copy=False)


def softmax(scores: Any) -> Any:
    """Softmax of each row; an empty row has no maximum, hence the initial −∞."""
    logits = scores.astype(wide(scores.dtype), copy=False)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(scores.dtype, copy=False)


def wide(dtype: np.dtype) -> np.dtype:
    """The accumulator of a dtype: itself, but float32 for the 16-bit types."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def open(mode: str = "eager", device: str = "cpu") -> NumPy:  # noqa: A001
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return NumPy(mode, device)


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
    import os

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    limits = {
        name: os.environ[name]
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        if name in os.environ
    }
    return {"blas": f"{blas['name']} {blas['version']}", "threads": limits}


class NumPy(Adapter):
    """NumPy has one mode and one device, so there is little to prove."""

    def check_settings(self) -> None:
        return None

    def run(self, *tensors: Any) -> tuple[Any, ...]:
        with np.errstate(over="ignore", invalid="ignore"):
            return attention(*tensors)

    def to_framework(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_numpy(self, tensor: np.ndarray) -> np.ndarray:
        return tensor

    def dtype_of(self, tensor: np.ndarray) -> str:
        return tensor.dtype.name

    def device_of(self, tensor: np.ndarray) -> str:
        return "cpu"

    def evidence(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def budget(self, X: np.ndarray, Wq: np.ndarray, Wk: np.ndarray, Wv: np.ndarray) -> Budget:
        recorder = Recorder()
        recorder.run(attention, X, Wq, Wk, Wv)
        return Budget(tuple(recorder.contractions), recorder.transpositions)


class Recorder:
    """Runs a function on arrays that report every contraction and transposition made of them."""

    def __init__(self) -> None:
        self.contractions: list[Contraction] = []
        self.transpositions = 0

    def run(self, function: Any, *arrays: np.ndarray) -> None:
        """Call `function`. Raises ModeError if a result is no longer a recording array."""
        kind = type("Recorded", (Recorded,), {"recorder": self})
        for result in function(*(array.view(kind) for array in arrays)):
            if not isinstance(result, kind):
                raise ModeError("an operation escaped the recording")

    def contraction(self, operation: str, left: Any, right: Any, out: Any) -> None:
        self.contractions.append(Contraction(operation, left.shape, right.shape, out.shape))


PRODUCTS = ("matmul", "matvec", "vecmat", "vecdot", "dot", "inner", "vdot", "tensordot", "einsum")
TRANSPOSITIONS = ("transpose", "swapaxes", "moveaxis", "rollaxis", "matrix_transpose")


class Recorded(np.ndarray):
    """An array that tells its recorder what is done with it."""

    recorder: Recorder

    @property
    def T(self) -> Any:  # type: ignore[override]
        return self.transpose()

    @property
    def mT(self) -> Any:
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> Any:
        self.recorder.transpositions += 1
        return super().transpose(*axes)

    def swapaxes(self, first: Any, second: Any) -> Any:
        self.recorder.transpositions += 1
        return super().swapaxes(first, second)

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.dot(self, other, out)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [x.view(np.ndarray) if isinstance(x, Recorded) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc.__name__ in PRODUCTS:
            self.recorder.contraction(ufunc.__name__, *plain[:2], result)
        return result.view(type(self)) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        if function.__name__ in PRODUCTS:
            operands = [x for x in inputs if isinstance(x, np.ndarray)]
            plain = [x.view(np.ndarray) if isinstance(x, Recorded) else x for x in inputs]
            result = function(*plain, **options)
            self.recorder.contraction(function.__name__, *operands[:2], result)
            return result.view(type(self))
        if function.__name__ in TRANSPOSITIONS:
            self.recorder.transpositions += 1
            plain = [x.view(np.ndarray) if isinstance(x, Recorded) else x for x in inputs]
            return function(*plain, **options).view(type(self))
        return super().__array_function__(function, types, inputs, options)
