"""`torch.nn.attention.flex_attention`: masks and biases as functions of positions.

`eager` runs the unfused form, as PyTorch does without `torch.compile`; `compile` is what its users
are told to run. Both take four axes, so all leading axes are merged into one. A boolean mask
and the triangle become a block mask, an additive mask a function of the scores. Neither has a
backward pass on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from qkvac.backends.adapter import Adapter, UnavailableError, choose, require
from qkvac.backends.torch import adapter as framework
from qkvac.backends.torch.attention import FLEX, WIDE_INSIDE, CompiledTorchLibrary, TorchLibrary

QKVAC: Final[dict[str, Any]] = {
    "name": "torch-flex",
    "requires": "torch",
    "modes": ("eager", "compile"),
    "shapes": {"compile": "few"},
    "evidence": {
        "eager": {f"kernels.{FLEX}": "each call"},
        "compile": framework.PROOF,
    },
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention",),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {
        "softmax": "fused",
        "flushes": False,
        "bfloat16": {**WIDE_INSIDE, "flushes": True},
        "float16": WIDE_INSIDE,
    },
    "conventions": {"empty_row": "zeros", "causal_alignment": "top-left"},
}


def scaled_dot_product_attention(
    attend: Callable[..., Any],
    Q: Any,
    K: Any,
    V: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v] by `attend`, which is flex attention."""
    leading = Q.shape[:-3]
    count = math.prod(leading)
    sizes = (count, Q.shape[-3], Q.shape[-2], K.shape[-2])
    if mask is not None:
        mask = mask.expand(*leading, *sizes[1:]).reshape(sizes)
    Q, K, V = (tensor.reshape(count, *tensor.shape[-3:]) for tensor in (Q, K, V))
    C = attend(
        Q,
        K,
        V,
        score_mod=added(mask),
        block_mask=kept(mask, sizes, causal),
        scale=scale,
        enable_gqa=K.shape[-3] != Q.shape[-3],
    )
    return {"C": C.reshape(*leading, *C.shape[-3:])}


def added(mask: Any) -> Any:
    """The function that adds an additive mask[b, h, L, S] to a score; None for another mask."""
    if mask is None or not mask.is_floating_point():
        return None

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + mask[b, h, i, j]

    return score_mod


def kept(mask: Any, sizes: tuple[int, ...], causal: bool) -> Any:
    """The block mask of a boolean mask[b, h, L, S] and of the triangle; None without either."""
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    conditions = []
    if mask is not None and not mask.is_floating_point():
        conditions.append(lambda b, h, i, j: mask[b, h, i, j])
    if causal:
        conditions.append(lambda b, h, i, j: i >= j)
    if not conditions:
        return None
    return create_block_mask(and_masks(*conditions), *sizes, device="cpu")


environment = framework.environment
unavailable = framework.unavailable
versions = framework.versions


def devices() -> tuple[str, ...]:
    """Devices that the adapter knows."""
    return ("cpu",)


def open(mode: str = "eager", device: str = "cpu") -> Adapter:
    """The adapter. Raises ModeError, DeviceError and UnavailableError."""
    require(mode, QKVAC["modes"])
    if reason := unavailable(mode):
        raise UnavailableError(reason)
    choose(device, devices())
    return CompiledFlex(mode, device) if mode == "compile" else EagerFlex(mode, device)


class EagerFlex(TorchLibrary):
    """Without a compiler, where PyTorch materialises all scores."""

    def __init__(self, mode: str, device: str) -> None:
        from torch.nn.attention import flex_attention as module

        # What PyTorch says to set for debugging; else it traces each call anew, for a second.
        module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        function = partial(scaled_dot_product_attention, module.flex_attention)
        super().__init__(mode, device, {"scaled_dot_product_attention": function}, (FLEX,))


class CompiledFlex(CompiledTorchLibrary):
    """The fused kernel that Inductor generates; masks are made outside of it."""

    def __init__(self, mode: str, device: str) -> None:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        attend = torch.compile(flex_attention, backend=self.compile, fullgraph=True, dynamic=False)
        function = partial(scaled_dot_product_attention, attend)
        super().__init__(mode, device, {"scaled_dot_product_attention": function})
        self.compiled = dict(self.functions)

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import torch

        try:
            with torch.no_grad():
                return super().run(profile, tensors, keywords)
        except torch._inductor.exc.InductorError as error:
            if "supported in FlexAttention for CPU" not in str(error):
                raise
            raise NotImplementedError("its compiled form on the CPU has no float64") from error
