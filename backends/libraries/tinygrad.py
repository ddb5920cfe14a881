"""`Tensor.scaled_dot_product_attention` of tinygrad on the CPU.

Mode `clang` is its device CPU, whose kernels clang compiles; mode `python` is its device PYTHON,
which interprets the same kernels without a compiler, a microsecond or ten for each operation, so
that large cases are left to the other mode. There is no argument for a scale, and a mask and
`is_causal` exclude each other. A dtype that the compiler has no type for is unsupported.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from qkvac.backends.adapter import (
    Array,
    Functions,
    Library,
    ModeError,
    UnavailableError,
    choose,
    installed,
    require,
)
from qkvac.backends.processor import architecture

QKVAC: Final[dict[str, Any]] = {
    "name": "tinygrad",
    "requires": "tinygrad",
    "modes": ("clang", "python"),
    "shapes": {"clang": "few", "python": "few"},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention", "scaled_dot_product_attention_gradients"),
    "supports": ("cross_length", "empty", "grouped_heads", "layouts", "masks", "value_width"),
    "deterministic": True,
    "arithmetic": {"softmax": "reciprocal", "flushes": True},
    "conventions": {"empty_row": "NaN"},
}

DEVICES: Final = {"clang": "CPU", "python": "PYTHON"}

TYPES: Final = {"bfloat16": "__bf16", "float16": "__fp16"}
"""What tinygrad's kernels call the dtypes that not every compiler has, nor for every processor."""

SMALL: Final = 20_000
"""Multiplications that mode `python` is asked for at most; they take seconds."""


def scaled_dot_product_attention(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]."""
    if scale is not None:
        raise NotImplementedError("no argument scale")
    if causal and mask is not None:
        raise NotImplementedError("attn_mask and is_causal exclude each other")
    if Q.device == "PYTHON" and Q.numel() * K.shape[-2] > SMALL:
        raise NotImplementedError("too large to be interpreted")
    grouped = Q.shape[-3] != K.shape[-3]
    return {
        "C": Q.scaled_dot_product_attention(
            K, V, attn_mask=mask, is_causal=causal, enable_gqa=grouped
        )
    }


def scaled_dot_product_attention_gradients(
    Q: Any, K: Any, V: Any, dC: Any, *, mask: Any = None, **keywords: Any
) -> dict[str, Any]:
    """Gradients of Q, K, V and an additive mask by that of C, from `Tensor.gradient`."""
    inputs = {"dQ": Q, "dK": K, "dV": V}
    if mask is not None and mask.is_floating_point():
        inputs["dmask"] = mask
    C = scaled_dot_product_attention(Q, K, V, mask=mask, **keywords)["C"]
    return dict(zip(inputs, C.gradient(*inputs.values(), gradient=dC), strict=True))


FUNCTIONS: Final[Functions] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "scaled_dot_product_attention_gradients": scaled_dot_product_attention_gradients,
}


def open(mode: str = "python", device: str = "cpu") -> Tinygrad:
    """The adapter. Raises ModeError, UnavailableError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    if reason := unavailable(mode):
        raise UnavailableError(reason)
    os.environ["DEV"] = DEVICES[mode]
    return Tinygrad(mode, device, FUNCTIONS)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    if mode == "clang" and shutil.which(compiler()) is None:
        return f"tinygrad compiles for the CPU with {compiler()}, which is not installed"
    return None


def compiler() -> str:
    """The compiler that tinygrad calls."""
    return os.environ.get("CC", "clang")


def lacking(compiler: str) -> dict[str, str]:
    """Dtypes that a compiler has no type for on this processor, and the reason in words."""
    processor = "-march=native" if architecture() == "X86_64" else "-mcpu=native"
    command = (compiler, "-c", "-x", "c", processor, "-", "-o", os.devnull)
    refused = [
        dtype
        for dtype, name in TYPES.items()
        if _run(*command, given=f"void copy({name} *x) {{ x[0] = x[1]; }}").returncode
    ]
    if not refused:
        return {}
    version = re.search(r"version (\d+)", _run(compiler, "--version").stdout)
    named = " ".join([os.path.basename(compiler), *(version.groups() if version else ())])
    return {dtype: f"{named} has no {TYPES[dtype]}" for dtype in refused}


def _run(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def devices() -> tuple[str, ...]:
    """Devices that are tested."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("tinygrad", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """tinygrad's device, and the compiler of its kernels."""
    return {"device": os.environ.get("DEV"), "compiler": compiler()}


class Tinygrad(Library):
    """Lazy tensors, realised before a call returns."""

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        super().__init__(mode, device, functions)
        self.lacking = lacking(compiler()) if mode == "clang" else {}

    def check_settings(self) -> None:
        from tinygrad import Device

        if DEVICES[self.mode] != Device.DEFAULT:
            raise ModeError(f"tinygrad computes on {Device.DEFAULT}, not on {DEVICES[self.mode]}")

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        results = self.functions[profile](*tensors, **keywords)
        for name, tensor in results.items():
            if tensor.realize().device != DEVICES[self.mode]:
                raise ModeError(f"{name} was computed on {tensor.device}")
        return results

    def to_framework(self, array: Array) -> Any:
        from tinygrad import Tensor, dtypes

        if array.dtype.name in self.lacking:
            raise NotImplementedError(self.lacking[array.dtype.name])
        plain = np.ascontiguousarray(array)
        if array.dtype == ml_dtypes.bfloat16:
            return Tensor(plain.view(np.uint16)).bitcast(dtypes.bfloat16)
        return Tensor(plain)

    def to_numpy(self, tensor: Any) -> Array:
        from tinygrad import dtypes

        if tensor.dtype == dtypes.bfloat16:
            bits: Array = tensor.bitcast(dtypes.uint16).numpy()
            return bits.view(ml_dtypes.bfloat16)
        return np.asarray(tensor.numpy())

    def dtype_of(self, tensor: Any) -> str:
        from tinygrad import dtypes

        names = {dtypes.bool: "bool", dtypes.bfloat16: "bfloat16", dtypes.float16: "float16"}
        return names.get(tensor.dtype, f"float{8 * tensor.dtype.itemsize}")

    def device_of(self, tensor: Any) -> str:
        return "cpu" if tensor.device in ("CPU", "PYTHON", "NPY") else str(tensor.device)

    def evidence(self) -> dict[str, Any]:
        return {"calls": self.calls, "device": DEVICES[self.mode]}
