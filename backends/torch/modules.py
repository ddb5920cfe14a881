"""Trainable self-attention in PyTorch, in its two classic forms.

`SelfAttention` has plain parameters Wq, Wk, Wv [d, c]. `LinearSelfAttention` has layers
`nn.Linear(d, c)`, which store the transpose, (c, d). A checkpoint is alike for both: matrices
[d, c] and biases [c] by the names of the equations, so that either form can be loaded with what
the other one, or another framework, has learnt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Plain parameters: Q = X @ Wq."""

    def __init__(self, d: int, c: int, *, causal: bool = False, **factory: Any) -> None:
        super().__init__()
        self.causal = causal
        self.Wq = nn.Parameter(torch.randn(d, c, **factory) / math.sqrt(d))
        self.Wk = nn.Parameter(torch.randn(d, c, **factory) / math.sqrt(d))
        self.Wv = nn.Parameter(torch.randn(d, c, **factory) / math.sqrt(d))

    def forward(self, X: Tensor) -> dict[str, Tensor]:
        return attend(X @ self.Wq, X @ self.Wk, X @ self.Wv, self.causal)


class LinearSelfAttention(nn.Module):
    """Linear layers: Q = X @ weight.T + bias. `biases` says which of q, k, v have one."""

    def __init__(
        self, d: int, c: int, *, biases: str = "qkv", causal: bool = False, **factory: Any
    ) -> None:
        super().__init__()
        self.causal = causal
        self.q = nn.Linear(d, c, bias="q" in biases, **factory)
        self.k = nn.Linear(d, c, bias="k" in biases, **factory)
        self.v = nn.Linear(d, c, bias="v" in biases, **factory)

    def forward(self, X: Tensor) -> dict[str, Tensor]:
        return attend(self.q(X), self.k(X), self.v(X), self.causal)


def attend(Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> dict[str, Tensor]:
    """Ω, A and C of queries, keys and values […, n, c], which are returned with them."""
    Ω = Q @ K.mT
    logits = Ω / math.sqrt(K.shape[-1])
    if causal:
        seen = torch.ones(Ω.shape[-2:], dtype=torch.bool, device=Ω.device).tril()
        logits = logits.masked_fill(~seen, -math.inf)
    A = torch.softmax(logits, dim=-1)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def checkpoint(module: nn.Module) -> dict[str, Tensor]:
    """Copies of Wq, Wk, Wv [d, c] and of the biases [c], in C order, as files need them."""
    return {
        equation_name(name): turned(name, parameter.detach()).clone(
            memory_format=torch.contiguous_format
        )
        for name, parameter in module.named_parameters()
    }


def load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Takes over a checkpoint; raises RuntimeError where names or shapes do not fit."""
    names = [equation_name(name) for name in module.state_dict()]
    if set(names) != weights.keys():
        raise RuntimeError(f"the module has {', '.join(names)}, not {', '.join(weights)}")
    module.load_state_dict(
        {name: turned(name, weights[equation_name(name)]) for name in module.state_dict()}
    )


def gradients(module: nn.Module, X: Tensor, dC: Tensor) -> dict[str, Tensor]:
    """Gradients of ⟨dC, C⟩: of X, of the weights as in a checkpoint, and of what lies between."""
    X = X.detach().requires_grad_()
    module.zero_grad()
    results = module(X)
    between = {name: results[name] for name in ("A", "Ω", "Q", "K", "V")}
    for tensor in between.values():
        tensor.retain_grad()
    results["C"].backward(dC)
    return {
        "A": results["A"],
        **{f"d{name}": tensor.grad for name, tensor in between.items()},
        "dX": X.grad,
        **of_weights(module),
    }


def of_weights(module: nn.Module) -> dict[str, Tensor]:
    """The gradients that the last backward pass left, as in a checkpoint."""
    return {
        f"d{equation_name(name)}": turned(name, parameter.grad)
        for name, parameter in module.named_parameters()
    }


def descend(module: nn.Module, X: Tensor, T: Tensor, rate: float) -> dict[str, Tensor]:
    """A step of gradient descent towards C = T; returns the loss ½ Σ (C − T)² and its gradients."""
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    optimizer.zero_grad()
    loss = ((module(X)["C"] - T) ** 2).sum() / 2
    loss.backward()
    optimizer.step()
    return {"loss": loss, **of_weights(module)}


def equation_name(name: str) -> str:
    """What the equations call a parameter: q.weight is Wq, q.bias is bq."""
    layer, _, kind = name.partition(".")
    return {"weight": f"W{layer}", "bias": f"b{layer}", "": name}[kind]


def turned(name: str, tensor: Tensor) -> Tensor:
    """A parameter as a checkpoint has it, or back: nn.Linear stores matrices as (c, d)."""
    return tensor.mT if name.endswith(".weight") else tensor
