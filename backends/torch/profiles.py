"""Self-attention as a user of PyTorch writes it, profile by profile.

`torch.softmax` multiplies by a reciprocal on the CPU, so the softmax is written out with its
division.
"""

from __future__ import annotations

import math
from typing import Any, Final


def attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, K, V, Ω, A, C of X[…, n, d] and weights [d, c], all in the dtype of X."""
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    Ω = Q @ K.transpose(-2, -1)
    A = softmax(Ω / math.sqrt(K.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def cross_attention(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Q, Ω, A, C of X[…, n, d], and K, V of what it attends to, Z[…, m, e]."""
    Q, K, V = X @ Wq, Z @ Wk, Z @ Wv
    Ω = Q @ K.transpose(-2, -1)
    A = softmax(Ω / math.sqrt(K.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def dot_product_attention(X: Any) -> dict[str, Any]:
    """Ω, A, C of X[…, n, d], whose tokens are queries, keys and values, without a scale."""
    Ω = X @ X.transpose(-2, -1)
    A = softmax(Ω)
    return {"Ω": Ω, "A": A, "C": A @ X}


def causal_attention(X: Any, Wq: Any, Wk: Any, Wv: Any) -> dict[str, Any]:
    """Like `attention`, where a token sees itself and earlier tokens."""
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    Ω = Q @ K.transpose(-2, -1)
    A = softmax(Ω / math.sqrt(K.shape[-1]), triangle(Ω))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def scaled_dot_product_attention(
    Q: Any,
    K: Any,
    V: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
) -> dict[str, Any]:
    """Ω, A, C of Q[…, h, L, d], K[…, g, S, d], V[…, g, S, v] and a mask for [..., h, L, S].

    A boolean mask says True for pairs to keep; an additive one drops pairs by −∞. Groups of h/g
    query heads share a key and value head. A mask of float16 is added in float32, since finfo.min
    leaves no room below it.
    """
    import torch

    group = Q.shape[-3] // max(K.shape[-3], 1)
    K, V = K.repeat_interleave(group, dim=-3), V.repeat_interleave(group, dim=-3)
    Ω = Q @ K.transpose(-2, -1)
    logits = Ω / math.sqrt(Q.shape[-1]) if scale is None else Ω * scale
    keep = mask
    if mask is not None and mask.dtype != torch.bool:
        keep = ~mask.isneginf()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) + mask
    if causal:
        keep = triangle(Ω) if keep is None else keep & triangle(Ω)
    A = softmax(logits, keep).to(Ω.dtype)
    return {"Ω": Ω, "A": A, "C": A @ V}


def multi_head_attention(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Q, K, V, C[…, n, c] with the heads beside each other, Ω and A[…, h, n, n], Y[…, n, o]."""
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    width = Q.shape[-1] // heads
    q, k, v = (x.unflatten(-1, (heads, width)).transpose(-3, -2) for x in (Q, K, V))
    Ω = q @ k.transpose(-2, -1)
    A = softmax(Ω / math.sqrt(width), triangle(Ω) if causal else None)
    C = (A @ v).transpose(-3, -2).flatten(-2)
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": C, "Y": C @ Wo}


def attention_linear_layers(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any
) -> dict[str, Any]:
    """Like `attention`, with weights [c, d] and biases [c] or None."""
    from torch.nn.functional import linear

    Q, K, V = linear(X, Wq, bq), linear(X, Wk, bk), linear(X, Wv, bv)
    Ω = Q @ K.transpose(-2, -1)
    A = softmax(Ω / math.sqrt(K.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": Ω, "A": A, "C": A @ V}


def embedding(tokens: Any, E: Any, P: Any) -> dict[str, Any]:
    """X[…, n, d] of tokens[…, n], from token embeddings E[t, d] and positions P[p, d]."""
    from torch.nn import functional

    return {"X": functional.embedding(tokens, E) + P[: tokens.shape[-1]]}


def triangle(scores: Any) -> Any:
    """[L, S], True where query i sees key j ≤ i."""
    import torch

    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()


def softmax(logits: Any, keep: Any = None) -> Any:
    """Softmax of each row over the keys to keep; a row that has none is zeros.

    16-bit types are widened: compiled code may subtract a rounded maximum from logits that it has
    not rounded. The maximum is detached: no value depends on it, so what the backward pass would
    send through it is rounding error.
    """
    import torch

    if logits.shape[-1] == 0:
        return logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if keep is not None:
        wide = wide.masked_fill(~keep, -math.inf)
    top = wide.detach().amax(dim=-1, keepdim=True)
    powers = (wide - top.masked_fill(top.isneginf(), 0)).exp()
    total = powers.sum(dim=-1, keepdim=True)
    return (powers / total.masked_fill(total == 0, 1)).to(logits.dtype)


FUNCTIONS: Final = {
    function.__name__: function
    for function in (
        attention,
        dot_product_attention,
        causal_attention,
        scaled_dot_product_attention,
        multi_head_attention,
        attention_linear_layers,
        embedding,
        cross_attention,
    )
}
