"""`mlx.core.fast.scaled_dot_product_attention` on the CPU.

It takes exactly four axes and returns C alone; causal and a mask share one argument. The softmax
is documented to be evaluated in float32 in every precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from qkvac.backends.adapter import Array, Library, ModeError, choose, installed, require

QKVAC: Final[dict[str, Any]] = {
    "name": "mlx",
    "requires": "mlx",
    "modes": ("eager",),
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention", "scaled_dot_product_attention_gradients"),
    "supports": (
        *("cross_length", "empty", "grouped_heads", "layouts"),
        *("masks", "scale", "value_width"),
    ),
    "deterministic": True,
    "arithmetic": {
        "softmax": "fused",
        "flushes": False,
        "float64": {"elementwise": "float32"},
    },
    "conventions": {"empty_row": "mean", "causal_alignment": "bottom-right"},
}


def scaled_dot_product_attention(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]."""
    import mlx.core

    if causal and mask is not None:
        raise NotImplementedError("causal is a mask of its own")
    if Q.ndim > 4:
        raise NotImplementedError("more than one batch axis")
    given = [x[None] if x.ndim == 3 else x for x in (Q, K, V)]
    C = mlx.core.fast.scaled_dot_product_attention(
        *given,
        scale=1 / math.sqrt(Q.shape[-1]) if scale is None else scale,
        mask="causal" if causal else mask,
    )
    return {"C": C[0] if Q.ndim == 3 else C}


def scaled_dot_product_attention_gradients(
    Q: Any, K: Any, V: Any, dC: Any, *, mask: Any = None, **keywords: Any
) -> dict[str, Any]:
    """Gradients of Q, K, V and an additive mask by that of C, from `mlx.core.vjp`."""
    import mlx.core

    additive = mask is not None and mask.dtype != mlx.core.bool_
    inputs = {"dQ": Q, "dK": K, "dV": V, **({"dmask": mask} if additive else {})}

    def last(*arrays: Any) -> Any:
        given = dict(zip(inputs, arrays, strict=True))
        return scaled_dot_product_attention(
            given["dQ"], given["dK"], given["dV"], mask=given.get("dmask", mask), **keywords
        )["C"]

    _, handed = mlx.core.vjp(last, [*inputs.values()], [dC])
    return dict(zip(inputs, handed, strict=True))


FUNCTIONS: Final = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "scaled_dot_product_attention_gradients": scaled_dot_product_attention_gradients,
}


def open(mode: str = "eager", device: str = "cpu") -> Mlx:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return Mlx(mode, device, FUNCTIONS)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that are tested: Metal has no float64, and other kernels."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("mlx", "mlx-cpu", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """The device that MLX computes on."""
    import mlx.core

    return {"default_device": str(mlx.core.default_device())}


class Mlx(Library):
    """MLX on its CPU stream; arrays are evaluated before a call returns."""

    def __init__(self, mode: str, device: str, functions: Any) -> None:
        super().__init__(mode, device, functions)
        import mlx.core

        mlx.core.set_default_device(mlx.core.cpu)

    def check_settings(self) -> None:
        import mlx.core

        if mlx.core.default_device() != mlx.core.Device(mlx.core.cpu):
            raise ModeError(f"MLX computes on {mlx.core.default_device()}, not on the CPU")

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import mlx.core

        results = self.functions[profile](*tensors, **keywords)
        mlx.core.eval(results)
        return results

    def to_framework(self, array: Array) -> Any:
        import mlx.core

        if array.dtype == ml_dtypes.bfloat16:
            bits = np.ascontiguousarray(array).view(np.uint16)
            return mlx.core.array(bits).view(mlx.core.bfloat16)
        dtype = mlx.core.float64 if array.dtype == np.float64 else None
        return mlx.core.array(np.ascontiguousarray(array), dtype=dtype)

    def to_numpy(self, tensor: Any) -> Array:
        import mlx.core

        if tensor.dtype == mlx.core.bfloat16:
            return np.array(tensor.view(mlx.core.uint16)).view(ml_dtypes.bfloat16)
        return np.array(tensor)

    def dtype_of(self, tensor: Any) -> str:
        name = str(tensor.dtype).rpartition(".")[2]
        return "bool" if name == "bool_" else name

    def device_of(self, tensor: Any) -> str:
        """MLX's arrays lie on no device; the one that computes is looked at before each call."""
        return self.device

    def evidence(self) -> dict[str, Any]:
        import mlx.core

        return {"calls": self.calls, "device": str(mlx.core.default_device())}
