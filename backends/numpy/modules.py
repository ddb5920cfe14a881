"""Trainable self-attention in NumPy, in its two classic forms, with the backward pass written out.

`SelfAttention` has plain parameters Wq, Wk, Wv [d, c]. `LinearSelfAttention` has the weights of
linear layers, which store the transpose, (c, d), and their biases. A checkpoint is alike for both:
matrices [d, c] and biases [c] by the names of the equations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvac.backends.adapter import Array
from qkvac.backends.numpy.profiles import product, softmax, triangle, wide


class SelfAttention:
    """Plain parameters: Q = X @ Wq. Gradients are those of the last backward pass."""

    def __init__(self, d: int, c: int, *, causal: bool = False, dtype: Any = float) -> None:
        draw = np.random.default_rng(0).standard_normal
        self.causal = causal
        self.parameters = {
            name: (draw((d, c)) / math.sqrt(d)).astype(dtype) for name in ("Wq", "Wk", "Wv")
        }
        self.gradients: dict[str, Array] = {}

    def project(self, layer: str, X: Array) -> Any:
        """The queries, keys or values of X: `layer` is q, k or v."""
        return product(X, self.parameters[f"W{layer}"])

    def project_back(self, layer: str, X: Array, dY: Array) -> Any:
        """Keeps the gradients of a projection's parameters, and returns that of X."""
        self.gradients[f"W{layer}"] = product(flat(X).T, flat(dY))
        return product(dY, self.parameters[f"W{layer}"].T)

    def forward(self, X: Array) -> dict[str, Array]:
        """Q, K, V, Ω, A, C of X […, n, d]."""
        Q, K, V = (self.project(layer, X) for layer in "qkv")
        Ω = product(Q, turned(K))
        keep = triangle(Ω) if self.causal else None
        A = softmax(Ω, 1 / math.sqrt(K.shape[-1]), keep=keep)
        self.kept = X, Q, K, V, A
        return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": product(A, V)}

    def backward(self, dC: Array) -> dict[str, Array]:
        """Gradients of ⟨dC, C⟩ for the last forward pass: of X, and of what lies between."""
        X, Q, K, V, A = self.kept
        dV, dA = product(turned(A), dC), product(dC, turned(V))
        a, da = A.astype(wide(A.dtype)), dA.astype(wide(A.dtype))
        dS = a * (da - (a * da).sum(axis=-1, keepdims=True))
        dΩ = (dS / math.sqrt(K.shape[-1])).astype(A.dtype)
        dQ, dK = product(dΩ, K), product(turned(dΩ), Q)
        back = zip("qkv", (dQ, dK, dV), strict=True)
        dX = sum(self.project_back(layer, X, dY) for layer, dY in back)
        return {"A": A, "dA": dA, "dΩ": dΩ, "dQ": dQ, "dK": dK, "dV": dV, "dX": np.asarray(dX)}


class LinearSelfAttention(SelfAttention):
    """Linear layers: Q = X @ weight.T + bias. `biases` says which of q, k, v have one."""

    def __init__(
        self, d: int, c: int, *, biases: str = "qkv", causal: bool = False, dtype: Any = float
    ) -> None:
        super().__init__(d, c, causal=causal, dtype=dtype)
        matrices = self.parameters
        self.parameters = {f"{layer}.weight": matrices[f"W{layer}"].T.copy() for layer in "qkv"}
        self.parameters |= {f"{layer}.bias": np.zeros(c, dtype) for layer in biases}

    def project(self, layer: str, X: Array) -> Any:
        bias = self.parameters.get(f"{layer}.bias")
        return product(X, self.parameters[f"{layer}.weight"].T, bias)

    def project_back(self, layer: str, X: Array, dY: Array) -> Any:
        self.gradients[f"{layer}.weight"] = product(flat(dY).T, flat(X))
        if f"{layer}.bias" in self.parameters:
            self.gradients[f"{layer}.bias"] = (
                flat(dY).sum(axis=0, dtype=wide(dY.dtype)).astype(dY.dtype)
            )
        return product(dY, self.parameters[f"{layer}.weight"])


def checkpoint(module: SelfAttention) -> dict[str, Array]:
    """Copies of Wq, Wk, Wv [d, c] and of the biases [c], in C order, as files need them."""
    return {
        equation_name(name): stored(name, parameter).copy(order="C")
        for name, parameter in module.parameters.items()
    }


def load(module: SelfAttention, weights: Mapping[str, Array]) -> None:
    """Takes over a checkpoint; raises ValueError where names, shapes or dtypes do not fit."""
    names = [equation_name(name) for name in module.parameters]
    if set(names) != weights.keys():
        raise ValueError(f"the module has {', '.join(names)}, not {', '.join(weights)}")
    for name, parameter in module.parameters.items():
        given = stored(name, weights[equation_name(name)])
        if (given.shape, given.dtype) != (parameter.shape, parameter.dtype):
            raise ValueError(f"{name} is {parameter.dtype}{list(parameter.shape)}")
        module.parameters[name] = given.copy(order="C")


def gradients(module: SelfAttention, X: Array, dC: Array) -> dict[str, Array]:
    """Gradients of ⟨dC, C⟩: of X, of the weights as in a checkpoint, and of what lies between."""
    module.forward(X)
    return module.backward(dC) | of_weights(module)


def of_weights(module: SelfAttention) -> dict[str, Array]:
    """The gradients that the last backward pass left, as in a checkpoint."""
    return {
        f"d{equation_name(name)}": stored(name, gradient)
        for name, gradient in module.gradients.items()
    }


def descend(module: SelfAttention, X: Array, T: Array, rate: float) -> dict[str, Array]:
    """A step of gradient descent towards C = T; returns the loss ½ Σ (C − T)² and its gradients."""
    rest = module.forward(X)["C"] - T
    module.backward(rest)
    for name, parameter in module.parameters.items():
        step = module.gradients[name].astype(wide(parameter.dtype)) * rate
        module.parameters[name] = (parameter - step).astype(parameter.dtype)
    loss = np.square(rest, dtype=wide(rest.dtype)).sum() / 2
    return {"loss": np.asarray(loss, rest.dtype), **of_weights(module)}


def equation_name(name: str) -> str:
    """What the equations call a parameter: q.weight is Wq, q.bias is bq."""
    layer, _, kind = name.partition(".")
    return {"weight": f"W{layer}", "bias": f"b{layer}", "": name}[kind]


def stored(name: str, array: Array) -> Array:
    """A parameter as a checkpoint has it, or back: linear layers store matrices as (c, d)."""
    return turned(array) if name.endswith(".weight") else array


def turned(matrices: Array) -> Array:
    """The transpose along the last two axes."""
    return matrices.swapaxes(-1, -2)


def flat(x: Array) -> Array:
    """Tokens of all samples, one below the other."""
    return x.reshape(-1, x.shape[-1])
