"""`torch.nn.functional.scaled_dot_product_attention`, with each kernel that it has on the CPU.

The function documents that a mask and `is_causal` exclude each other. `default` and `math` get
the arrays with the axes that they have; the fused kernel takes four axes only, so `flash` and
`compile` get all leading axes as one. The weights are not returned.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from qkvac.backends.adapter import Adapter, UnavailableError, choose, require
from qkvac.backends.torch import adapter as framework
from qkvac.backends.torch.attention import (
    FUSED,
    MATH,
    WIDE_INSIDE,
    CompiledTorchLibrary,
    TorchLibrary,
)
from qkvac.backends.torch.gradients import with_gradients

QKVAC: Final[dict[str, Any]] = {
    "name": "torch-sdpa",
    "requires": "torch",
    "modes": ("default", "math", "flash", "compile"),
    "shapes": {"compile": "few"},
    "evidence": {
        "math": {f"kernels.{MATH}": "each call"},
        "flash": {f"kernels.{FUSED}": "each call"},
        "compile": framework.PROOF,
    },
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention", "scaled_dot_product_attention_gradients"),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {
        "softmax": "fused",
        "flushes": False,
        # The fused kernel takes the keys in blocks of 512.
        "blocks": 512,
        "bfloat16": {**WIDE_INSIDE, "flushes": True},
        "float16": WIDE_INSIDE,
    },
    "conventions": {"empty_row": "zeros", "causal_alignment": "top-left"},
}


def scaled_dot_product_attention(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]; query heads share keys where g < h."""
    from torch.nn import functional

    if causal and mask is not None:
        raise NotImplementedError("attn_mask and is_causal exclude each other")
    grouped = K.shape[-3] != Q.shape[-3]
    C = functional.scaled_dot_product_attention(
        Q, K, V, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return {"C": C}


def with_four_axes(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """The same, with all leading axes merged into one."""
    leading = Q.shape[:-3]
    count = math.prod(leading)
    if mask is not None:
        mask = mask.reshape((1,) * (Q.dim() - mask.dim()) + mask.shape)
        mask = mask.expand(*leading, *mask.shape[-3:]).reshape(count, *mask.shape[-3:])
    Q, K, V = (tensor.reshape(count, *tensor.shape[-3:]) for tensor in (Q, K, V))
    C = scaled_dot_product_attention(Q, K, V, causal=causal, mask=mask, scale=scale)["C"]
    return {"C": C.reshape(*leading, *C.shape[-3:])}


FUNCTIONS: Final = with_gradients({"scaled_dot_product_attention": scaled_dot_product_attention})
FOUR_AXES: Final = with_gradients({"scaled_dot_product_attention": with_four_axes})

environment = framework.environment
unavailable = framework.unavailable
versions = framework.versions


def devices() -> tuple[str, ...]:
    """Devices that the adapter knows the kernels of."""
    return ("cpu",)


def open(mode: str = "default", device: str = "cpu") -> Adapter:
    """The adapter. Raises ModeError, DeviceError and UnavailableError."""
    require(mode, QKVAC["modes"])
    if reason := unavailable(mode):
        raise UnavailableError(reason)
    choose(device, devices())
    if mode == "compile":
        return CompiledTorchLibrary(mode, device, FOUR_AXES)
    functions = FOUR_AXES if mode == "flash" else FUNCTIONS
    kernels = {"math": (MATH,), "flash": (FUSED,)}.get(mode, (MATH, FUSED))
    return TorchSDPA(mode, device, functions, kernels)


class TorchSDPA(TorchLibrary):
    """The function with one kernel selected; `default` leaves the choice to PyTorch."""

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}.get(self.mode)
        with (
            warnings.catch_warnings(record=True) as said,
            nullcontext() if chosen is None else sdpa_kernel(chosen),
        ):
            warnings.simplefilter("always")
            try:
                return super().run(profile, tensors, keywords)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                reasons = [str(warning.message) for warning in said if "requires" in str(warning)]
                reason = reasons[0].partition(". ")[0] if reasons else f"no {self.mode} kernel"
                raise NotImplementedError(reason) from error
