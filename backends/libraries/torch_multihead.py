"""`torch.nn.MultiheadAttention`: with its weights, without them, and in its inference fast path.

The layer has one width for what it takes, holds and returns, so it can do d = c = o only. `fast`
needs biases, which are 0 here, an even number of heads and no gradients; `weights` and `fused` have
no biases, which keeps them off that path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qkvac.backends.adapter import Adapter, choose, require
from qkvac.backends.torch import adapter as framework
from qkvac.backends.torch.attention import FUSED, MATH, NATIVE, SOFTMAX, TorchLibrary
from qkvac.backends.torch.gradients import with_gradients

QKVAC: Final[dict[str, Any]] = {
    "name": "torch-multihead",
    "requires": "torch",
    "modes": ("weights", "fused", "fast"),
    "evidence": {
        "weights": {f"kernels.{SOFTMAX}": "each call"},
        # The layer leaves the choice of a kernel to the function.
        "fused": {"kernels._s[ac]*": "each call"},
        "fast": {f"kernels.{NATIVE}": "each call"},
    },
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("multi_head_attention", "multi_head_attention_gradients"),
    "supports": ("batches", "empty", "layouts"),
    "deterministic": True,
    "arithmetic": {"softmax": "fused", "flushes": False, "bfloat16": {"flushes": True}},
}


def layer(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, heads: int, *, bias: bool
) -> Callable[..., Any]:
    """The layer without dropout; it holds weights as (c, d), the first three in one matrix.

    Raises NotImplementedError where the widths differ.
    """
    import torch

    width = X.shape[-1]
    if not width == Wq.shape[-1] == Wo.shape[-1]:
        raise NotImplementedError("one embed_dim is d, c and o")
    made = torch.nn.MultiheadAttention(
        width, heads, bias=bias, batch_first=True, device=X.device, dtype=X.dtype
    )
    parameters = {
        "in_proj_weight": torch.cat([Wq.mT, Wk.mT, Wv.mT]),
        "out_proj.weight": Wo.mT.contiguous(),
    }

    def call(*tensors: Any, **keywords: Any) -> Any:
        return torch.func.functional_call(made.eval(), parameters, tensors, keywords)

    return call


def weights(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """A[…, h, n, n] and Y[…, n, o] of X[…, n, d]."""
    tokens = X.flatten(0, -3) if X.dim() > 3 else X
    Y, A = layer(X, Wq, Wk, Wv, Wo, heads, bias=False)(
        tokens,
        tokens,
        tokens,
        attn_mask=triangle(X) if causal else None,
        average_attn_weights=False,
    )
    return {"A": A.reshape(*X.shape[:-2], *A.shape[-3:]), "Y": Y.reshape(*X.shape)}


def fused(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Y alone, for which the layer calls `scaled_dot_product_attention`."""
    tokens = X.flatten(0, -3) if X.dim() > 3 else X
    Y, _ = layer(X, Wq, Wk, Wv, Wo, heads, bias=False)(
        tokens,
        tokens,
        tokens,
        need_weights=False,
        attn_mask=triangle(X) if causal else None,
        is_causal=causal,
    )
    return {"Y": Y.reshape(*X.shape)}


def fast(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """A and Y; the layer takes tokens with one batch axis here, and a boolean mask."""
    import torch

    if torch.is_grad_enabled():
        raise NotImplementedError("the fast path has no gradients")
    if heads % 2:
        raise NotImplementedError("the fast path needs an even number of heads")
    tokens = X.flatten(0, -3) if X.dim() > 2 else X[None]
    Y, A = layer(X, Wq, Wk, Wv, Wo, heads, bias=True)(
        tokens,
        tokens,
        tokens,
        attn_mask=triangle(X).isinf() if causal else None,
        average_attn_weights=False,
    )
    return {"A": A.reshape(*X.shape[:-2], *A.shape[-3:]), "Y": Y.reshape(*X.shape)}


def triangle(X: Any) -> Any:
    """PyTorch's own causal mask: −inf above the diagonal, 0 elsewhere."""
    import torch

    return torch.nn.Transformer.generate_square_subsequent_mask(
        X.shape[-2], device=X.device, dtype=X.dtype
    )


FUNCTIONS: Final = {"weights": weights, "fused": fused, "fast": fast}
"""The function of `multi_head_attention` in each mode."""

DISPATCHED: Final = {"weights": (SOFTMAX,), "fused": (FUSED, MATH), "fast": (NATIVE,)}

environment = framework.environment
versions = framework.versions


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that the adapter knows the kernels of."""
    return ("cpu",)


def open(mode: str = "weights", device: str = "cpu") -> Adapter:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    functions = with_gradients({"multi_head_attention": FUNCTIONS[mode]})
    return TorchLibrary(mode, device, functions, DISPATCHED[mode])
