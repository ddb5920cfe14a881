"""Trainable self-attention in JAX as a function of its parameters, which are a pytree.

The parameters are a dict of Wq, Wk, Wv [d, c]: what files hold, too. The same with layers is in
`flax_modules` and `equinox_modules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

Parameters: TypeAlias = "dict[str, Array]"


def initial(key: Array, d: int, c: int, dtype: Any = None) -> Parameters:
    """Wq, Wk, Wv [d, c], drawn from a normal distribution."""
    keys = dict(zip(("Wq", "Wk", "Wv"), jax.random.split(key, 3), strict=True))
    return {
        name: jax.random.normal(part, (d, c), dtype) / math.sqrt(d) for name, part in keys.items()
    }


def self_attention(parameters: Parameters, X: Array, causal: bool = False) -> dict[str, Array]:
    """Q, K, V, Ω, A, C of X […, n, d]."""
    Q, K, V = (X @ parameters[name] for name in ("Wq", "Wk", "Wv"))
    return attend(Q, K, V, causal)


def attend(Q: Array, K: Array, V: Array, causal: bool) -> dict[str, Array]:
    """Ω, A and C of queries, keys and values […, n, c], which are returned with them."""
    Ω = Q @ K.mT
    seen = jnp.tri(Ω.shape[-2], Ω.shape[-1], dtype=bool) if causal else None
    A = jax.nn.softmax(Ω / math.sqrt(K.shape[-1]), where=seen)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


@partial(jax.jit, static_argnames="causal")
def gradients(
    parameters: Parameters, X: Array, dC: Array, causal: bool = False
) -> dict[str, Array]:
    """Gradients of ⟨dC, C⟩: of X, and of the parameters."""

    def context(parameters: Parameters, X: Array) -> Array:
        return self_attention(parameters, X, causal)["C"]

    _, pullback = jax.vjp(context, parameters, X)
    of_parameters, dX = pullback(dC)
    return {"dX": dX, **{f"d{name}": gradient for name, gradient in of_parameters.items()}}


@jax.jit
def descend(
    parameters: Parameters, X: Array, T: Array, rate: float
) -> tuple[Parameters, dict[str, Array]]:
    """The parameters after a step of gradient descent towards C = T.

    With them come the loss before it, ½ Σ (C − T)², and its gradients.
    """

    def loss(parameters: Parameters) -> Array:
        return ((self_attention(parameters, X)["C"] - T) ** 2).sum() / 2

    value, slope = jax.value_and_grad(loss)(parameters)
    after = jax.tree.map(lambda p, g: p - rate * g, parameters, slope)
    return after, {"loss": value, **{f"d{name}": gradient for name, gradient in slope.items()}}


def checked(parameters: Parameters, weights: Mapping[str, Array]) -> Parameters:
    """A checkpoint as parameters; raises ValueError where names, shapes or dtypes do not fit."""
    wanted, given = (
        {name: (x.shape, x.dtype) for name, x in tree.items()} for tree in (parameters, weights)
    )
    if wanted != given:
        raise ValueError(f"the parameters are {wanted}, not {given}")
    return dict(weights)
