"""The functions of a skeleton that compute gradients: what each returns, and a way to do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TURNED: Final = """\
def T(x):
    return x.swapaxes(-1, -2)

"""
_OF_WEIGHT: Final = """\
def of_weight(x, dy):
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

"""
_SOFTMAX: Final = """\
E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
A = E / E.sum(axis=-1, keepdims=True)
"""
_CAUSAL: Final = """\
keep = np.broadcast_to({keep}, S.shape)
top = S.max(axis=-1, keepdims=True, where=keep, initial=-np.inf)
E = np.where(keep, np.exp(S - top), 0)
A = (E / E.sum(axis=-1, keepdims=True)).astype(X.dtype)
"""
_TRIANGLE: Final = "np.tri(X.shape[-2], dtype=bool)"
_SCORES: Final = "A * (dA - (A * dA).sum(axis=-1, keepdims=True))"
_STEPS: Final = '"A": A, "dA": dA, "dΩ": dΩ, "dQ": dQ, "dK": dK, "dV": dV'


def _with_weights(softmax: str) -> str:
    return f"""\
{_TURNED}{_OF_WEIGHT}root = X.dtype.type(np.sqrt(Wq.shape[-1]))
Q, K, V = X @ Wq, X @ Wk, X @ Wv
S = Q @ T(K) / root
{softmax}dA, dV = dC @ T(V), T(A) @ dC
dΩ = {_SCORES} / root
dQ, dK = dΩ @ K, T(dΩ) @ Q
dX = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T
dWq, dWk, dWv = of_weight(X, dQ), of_weight(X, dK), of_weight(X, dV)
return {{"dX": dX, "dWq": dWq, "dWk": dWk, "dWv": dWv,
        {_STEPS}}}"""


SIGNATURES: Final[Mapping[str, str]] = {
    "attention_gradients": "X, Wq, Wk, Wv, dC",
    "dot_product_attention_gradients": "X, dC",
    "causal_attention_gradients": "X, Wq, Wk, Wv, dC",
    "scaled_dot_product_attention_gradients": (
        "Q, K, V, dC, *, causal=False, mask=None, scale=None"
    ),
    "multi_head_attention_gradients": "X, Wq, Wk, Wv, Wo, dY, *, heads, causal=False",
    "attention_linear_layers_gradients": "X, Wq, Wk, Wv, bq, bk, bv, dC",
    "embedding_gradients": "tokens, E, P, dX",
}

_SUMMED: Final = "What all samples of a batch share gets the sum over the batch."

ABOUT: Final[Mapping[str, str]] = {
    "attention_gradients": f"""\
Gradients of self-attention: of X[n, d] and weights [d, c], for the cotangent dC of C.

Returned are, in the dtype of X, dX[n, d], dWq, dWk and dWv as [d, c]. {_SUMMED}""",
    "dot_product_attention_gradients": """\
Gradients of self-attention without weights: of X[n, d], for the cotangent dC[n, d] of C.

Returned is dX[n, d], which X gets as query, as key and as value.""",
    "causal_attention_gradients": f"""\
Gradients of causal self-attention: of X[n, d] and weights [d, c], for the cotangent dC.

Returned are, in the dtype of X, dX[n, d], dWq, dWk and dWv as [d, c]. {_SUMMED}""",
    "scaled_dot_product_attention_gradients": """\
Gradients of what kernels implement: of Q, K and V, for the cotangent dC[..., h, L, v] of C.

Returned are dQ, dK and dV in the shapes of Q, K and V, so that heads which share one of K and V
add up; and for a mask that is added to the scores its gradient dmask, in the mask's own shape.""",
    "multi_head_attention_gradients": f"""\
Gradients of attention with several heads, for the cotangent dY[n, o] of Y.

Returned are, in the dtype of X, dX[n, d], dWq, dWk and dWv as [d, c], and dWo[c, o]. {_SUMMED}""",
    "attention_linear_layers_gradients": f"""\
Gradients of self-attention with linear layers, for the cotangent dC[n, c] of C.

Returned are, in the dtype of X, dX[n, d], dWq, dWk and dWv as [c, d], and dbq, dbk and dbv as [c],
or None for a bias that is None. {_SUMMED}""",
    "embedding_gradients": f"""\
Gradients of the tables E[t, d] and P[p, d], for the cotangent dX[n, d] of the embeddings.

Returned are dE[t, d], where a token that occurs twice gets the sum, and dP[p, d]. {_SUMMED}""",
}

BODIES: Final[Mapping[str, str]] = {
    "attention_gradients": _with_weights(_SOFTMAX),
    "dot_product_attention_gradients": f"""\
{_TURNED}S = X @ T(X)
{_SOFTMAX}dA = dC @ T(X)
dΩ = {_SCORES}
return {{"dX": dΩ @ X + T(dΩ) @ X + T(A) @ dC, "A": A, "dA": dA, "dΩ": dΩ}}""",
    "causal_attention_gradients": _with_weights(_CAUSAL.format(keep=_TRIANGLE)),
    "scaled_dot_product_attention_gradients": f"""\
{_TURNED}def of_shared(d):
    return d.reshape(*d.shape[:-3], K.shape[-3], group, *d.shape[-2:]).sum(axis=-3)

group = Q.shape[-3] // max(K.shape[-3], 1)
k, v = np.repeat(K, group, axis=-3), np.repeat(V, group, axis=-3)
scale = Q.dtype.type(1 / np.sqrt(Q.shape[-1]) if scale is None else scale)
S = Q @ T(k) * scale
keep = np.tri(*S.shape[-2:], dtype=bool) if causal else np.ones(S.shape[-2:], bool)
additive = mask is not None and mask.dtype != bool
if mask is not None:
    keep = keep & (mask > -np.inf if additive else mask)
    S = S + mask if additive else S
keep = np.broadcast_to(keep, S.shape)
top = S.max(axis=-1, keepdims=True, where=keep, initial=-np.inf)
E = np.exp(np.where(keep, S - np.where(top > -np.inf, top, 0), -np.inf))
total = E.sum(axis=-1, keepdims=True)
A = (E / np.where(total > 0, total, 1)).astype(Q.dtype)
dA = dC @ T(v)
dS = {_SCORES}
dQ, dK, dV = dS @ k * scale, of_shared(T(dS) @ Q * scale), of_shared(T(A) @ dC)
found = {{"dQ": dQ, "dK": dK, "dV": dV, "A": A, "dA": dA, "dΩ": dS * scale}}
if additive:
    shape = (1,) * (S.ndim - mask.ndim) + mask.shape
    repeated = tuple(i for i, size in enumerate(shape) if size != S.shape[i])
    found["dmask"] = dS.sum(axis=repeated, keepdims=True).reshape(mask.shape)
return found""",
    "multi_head_attention_gradients": f"""\
{_TURNED}{_OF_WEIGHT}def split(x):
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)

def merge(x):
    return x.swapaxes(-2, -3).reshape(*X.shape[:-1], -1) if x.size else np.zeros_like(Q)

Q, K, V = X @ Wq, X @ Wk, X @ Wv
root = X.dtype.type(np.sqrt(K.shape[-1] // heads))
S = split(Q) @ T(split(K)) / root
keep = {_TRIANGLE} if causal else np.ones(S.shape, bool)
{_CAUSAL.format(keep="keep")}\
C = merge(A @ split(V))
dC, dWo = dY @ Wo.T, of_weight(C, dY)
dA, dV = split(dC) @ T(split(V)), merge(T(A) @ split(dC))
dΩ = {_SCORES} / root
dQ, dK = merge(dΩ @ split(K)), merge(T(dΩ) @ split(Q))
dX = dQ @ Wq.T + dK @ Wk.T + dV @ Wv.T
dWq, dWk, dWv = of_weight(X, dQ), of_weight(X, dK), of_weight(X, dV)
return {{"dX": dX, "dWq": dWq, "dWk": dWk, "dWv": dWv, "dWo": dWo,
        {_STEPS}}}""",
    "attention_linear_layers_gradients": f"""\
{_TURNED}{_OF_WEIGHT}Q, K, V = X @ Wq.T, X @ Wk.T, X @ Wv.T
if bq is not None:
    Q, K, V = Q + bq, K + bk, V + bv
root = X.dtype.type(np.sqrt(K.shape[-1]))
S = Q @ T(K) / root
{_SOFTMAX}dA, dV = dC @ T(V), T(A) @ dC
dΩ = {_SCORES} / root
dQ, dK = dΩ @ K, T(dΩ) @ Q
found = {{"dX": dQ @ Wq + dK @ Wk + dV @ Wv,
         {_STEPS}}}
for name, d in ("q", dQ), ("k", dK), ("v", dV):
    found["dW" + name] = of_weight(d, X)
    found["db" + name] = None if bq is None else d.reshape(-1, d.shape[-1]).sum(axis=0)
return found""",
    "embedding_gradients": """\
dE, dP = np.zeros_like(E), np.zeros_like(P)
np.add.at(dE, tokens, dX)
dP[: tokens.shape[-1]] = dX.sum(axis=tuple(range(dX.ndim - 2)))
return dE, dP""",
}
"""Code that is right in float64 and float32, for batches and without tokens as well."""
