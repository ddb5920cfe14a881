"""The ONNX operator `Attention` on onnx's reference evaluator, by version of the operator set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import Array, Library, ModeError, choose, installed, require
from qkvac.backends.onnx_attention import (
    INPUTS,
    MODES,
    check_mask,
    check_scale,
    model,
    with_batch,
)

QKVAC: Final[dict[str, Any]] = {
    "name": "onnx-reference",
    "requires": "onnx",
    "modes": tuple(MODES),
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention",),
    "supports": (
        *("cross_length", "empty", "grouped_heads", "layouts"),
        *("masks", "scale", "value_width"),
    ),
    "deterministic": True,
    "arithmetic": {"softmax": "shifted, divided", "flushes": False},
}


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
    run = evaluator(
        tuple(x.shape for x in given),
        tuple(x.dtype.name for x in given),
        opset,
        causal=causal,
        scale=scale,
    )
    C, A = run.run(None, dict(zip(INPUTS, given, strict=False)))
    return {"A": A[0], "C": C[0]} if Q.ndim == 3 else {"A": A, "C": C}


@cache
def evaluator(*signature: Any, **attributes: Any) -> Any:
    """What runs the model of a signature."""
    from onnx.reference import ReferenceEvaluator

    made = ReferenceEvaluator(model(*signature, **attributes))
    if made.opsets != {"": signature[-1]}:
        raise ModeError(f"the evaluator runs operator sets {made.opsets}")
    return made


def open(mode: str = "opset24", device: str = "cpu") -> Reference:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    function = partial(scaled_dot_product_attention, opset=MODES[mode])
    return Reference(mode, device, {"scaled_dot_product_attention": function})


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that it computes on, with NumPy."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("onnx", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """Nothing that changes results."""
    return {}


class Reference(Library):
    """NumPy, as the reference evaluator calls it."""

    def check_settings(self) -> None:
        return None

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        with np.errstate(all="ignore"):
            return self.functions[profile](*tensors, **keywords)

    def to_framework(self, array: Array) -> Array:
        return array

    def to_numpy(self, tensor: Array) -> Array:
        return tensor

    def dtype_of(self, tensor: Array) -> str:
        return str(tensor.dtype.name)

    def device_of(self, tensor: Array) -> str:
        return "cpu"

    def evidence(self) -> dict[str, Any]:
        return {"calls": self.calls, "opset": MODES[self.mode]}
