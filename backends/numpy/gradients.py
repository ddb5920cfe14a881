"""Gradients of self-attention written out in NumPy, in matrix form, profile by profile.

Each function recomputes attention, and goes back through it from the cotangent of its last
quantity: dA = dC Vᵀ, dS = A ∘ (dA − Σ A ∘ dA) for the argument S of the softmax, dΩ = dS / √c,
dQ = dΩ K, dK = dΩᵀ Q, dV = Aᵀ dC. A row without keys has no weights, so nothing goes back
through it. Sums over a batch, a group of heads or the broadcast axes of a mask accumulate as
products do: 16-bit types in float32, and rounded once.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

import qkvac.backends.numpy.profiles as forward
from qkvac.backends.numpy.profiles import product, wide


def attention_gradients(X: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> dict[str, Any]:
    """Gradients of X[…, n, d] and of weights [d, c], by that of C[…, n, c]; and steps to them."""
    return projected(X, (Wq, Wk, Wv), forward.attention(X, Wq, Wk, Wv), dC)


def dot_product_attention_gradients(X: Any, dC: Any) -> dict[str, Any]:
    """The gradient of X[…, n, d], which is query, key and value, by that of C[…, n, d]."""
    found = through_attention(X, X, X, forward.dot_product_attention(X)["A"], dC, 1.0)
    dX = total(found.pop("dQ"), found.pop("dK"), found.pop("dV"))
    del found["dS"]
    return {**found, "dX": dX}


def causal_attention_gradients(X: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> dict[str, Any]:
    """Like `attention_gradients`; weights of what was not seen are 0, and so are gradients."""
    return projected(X, (Wq, Wk, Wv), forward.causal_attention(X, Wq, Wk, Wv), dC)


def scaled_dot_product_attention_gradients(
    Q: Any,
    K: Any,
    V: Any,
    dC: Any,
    *,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
) -> dict[str, Any]:
    """Gradients of Q, K, V and an additive mask, in their shapes, by that of C[…, h, L, v]."""
    A = forward.scaled_dot_product_attention(Q, K, V, causal=causal, mask=mask, scale=scale)["A"]
    group = Q.shape[-3] // max(K.shape[-3], 1)
    factor = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    keys, values = K.repeat(group, axis=-3), V.repeat(group, axis=-3)
    found = through_attention(Q, keys, values, A, dC, factor)
    dS = found.pop("dS")
    found["dK"] = ungrouped(found["dK"], K.shape[-3])
    found["dV"] = ungrouped(found["dV"], V.shape[-3])
    additive = mask is not None and mask.dtype != bool
    return {**found, "dmask": summed_to(dS, mask.shape) if additive else None}


def multi_head_attention_gradients(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, dY: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Gradients of X[…, n, d] and of all weights, by that of Y[…, n, o]."""
    found = forward.multi_head_attention(X, Wq, Wk, Wv, Wo, heads=heads, causal=causal)
    dC = product(dY, Wo.swapaxes(-1, -2))
    handed = projected(X, (Wq, Wk, Wv), found, dC, heads)
    return {**handed, "dWo": of_weights(found["C"], dY)}


def attention_linear_layers_gradients(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any, dC: Any
) -> dict[str, Any]:
    """Like `attention_gradients`, with weights [c, d], and biases [c] or None."""
    found = forward.attention_linear_layers(X, Wq, Wk, Wv, bq, bk, bv)
    handed = projected(X, (Wq.T, Wk.T, Wv.T), found, dC)
    for name, bias in (("q", bq), ("k", bk), ("v", bv)):
        handed[f"dW{name}"] = handed[f"dW{name}"].T
        given = handed[f"d{name.upper()}"]
        handed[f"db{name}"] = None if bias is None else summed_to(given, bias.shape)
    return handed


def embedding_gradients(tokens: Any, E: Any, P: Any, dX: Any) -> dict[str, Any]:
    """Gradients of E[t, d] and P[p, d] by that of X[…, n, d]: sums over where a row was read."""
    accumulator = wide(E.dtype)
    dE = np.zeros_like(E, dtype=accumulator)
    np.add.at(dE, tokens, dX.astype(accumulator))
    dP = np.zeros_like(P)
    dP[: tokens.shape[-1]] = summed_to(dX, dX.shape[-2:])
    return {"dE": dE.astype(E.dtype), "dP": dP}


def cross_attention_gradients(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> dict[str, Any]:
    """Gradients of X[…, n, d], Z[…, m, e] and of weights, by that of C[…, n, c]."""
    found = forward.cross_attention(X, Z, Wq, Wk, Wv)
    q, k, v = (found[name] for name in ("Q", "K", "V"))
    steps = through_attention(q, k, v, found["A"], dC, 1 / math.sqrt(k.shape[-1]))
    del steps["dS"]
    paths = wide_product(steps["dK"], Wk.T), wide_product(steps["dV"], Wv.T)
    return {
        **steps,
        "dX": product(steps["dQ"], Wq.T),
        "dZ": total(*paths).astype(Z.dtype, copy=False),
        "dWq": of_weights(X, steps["dQ"]),
        "dWk": of_weights(Z, steps["dK"]),
        "dWv": of_weights(Z, steps["dV"]),
    }


def projected(
    X: Any, weights: tuple[Any, Any, Any], found: Any, dC: Any, heads: int = 0
) -> dict[str, Any]:
    """Gradients of X and of weights [d, c], by that of C; `heads` lie beside each other in C."""
    arrays = (found["Q"], found["K"], found["V"], dC)
    q, k, v, given = (split(x, heads) for x in arrays) if heads else arrays
    steps = through_attention(q, k, v, found["A"], given, 1 / math.sqrt(k.shape[-1]))
    del steps["dS"]
    names = ("dQ", "dK", "dV")
    if heads:
        steps |= {name: merge(steps[name]) for name in names}
    paths = [wide_product(steps[name], W.T) for name, W in zip(names, weights, strict=True)]
    of = {f"dW{name[1].lower()}": of_weights(X, steps[name]) for name in names}
    return {**steps, "dX": total(*paths).astype(X.dtype, copy=False), **of}


def through_attention(Q: Any, K: Any, V: Any, A: Any, dC: Any, scale: float) -> dict[str, Any]:
    """A, dA, dS, dΩ, dQ, dK and dV, where S = scale · Ω (and a mask) is the softmax's argument."""
    dA = product(dC, V.swapaxes(-1, -2))
    weights, handed = (x.astype(wide(x.dtype), copy=False) for x in (A, dA))
    dS = weights * (handed - (weights * handed).sum(axis=-1, keepdims=True))
    dΩ = (dS * scale).astype(A.dtype, copy=False)
    dQ, dK = product(dΩ, K), product(dΩ.swapaxes(-1, -2), Q)
    dV = product(A.swapaxes(-1, -2), dC)
    return {"A": A, "dA": dA, "dS": dS.astype(A.dtype), "dΩ": dΩ, "dQ": dQ, "dK": dK, "dV": dV}


def of_weights(X: Any, given: Any) -> Any:
    """The gradient of W in X W: one sum over all tokens of all samples."""
    tokens = math.prod(X.shape[:-1])
    return product(X.reshape(tokens, X.shape[-1]).T, given.reshape(tokens, given.shape[-1]))


def wide_product(left: Any, right: Any) -> Any:
    """left @ right as it was accumulated."""
    accumulator = wide(left.dtype)
    return left.astype(accumulator, copy=False) @ right.astype(accumulator, copy=False)


def total(*terms: Any) -> Any:
    """Σ terms, accumulated in `wide` and rounded once, to the dtype of the first."""
    first, *rest = (x.astype(wide(x.dtype), copy=False) for x in terms)
    return sum(rest, first).astype(terms[0].dtype, copy=False)


def summed_to(given: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an array that broadcasts from `shape` to the shape of `given`."""
    result = given.astype(wide(given.dtype), copy=False)
    result = result.sum(axis=tuple(range(given.ndim - len(shape))))
    spread = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return result.sum(axis=spread, keepdims=True).astype(given.dtype, copy=False)


def ungrouped(given: Any, groups: int) -> Any:
    """[…, h, n, d] summed over the query heads that share one of […, g, n, d]."""
    *lead, heads, n, d = given.shape
    shape = (*lead, groups, heads // max(groups, 1), n, d)
    return given.reshape(shape).sum(axis=-3, dtype=wide(given.dtype)).astype(given.dtype)


def split(x: Any, heads: int) -> Any:
    """[…, n, c] as […, heads, n, c / heads]."""
    *lead, c = x.shape
    return x.reshape(*lead, heads, c // heads).swapaxes(-2, -3)


def merge(x: Any) -> Any:
    """[…, heads, n, w] as […, n, heads · w]."""
    *lead, heads, n, width = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, n, heads * width)


FUNCTIONS: Final = {
    function.__name__: function
    for function in (
        attention_gradients,
        dot_product_attention_gradients,
        causal_attention_gradients,
        scaled_dot_product_attention_gradients,
        multi_head_attention_gradients,
        attention_linear_layers_gradients,
        embedding_gradients,
        cross_attention_gradients,
    )
}
