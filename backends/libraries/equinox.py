"""`equinox.nn.MultiheadAttention`, eager and compiled by `jit`.

The layer takes one sequence; batches go through `jax.vmap`, as Equinox's users are told to do.
Its weights are those of its linear layers, [c, d] and [o, c], so that ours are turned around.
"""

from __future__ import annotations

from typing import Any, Final

from qkvac.backends.adapter import Library, choose, installed, require
from qkvac.backends.jax.adapter import PROOF, Jax, Jit, devices, environment
from qkvac.backends.jax.gradients import with_gradients

__all__ = ["FUNCTIONS", "QKVAC", "devices", "environment", "open", "unavailable", "versions"]

QKVAC: Final[dict[str, Any]] = {
    "name": "equinox",
    "requires": ("equinox", "jax"),
    "modes": ("eager", "jit"),
    "shapes": {"eager": "few", "jit": "few"},
    "evidence": {"jit": PROOF},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": ("multi_head_attention", "multi_head_attention_gradients"),
    "supports": ("batches", "empty", "layouts"),
    "deterministic": True,
    "arithmetic": {"softmax": "fused", "flushes": True},
}


def multi_head_attention(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Q, K, V and Y of X[…, n, d] and weights [d, c] and [c, o]."""
    import jax

    jnp = jax.numpy
    made = layer(Wq, Wk, Wv, Wo, heads)
    tokens = X.shape[-2]
    mask = jnp.tril(jnp.ones((tokens, tokens), bool)) if causal else None

    def call(x: Any) -> dict[str, Any]:
        parts = {"Q": made.query_proj, "K": made.key_proj, "V": made.value_proj}
        projected = {name: jax.vmap(part)(x) for name, part in parts.items()}
        return {**projected, "Y": made(x, x, x, mask=mask)}

    for _ in X.shape[:-2]:
        call = jax.vmap(call)
    return call(X)


def layer(Wq: Any, Wk: Any, Wv: Any, Wo: Any, heads: int) -> Any:
    """The layer with these weights, for inference."""
    import equinox
    import jax

    width = Wq.shape[1]
    made = equinox.nn.MultiheadAttention(
        num_heads=heads,
        query_size=Wq.shape[0],
        output_size=Wo.shape[1],
        qk_size=width // heads,
        vo_size=width // heads,
        inference=True,
        dtype=Wq.dtype,
        key=jax.random.key(0),
    )
    return equinox.tree_at(
        lambda m: tuple(
            part.weight for part in (m.query_proj, m.key_proj, m.value_proj, m.output_proj)
        ),
        made,
        tuple(weight.T for weight in (Wq, Wk, Wv, Wo)),
    )


FUNCTIONS: Final = with_gradients({"multi_head_attention": multi_head_attention})


def open(mode: str = "eager", device: str = "cpu") -> Jax:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return (Compiled if mode == "jit" else Eager)(mode, device, FUNCTIONS)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("equinox", "jax", "jaxlib", "numpy", "ml_dtypes")


class Eager(Library, Jax):
    """Called as it is."""


class Compiled(Library, Jit):
    """Called within a function that `jit` compiled."""
