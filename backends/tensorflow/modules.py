"""Trainable self-attention in TensorFlow, in its two classic forms.

`SelfAttention` has variables Wq, Wk, Wv [d, c], `LinearSelfAttention` layers `Dense(c)`, whose
kernels are stored as (d, c), too. A checkpoint is alike for both: matrices [d, c] and biases [c]
by the names of the equations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow import keras


class SelfAttention(tf.Module):
    """Plain parameters: Q = X @ Wq."""

    def __init__(self, d: int, c: int, *, causal: bool = False, dtype: Any = tf.float32) -> None:
        super().__init__()
        self.causal = causal
        draw = tf.random.stateless_normal
        self.Wq, self.Wk, self.Wv = (
            tf.Variable(tf.cast(draw([d, c], [0, i]) / math.sqrt(d), dtype)) for i in range(3)
        )

    def __call__(self, X: tf.Tensor) -> dict[str, tf.Tensor]:
        Q, K, V = (tf.matmul(X, W) for W in (self.Wq, self.Wk, self.Wv))
        return attend(Q, K, V, self.causal)

    def parameters(self) -> dict[str, tf.Variable]:
        """By the names of the equations."""
        return {"Wq": self.Wq, "Wk": self.Wk, "Wv": self.Wv}


class LinearSelfAttention(keras.layers.Layer):
    """Linear layers: Q = X @ kernel + bias. `biases` says which of q, k, v have one.

    Keras casts what a layer is given to the layer's own dtype, float32 unless it is named.
    """

    def __init__(
        self,
        d: int,
        c: int,
        *,
        biases: str = "qkv",
        causal: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        self.causal = causal
        self.q = keras.layers.Dense(c, use_bias="q" in biases, dtype=dtype)
        self.k = keras.layers.Dense(c, use_bias="k" in biases, dtype=dtype)
        self.v = keras.layers.Dense(c, use_bias="v" in biases, dtype=dtype)
        for layer in (self.q, self.k, self.v):
            layer.build((None, d))

    def call(self, X: tf.Tensor) -> dict[str, tf.Tensor]:
        return attend(self.q(X), self.k(X), self.v(X), self.causal)

    def parameters(self) -> dict[str, Any]:
        """By the names of the equations."""
        layers = {"q": self.q, "k": self.k, "v": self.v}
        biases = {f"b{name}": layer.bias for name, layer in layers.items() if layer.use_bias}
        return {f"W{name}": layer.kernel for name, layer in layers.items()} | biases


def attend(Q: tf.Tensor, K: tf.Tensor, V: tf.Tensor, causal: bool) -> dict[str, tf.Tensor]:
    """Ω, A and C of queries, keys and values […, n, c], which are returned with them."""
    Ω = tf.matmul(Q, K, transpose_b=True)
    logits = Ω / tf.sqrt(tf.cast(K.shape[-1], Ω.dtype))
    if causal:
        seen = tf.range(Ω.shape[-2])[:, None] >= tf.range(Ω.shape[-1])
        logits = tf.where(seen, logits, tf.constant(-math.inf, Ω.dtype))
    A = tf.nn.softmax(logits)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": tf.matmul(A, V)}


def checkpoint(module: Any) -> dict[str, tf.Tensor]:
    """Wq, Wk, Wv [d, c] and the biases [c]."""
    return {name: tf.identity(value) for name, value in module.parameters().items()}


def load(module: Any, weights: Mapping[str, tf.Tensor]) -> None:
    """Takes over a checkpoint; raises ValueError where names, shapes or dtypes do not fit."""
    parameters = module.parameters()
    wanted, given = (
        {name: (tuple(x.shape), tf.as_dtype(x.dtype)) for name, x in tree.items()}
        for tree in (parameters, weights)
    )
    if wanted != given:
        raise ValueError(f"the module has {wanted}, not {given}")
    for name, variable in parameters.items():
        variable.assign(weights[name])


def gradients(module: Any, X: tf.Tensor, dC: tf.Tensor) -> dict[str, tf.Tensor]:
    """Gradients of ⟨dC, C⟩: of X, of the weights as in a checkpoint, and of what lies between."""
    with tf.GradientTape() as tape:
        tape.watch(X)
        results = module(X)
    parameters = {name: plain(variable) for name, variable in module.parameters().items()}
    between = {name: results[name] for name in ("A", "Ω", "Q", "K", "V")}
    sources = {**between, "X": X, **parameters}
    found = tape.gradient(results["C"], sources, output_gradients=dC)
    return {"A": results["A"], **{f"d{name}": gradient for name, gradient in found.items()}}


def descend(module: Any, X: tf.Tensor, T: tf.Tensor, rate: float) -> dict[str, tf.Tensor]:
    """A step of gradient descent towards C = T; returns the loss ½ Σ (C − T)² and its gradients."""
    parameters = {name: plain(variable) for name, variable in module.parameters().items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((module(X)["C"] - T) ** 2) / 2
    slope = tape.gradient(loss, parameters)
    for name, variable in parameters.items():
        variable.assign_sub(rate * slope[name])
    return {"loss": loss, **{f"d{name}": gradient for name, gradient in slope.items()}}


def plain(variable: Any) -> tf.Variable:
    """TensorFlow's own variable, which Keras wraps in one of its own."""
    return (
        getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
    )
