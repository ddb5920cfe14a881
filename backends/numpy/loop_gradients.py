"""Gradients of self-attention in NumPy token by token: what each pair of tokens hands back.

For each query token m there is a weight a_p for each key token p. The cotangent c of the query's
context hands c · v_p to each weight; a pair's score gets a_p (c · v_p − Σ a (c · v)), scaled; it
moves the query along k_p and the key along q_m. Sums over tokens accumulate as in the forward
loops: 16-bit types in float32, and rounded where a quantity is kept.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

import qkvac.backends.numpy.loop as forward
from qkvac.backends.numpy.loop import widened


def attention_gradients(X: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> dict[str, Any]:
    """Gradients of X[…, n, d] and of weights [d, c], by that of C[…, n, c]; and steps to them."""
    found = forward.attention(X, Wq, Wk, Wv)
    steps = attend_back(found["Q"], found["K"], found["V"], found["A"], dC)
    return {**steps, **project_back(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv}, steps)}


def dot_product_attention_gradients(X: Any, dC: Any) -> dict[str, Any]:
    """The gradient of X[…, n, d], as query, as key and as value, by that of C[…, n, d]."""
    A = forward.dot_product_attention(X)["A"]
    steps = attend_back(X, X, X, A, dC, 1.0)
    parts = [widened(steps.pop(name)) for name in ("dQ", "dK", "dV")]
    return {**steps, "dX": (parts[0] + parts[1] + parts[2]).astype(X.dtype)}


def causal_attention_gradients(X: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> dict[str, Any]:
    """Like `attention_gradients`; a pair that was not seen has the weight 0."""
    found = forward.causal_attention(X, Wq, Wk, Wv)
    steps = attend_back(found["Q"], found["K"], found["V"], found["A"], dC)
    return {**steps, **project_back(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv}, steps)}


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
    heads, groups = Q.shape[-3], K.shape[-3]
    shared = [head * groups // heads for head in range(heads)]
    steps = attend_back(Q, K[..., shared, :, :], V[..., shared, :, :], A, dC, scale)
    dmask = None
    if mask is not None and mask.dtype != bool:
        dmask = np.zeros_like(mask, dtype=widened(mask).dtype)
        # Every pair reads one entry of the mask, and hands its part back to it.
        entries = np.broadcast_to(np.arange(mask.size).reshape(mask.shape), A.shape)
        pairs = logits_back(A, steps["dA"])
        for place in np.ndindex(A.shape):
            dmask.flat[entries[place]] += pairs[place]
        dmask = dmask.astype(mask.dtype)
    for name, like in (("dK", K), ("dV", V)):
        gathered = np.zeros_like(widened(like))
        for head, group in enumerate(shared):
            gathered[..., group, :, :] += widened(steps[name])[..., head, :, :]
        steps[name] = gathered.astype(like.dtype)
    return {**steps, "dmask": dmask}


def multi_head_attention_gradients(
    X: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any, dY: Any, *, heads: int, causal: bool = False
) -> dict[str, Any]:
    """Gradients of X[…, n, d] and of all weights, by that of Y[…, n, o]."""
    found = forward.multi_head_attention(X, Wq, Wk, Wv, Wo, heads=heads, causal=causal)
    dC = forward.project(dY, Wo.T)
    width = dC.shape[-1] // heads
    parts = [slice(head * width, (head + 1) * width) for head in range(heads)]
    q, k, v, c = (
        np.stack([x[..., part] for part in parts], axis=-3)
        for x in (found["Q"], found["K"], found["V"], dC)
    )
    steps = attend_back(q, k, v, found["A"], c)
    for name in ("dQ", "dK", "dV"):
        beside = np.zeros_like(dC)
        for head, part in enumerate(parts):
            beside[..., part] = steps[name][..., head, :, :]
        steps[name] = beside
    handed = project_back(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv}, steps)
    return {**steps, **handed, "dWo": weights_back(found["C"], dY)}


def attention_linear_layers_gradients(
    X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any, dC: Any
) -> dict[str, Any]:
    """Like `attention_gradients`, with weights [c, d], and biases [c] or None."""
    found = forward.attention_linear_layers(X, Wq, Wk, Wv, bq, bk, bv)
    steps = attend_back(found["Q"], found["K"], found["V"], found["A"], dC)
    handed = project_back(X, {"Wq": Wq.T, "Wk": Wk.T, "Wv": Wv.T}, steps)
    for name, bias in (("q", bq), ("k", bk), ("v", bv)):
        handed[f"dW{name}"] = handed[f"dW{name}"].T
        if bias is not None:
            given = widened(steps[f"d{name.upper()}"])
            reached = np.zeros_like(widened(bias))
            for place in np.ndindex(X.shape[:-1]):
                reached += given[place]
            handed[f"db{name}"] = reached.astype(bias.dtype)
    return {**steps, **handed}


def embedding_gradients(tokens: Any, E: Any, P: Any, dX: Any) -> dict[str, Any]:
    """Gradients of E[t, d] and P[p, d]: each token's to its row, and to that of its place."""
    dE, dP = np.zeros_like(widened(E)), np.zeros_like(widened(P))
    given = widened(dX)
    for place in np.ndindex(tokens.shape):
        dE[tokens[place]] += given[place]
        dP[place[-1]] += given[place]
    return {"dE": dE.astype(E.dtype), "dP": dP.astype(P.dtype)}


def cross_attention_gradients(X: Any, Z: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> dict[str, Any]:
    """Gradients of X[…, n, d], Z[…, m, e] and of weights, by that of C[…, n, c]."""
    found = forward.cross_attention(X, Z, Wq, Wk, Wv)
    steps = attend_back(found["Q"], found["K"], found["V"], found["A"], dC)
    queries = project_back(X, {"Wq": Wq}, steps)
    others = project_back(Z, {"Wk": Wk, "Wv": Wv}, steps)
    return {**steps, **queries, "dZ": others.pop("dX"), **others}


def attend_back(
    Q: Any, K: Any, V: Any, A: Any, dC: Any, scale: float | None = None
) -> dict[str, Any]:
    """A, dA, dΩ, dQ, dK, dV of queries, keys and values, head by head as given."""
    factor = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    dA, dQ = np.zeros_like(A), np.zeros_like(Q)
    dK, dV = np.zeros_like(widened(K)), np.zeros_like(widened(V))
    queries, keys, values = widened(Q), widened(K), widened(V)
    weights, given = widened(A), widened(dC)
    for place in np.ndindex(Q.shape[:-1]):
        sample = place[:-1]
        dA[place] = [given[place] @ value for value in values[sample]]
    dΩ = (logits_back(A, dA) * factor).astype(A.dtype)
    scores = widened(dΩ)
    for place in np.ndindex(Q.shape[:-1]):
        sample = place[:-1]
        moved = np.zeros_like(queries[place])
        for p in range(keys.shape[-2]):
            moved += scores[(*place, p)] * keys[(*sample, p)]
            dK[(*sample, p)] += scores[(*place, p)] * queries[place]
            dV[(*sample, p)] += weights[(*place, p)] * given[place]
        dQ[place] = moved
    return {
        "A": A,
        "dA": dA,
        "dΩ": dΩ,
        "dQ": dQ,
        "dK": dK.astype(K.dtype),
        "dV": dV.astype(V.dtype),
    }


def logits_back(A: Any, dA: Any) -> Any:
    """The gradient of the softmax's argument; of a query without keys it is 0, as its weights."""
    result = np.zeros_like(widened(A))
    for place in np.ndindex(A.shape[:-1]):
        weights, given = widened(A[place]), widened(dA[place])
        result[place] = weights * (given - weights @ given)
    return result


def project_back(X: Any, weights: dict[str, Any], steps: dict[str, Any]) -> dict[str, Any]:
    """Gradients of X and of the weights [d, c] that made Q, K and V of it."""
    dX = np.zeros_like(widened(X))
    handed = {}
    for name, W in weights.items():
        given = steps[f"d{name[1].upper()}"]
        for place in np.ndindex(X.shape[:-1]):
            dX[place] += widened(W) @ widened(given[place])
        handed[f"d{name}"] = weights_back(X, given)
    return {"dX": dX.astype(X.dtype), **handed}


def weights_back(X: Any, given: Any) -> Any:
    """The gradient of W in x_m W, over all tokens of all samples."""
    tokens, cotangents = widened(X), widened(given)
    result = np.zeros_like(tokens, shape=(X.shape[-1], given.shape[-1]))
    for place in np.ndindex(X.shape[:-1]):
        result += np.outer(tokens[place], cotangents[place])
    return result.astype(X.dtype)


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
