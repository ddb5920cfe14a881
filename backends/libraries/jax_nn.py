"""`jax.nn.dot_product_attention`, eager and compiled by `jit`.

It returns C alone. Its arrays are [B, T, N, H], and there is at most one batch axis; values are
as wide as keys. A boolean mask and one that is added to the scores are different arguments.
"""

from __future__ import annotations

from typing import Any, Final

from packaging.version import Version

from qkvac.backends.adapter import Library, UnavailableError, choose, installed, require
from qkvac.backends.jax.adapter import PROOF, Jax, Jit, devices, environment, versions
from qkvac.backends.jax.gradients import with_gradients

__all__ = ["FUNCTIONS", "QKVAC", "devices", "environment", "open", "unavailable", "versions"]

QKVAC: Final[dict[str, Any]] = {
    "name": "jax-nn",
    "requires": "jax",
    "modes": ("eager", "jit"),
    "shapes": {"eager": "few", "jit": "few"},
    "evidence": {"jit": PROOF},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": ("scaled_dot_product_attention", "scaled_dot_product_attention_gradients"),
    "supports": ("cross_length", "empty", "grouped_heads", "layouts", "masks", "scale"),
    "deterministic": True,
    "arithmetic": {"softmax": "fused", "flushes": True},
    "conventions": {"empty_row": "mean"},
}


def scaled_dot_product_attention(
    Q: Any, K: Any, V: Any, *, causal: bool = False, mask: Any = None, scale: float | None = None
) -> dict[str, Any]:
    """C of Q[…, h, L, d], K[…, g, S, d], V[…, g, S, d]."""
    import jax

    if Q.ndim > 4:
        raise NotImplementedError("more than one batch axis")
    boolean = mask is not None and mask.dtype == bool
    C = jax.nn.dot_product_attention(
        *(x.swapaxes(-2, -3) for x in (Q, K, V)),
        bias=None if boolean else mask,
        mask=mask if boolean else None,
        scale=scale,
        is_causal=causal,
    )
    return {"C": C.swapaxes(-2, -3)}


FUNCTIONS: Final = with_gradients({"scaled_dot_product_attention": scaled_dot_product_attention})


def open(mode: str = "eager", device: str = "cpu") -> Jax:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return (Compiled if mode == "jit" else Eager)(mode, device, FUNCTIONS)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    version = installed("jax").get("jax", "")
    if version and Version(version) < Version("0.4.31"):
        return f"jax.nn.dot_product_attention came with JAX 0.4.31; this is {version}"
    return None


class Eager(Library, Jax):
    """Called as it is."""


class Compiled(Library, Jit):
    """Called within a function that `jit` compiled."""

    def compile(self, *call: Any) -> Any:
        """XLA's executable; the CPU has none for the product that is asked for in float16."""
        try:
            return super().compile(*call)
        except ValueError as error:
            if "is not supported by dot_general" not in str(error):
                raise
            raise UnavailableError(str(error)) from error
