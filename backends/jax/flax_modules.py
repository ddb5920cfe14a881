"""Trainable self-attention in Flax, whose linear layers store kernels as (d, c).

A checkpoint holds matrices [d, c] and biases [c] by the names of the equations: nothing is turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import nnx
from jax import Array

from qkvac.backends.jax.modules import attend


class LinearSelfAttention(nnx.Module):
    """Linear layers: Q = X @ kernel + bias. `biases` says which of q, k, v have one."""

    def __init__(
        self,
        d: int,
        c: int,
        *,
        biases: str = "qkv",
        causal: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.causal = causal
        self.q = nnx.Linear(d, c, use_bias="q" in biases, param_dtype=dtype, rngs=rngs)
        self.k = nnx.Linear(d, c, use_bias="k" in biases, param_dtype=dtype, rngs=rngs)
        self.v = nnx.Linear(d, c, use_bias="v" in biases, param_dtype=dtype, rngs=rngs)

    def __call__(self, X: Array) -> dict[str, Array]:
        return attend(self.q(X), self.k(X), self.v(X), self.causal)


def checkpoint(module: LinearSelfAttention) -> dict[str, Array]:
    """Wq, Wk, Wv [d, c] and the biases [c]."""
    return named(nnx.state(module, nnx.Param))


def load(module: LinearSelfAttention, weights: Mapping[str, Array]) -> None:
    """Takes over a checkpoint; raises ValueError where names, shapes or dtypes do not fit."""
    own = checkpoint(module)
    wanted, given = (
        {name: (x.shape, x.dtype) for name, x in tree.items()} for tree in (own, weights)
    )
    if wanted != given:
        raise ValueError(f"the module has {wanted}, not {given}")
    for name, value in weights.items():
        layer = getattr(module, name[1])
        (layer.kernel if name[0] == "W" else layer.bias)[...] = value


@nnx.jit
def gradients(module: LinearSelfAttention, X: Array, dC: Array) -> dict[str, Array]:
    """Gradients of ⟨dC, C⟩: of X, and of the weights as in a checkpoint."""

    def paired(module: LinearSelfAttention, X: Array) -> Array:
        return (module(X)["C"] * dC).sum()

    of_module, dX = nnx.grad(paired, argnums=(0, 1))(module, X)
    return {"dX": dX, **{f"d{name}": gradient for name, gradient in named(of_module).items()}}


@nnx.jit
def descend(module: LinearSelfAttention, X: Array, T: Array, rate: float) -> dict[str, Array]:
    """A step of gradient descent towards C = T; returns the loss ½ Σ (C − T)² and its gradients."""

    def loss(module: LinearSelfAttention) -> Array:
        return ((module(X)["C"] - T) ** 2).sum() / 2

    value, slope = nnx.value_and_grad(loss)(module)
    now, found = checkpoint(module), named(slope)
    load(module, {name: now[name] - rate * gradient for name, gradient in found.items()})
    return {"loss": value, **{f"d{name}": gradient for name, gradient in found.items()}}


def named(state: Any) -> dict[str, Array]:
    """A module's state by the names of the equations: q.kernel is Wq, q.bias is bq."""
    return {
        f"{'W' if kind == 'kernel' else 'b'}{layer}": value.get_value()
        for (layer, kind), value in nnx.to_flat_state(state)
    }
