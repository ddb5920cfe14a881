"""The ONNX operator `Attention` on onnxruntime's CPU provider, by version of the operator set.

float32 and float16 have a kernel; a float64 model is taken apart into other operators, and there
are none for bfloat16. A session is made for each signature, which takes a millisecond or two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import (
    Array,
    Library,
    ModeError,
    choose,
    installed,
    require,
    threads,
)
from qkvac.backends.onnx_attention import (
    INPUTS,
    MODES,
    check_mask,
    check_scale,
    model,
    with_batch,
)

QKVAC: Final[dict[str, Any]] = {
    "name": "onnxruntime",
    "requires": ("onnxruntime", "onnx"),
    "modes": tuple(MODES),
    "evidence": {mode: {"sessions": "some"} for mode in MODES},
    "dtypes": ("float64", "float32", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention",),
    "supports": (
        *("cross_length", "grouped_heads", "layouts"),
        *("masks", "scale", "value_width"),
    ),
    "deterministic": True,
    "arithmetic": {"softmax": "fused", "flushes": False},
}

PROVIDER: Final = "CPUExecutionProvider"


def scaled_dot_product_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    causal: bool = False,
    mask: Array | None = None,
    scale: float | None = None,
    opset: int,
) -> dict[str, Array]:
    """A and C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]."""
    check_scale(scale, Q.dtype.name)
    check_mask(mask, K.shape[-2], opset)
    given = [with_batch(Q), with_batch(K), with_batch(V), *([] if mask is None else [mask])]
    C, A = session(
        tuple(x.shape for x in given),
        tuple(x.dtype.name for x in given),
        opset,
        causal=causal,
        scale=scale,
    ).run(None, dict(zip(INPUTS, given, strict=False)))
    return {"A": A[0], "C": C[0]} if Q.ndim == 3 else {"A": A, "C": C}


@cache
def session(*signature: Any, **attributes: Any) -> Any:
    """The session for the model of a signature."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = threads()
    data = model(*signature, **attributes).SerializeToString()
    made = onnxruntime.InferenceSession(data, options, providers=[PROVIDER])
    if made.get_providers() != [PROVIDER]:
        raise ModeError(f"onnxruntime runs the model on {', '.join(made.get_providers())}")
    return made


def open(mode: str = "opset24", device: str = "cpu") -> Runtime:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    function = partial(scaled_dot_product_attention, opset=MODES[mode])
    return Runtime(mode, device, {"scaled_dot_product_attention": function})


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that are tested: other providers have other kernels."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("onnxruntime", "onnx", "numpy")


def environment() -> dict[str, Any]:
    """What onnxruntime was built with, and its threads."""
    import onnxruntime

    return {"build": onnxruntime.get_build_info(), "threads": threads()}


class Runtime(Library):
    """A session for each signature, on NumPy's arrays."""

    def check_settings(self) -> None:
        return None

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return self.functions[profile](*tensors, **keywords)

    def to_framework(self, array: Array) -> Array:
        return np.ascontiguousarray(array)

    def to_numpy(self, tensor: Array) -> Array:
        return tensor

    def dtype_of(self, tensor: Array) -> str:
        return str(tensor.dtype.name)

    def device_of(self, tensor: Array) -> str:
        return "cpu"

    def evidence(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "opset": MODES[self.mode],
            "provider": PROVIDER,
            "sessions": session.cache_info().currsize,
        }
