"""Trainable self-attention in Equinox, whose linear layers store weights as (c, d).

A checkpoint holds matrices [d, c] and biases [c] by the names of the equations, so that weights
are turned on their way from and to the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from qkvac.backends.jax.modules import attend


class LinearSelfAttention(eqx.Module):
    """Linear layers: q = weight @ x + bias. `biases` says which of q, k, v have one."""

    q: eqx.nn.Linear
    k: eqx.nn.Linear
    v: eqx.nn.Linear
    causal: bool = eqx.field(static=True)

    def __init__(
        self,
        d: int,
        c: int,
        *,
        biases: str = "qkv",
        causal: bool = False,
        dtype: Any = None,
        key: Array,
    ) -> None:
        keys = jax.random.split(key, 3)
        self.q = eqx.nn.Linear(d, c, use_bias="q" in biases, dtype=dtype, key=keys[0])
        self.k = eqx.nn.Linear(d, c, use_bias="k" in biases, dtype=dtype, key=keys[1])
        self.v = eqx.nn.Linear(d, c, use_bias="v" in biases, dtype=dtype, key=keys[2])
        self.causal = causal

    def __call__(self, X: Array) -> dict[str, Array]:
        # The layers take a single token.
        Q, K, V = (jnp.vectorize(f, signature="(d)->(c)")(X) for f in (self.q, self.k, self.v))
        return attend(Q, K, V, self.causal)


def checkpoint(module: LinearSelfAttention) -> dict[str, Array]:
    """Wq, Wk, Wv [d, c] and the biases [c]."""
    layers = {"q": module.q, "k": module.k, "v": module.v}
    biases = {f"b{name}": layer.bias for name, layer in layers.items()}
    return {
        **{f"W{name}": layer.weight.T for name, layer in layers.items()},
        **{name: bias for name, bias in biases.items() if bias is not None},
    }


def loaded(module: LinearSelfAttention, weights: Mapping[str, Array]) -> LinearSelfAttention:
    """The module with a checkpoint; raises ValueError where names, shapes or dtypes do not fit."""
    wanted, given = (
        {name: (x.shape, x.dtype) for name, x in tree.items()}
        for tree in (checkpoint(module), weights)
    )
    if wanted != given:
        raise ValueError(f"the module has {wanted}, not {given}")
    found: LinearSelfAttention = eqx.tree_at(
        lambda m: [
            getattr(getattr(m, name[1]), "weight" if name[0] == "W" else "bias") for name in weights
        ],
        module,
        [value.T for value in weights.values()],
    )
    return found


@eqx.filter_jit
def gradients(module: LinearSelfAttention, X: Array, dC: Array) -> dict[str, Array]:
    """Gradients of ⟨dC, C⟩: of X, and of the weights as in a checkpoint."""
    _, pullback = eqx.filter_vjp(lambda module, X: module(X)["C"], module, X)
    of_module, dX = pullback(dC)
    return {"dX": dX, **{f"d{name}": x for name, x in checkpoint(of_module).items()}}


@eqx.filter_jit
def descend(
    module: LinearSelfAttention, X: Array, T: Array, rate: float
) -> tuple[LinearSelfAttention, dict[str, Array]]:
    """The module after a step of gradient descent towards C = T.

    With it come the loss before it, ½ Σ (C − T)², and its gradients.
    """

    @eqx.filter_value_and_grad
    def loss(module: LinearSelfAttention) -> Array:
        return ((module(X)["C"] - T) ** 2).sum() / 2

    value, slope = loss(module)
    steps = jax.tree.map(lambda gradient: -rate * gradient, slope)
    found = {f"d{name}": gradient for name, gradient in checkpoint(slope).items()}
    return eqx.apply_updates(module, steps), {"loss": value, **found}
