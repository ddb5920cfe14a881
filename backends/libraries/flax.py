"""Attention of flax.nnx: `dot_product_attention` and the layer `MultiHeadAttention`.

Both have two implementations. As they are called by default, nothing asks for the weights and
`jax.nn.dot_product_attention` computes (mode `fused`); with a module that is to keep the weights,
flax computes them itself (mode `weights`), and A is what the module kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from qkvac.backends.adapter import Library, ModeError, choose, installed, require
from qkvac.backends.jax.adapter import Jax, devices, environment

__all__ = ["QKVAC", "devices", "environment", "open", "unavailable", "versions"]

QKVAC: Final[dict[str, Any]] = {
    "name": "flax",
    "requires": ("flax", "jax"),
    "modes": ("fused", "weights"),
    "shapes": {"fused": "few", "weights": "few"},
    "evidence": {"fused": {"fused_calls": "each call"}, "weights": {"fused_calls": "none"}},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": ("scaled_dot_product_attention", "multi_head_attention"),
    "supports": (
        *("batches", "cross_length", "empty", "grouped_heads"),
        *("layouts", "masks", "value_width"),
    ),
    "deterministic": True,
    "arithmetic": {"softmax": "fused", "flushes": True},
    "conventions": {"empty_row": "mean"},
}


def scaled_dot_product_attention(
    Q: Any,
    K: Any,
    V: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
    weights: bool = False,
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d], V[…, g, S, v], and A if the weights are kept."""
    from flax import nnx

    if scale is not None:
        raise NotImplementedError("no argument scale")
    boolean = mask is not None and mask.dtype == bool
    keeper = nnx.Module() if weights else None
    C = nnx.dot_product_attention(
        *(x.swapaxes(-2, -3) for x in (Q, K, V)),
        bias=None if boolean else mask,
        mask=mask if boolean else None,
        module=keeper,
        is_causal=causal,
    )
    return {"A": kept(keeper), "C": C.swapaxes(-2, -3)}


def multi_head_attention(
    X: Any,
    Wq: Any,
    Wk: Any,
    Wv: Any,
    Wo: Any,
    *,
    heads: int,
    causal: bool = False,
    weights: bool = False,
) -> dict[str, Any]:
    """Q, K, V and Y of X[…, n, d] and weights [d, c] and [c, o], and A if the weights are kept."""
    made = layer(Wq, Wk, Wv, Wo, heads)
    Y = made(X, decode=False, is_causal=causal, sow_weights=weights)
    flat = (*X.shape[:-1], Wq.shape[1])
    projected = {
        "Q": made.query(X).reshape(flat),
        "K": made.key(X).reshape(flat),
        "V": made.value(X).reshape(flat),
    }
    return {**projected, "A": kept(made) if weights else None, "Y": Y}


def layer(Wq: Any, Wk: Any, Wv: Any, Wo: Any, heads: int) -> Any:
    """The layer with these weights; its kernels are [d, h, c/h] and [h, c/h, o]."""
    from flax import nnx

    width = Wq.shape[1]
    made = nnx.MultiHeadAttention(
        num_heads=heads,
        in_features=Wq.shape[0],
        qkv_features=width,
        out_features=Wo.shape[1],
        use_bias=False,
        param_dtype=Wq.dtype,
        rngs=nnx.Rngs(0),
    )
    for part, weight in ((made.query, Wq), (made.key, Wk), (made.value, Wv)):
        part.kernel[...] = weight.reshape(-1, heads, width // heads)
    made.out.kernel[...] = Wo.reshape(heads, width // heads, -1)
    return made


def kept(module: Any) -> Any:
    """The weights that a module kept in the last call, None without a module."""
    if module is None:
        return None
    found = getattr(module, "attention_weights", None)
    if found is None:
        raise ModeError("flax kept no weights: another implementation computed")
    return found.get_value()[-1]


FUNCTIONS: Final = (scaled_dot_product_attention, multi_head_attention)


def open(mode: str = "fused", device: str = "cpu") -> Flax:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    asked = {f.__name__: partial(f, weights=mode == "weights") for f in FUNCTIONS}
    return Flax(mode, device, asked)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("flax", "jax", "jaxlib", "numpy", "ml_dtypes")


@contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """How often flax calls the function of JAX meanwhile."""
    import jax

    calls = 0
    original = jax.nn.dot_product_attention

    def counted(*arrays: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*arrays, **options)

    jax.nn.dot_product_attention = counted
    try:
        yield lambda: calls
    finally:
        jax.nn.dot_product_attention = original


class Flax(Library, Jax):
    """Layers called as they are; which implementation ran is counted."""

    def __init__(self, mode: str, device: str, functions: Any) -> None:
        super().__init__(mode, device, functions)
        self.fused = 0

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        with watched() as count:
            results = super().run(profile, tensors, keywords)
        expected = 0 if self.mode == "weights" else 1
        if count() != expected:
            raise ModeError(
                f"jax.nn.dot_product_attention was called {count()} times, not {expected}"
            )
        self.fused += count()
        return results

    def evidence(self) -> dict[str, Any]:
        return super().evidence() | {"fused_calls": self.fused}
