"""The functions of a skeleton: what each takes and returns, and a way to compute it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from qkvac import gradient_skeletons
from qkvac.spec.registry import known_profiles

_WEIGHTS: Final = """
S = Q @ K.swapaxes(-1, -2) / X.dtype.type(np.sqrt(K.shape[-1]))
E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
A = E / E.sum(axis=-1, keepdims=True)
"""
_CAUSAL: Final = """
S = Q @ K.swapaxes(-1, -2) / X.dtype.type(np.sqrt({width}))
keep = {keep}
top = S.max(axis=-1, keepdims=True, where=keep, initial=-np.inf)
E = np.where(keep, np.exp(S - top), 0)
A = (E / E.sum(axis=-1, keepdims=True)).astype(X.dtype)
"""
WIDTH: Final = 98
_TRIANGLE: Final = "np.tri(X.shape[-2], dtype=bool)"

SIGNATURES: Final[Mapping[str, str]] = {
    "attention": "X, Wq, Wk, Wv",
    "dot_product_attention": "X",
    "causal_attention": "X, Wq, Wk, Wv",
    "scaled_dot_product_attention": "Q, K, V, *, causal=False, mask=None, scale=None",
    "multi_head_attention": "X, Wq, Wk, Wv, Wo, *, heads, causal=False",
    "attention_linear_layers": "X, Wq, Wk, Wv, bq, bk, bv",
    "embedding": "tokens, E, P",
    **gradient_skeletons.SIGNATURES,
}

ABOUT: Final[Mapping[str, str]] = {
    "attention": """\
Self-attention of the tokens X[n, d], with the weights Wq, Wk and Wv, each [d, c].

All are NumPy arrays of one dtype (bfloat16 is that of ml_dtypes), and so is what is returned:
Q, K, V and C as [n, c], A as [n, n].""",
    "dot_product_attention": """\
Self-attention of the tokens X[n, d] without weights, and without a scale.

X is a NumPy array, and what is returned is of its dtype: A as [n, n], C as [n, d].""",
    "causal_attention": """\
Self-attention in which a token sees itself and earlier ones, of X[n, d] and weights [d, c].

All are NumPy arrays of one dtype (bfloat16 is that of ml_dtypes), and so is what is returned:
Q, K, V and C as [n, c], A as [n, n], with zeros above the diagonal.""",
    "scaled_dot_product_attention": """\
What kernels implement: Q[..., h, L, d], K[..., g, S, d] and V[..., g, S, v].

Where heads are grouped (g < h), consecutive query heads share one of K and V. A mask broadcasts
to [..., h, L, S]: a boolean one keeps keys where it is True, any other is added to the scaled
scores, −inf included. The scale is 1/√d if it is None. Returned are A[..., h, L, S], which is 0
for a query without keys, and C[..., h, L, v], in the dtype of Q.""",
    "multi_head_attention": """\
Attention with several heads, of X[n, d], weights [d, c] and Wo[c, o]; heads divides c.

A head takes consecutive columns of Q, K and V. Returned are, in the dtype of X: Q, K and V before
they are split, A[heads, n, n], C[n, c] with the heads merged, and Y = C Wo.""",
    "attention_linear_layers": """\
Self-attention of X[n, d] with linear layers: weights [c, d], biases [c] that may be None.

All are NumPy arrays of one dtype (bfloat16 is that of ml_dtypes), and so is what is returned:
Q, K, V and C as [n, c], A as [n, n].""",
    "embedding": """\
What attention starts from: rows E[tokens[n]] of a table [t, d], plus rows of P[p, d].

The tokens are integers, and the k-th of them has the position k. X[n, d] is returned, in the
dtype of E.""",
    **gradient_skeletons.ABOUT,
}

BODIES: Final[Mapping[str, str]] = {
    "attention": f"Q, K, V = X @ Wq, X @ Wk, X @ Wv{_WEIGHTS}return Q, K, V, A, A @ V",
    "dot_product_attention": """\
S = X @ X.swapaxes(-1, -2)
E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
A = E / E.sum(axis=-1, keepdims=True)
return A, A @ X""",
    "causal_attention": "Q, K, V = X @ Wq, X @ Wk, X @ Wv"
    + _CAUSAL.format(width="K.shape[-1]", keep=_TRIANGLE)
    + "return Q, K, V, A, A @ V",
    "scaled_dot_product_attention": """\
group = Q.shape[-3] // max(K.shape[-3], 1)
K, V = np.repeat(K, group, axis=-3), np.repeat(V, group, axis=-3)
scale = 1 / np.sqrt(Q.shape[-1]) if scale is None else scale
S = Q @ K.swapaxes(-1, -2) * Q.dtype.type(scale)
keep = np.tri(*S.shape[-2:], dtype=bool) if causal else np.ones(S.shape[-2:], bool)
if mask is not None:
    keep = keep & (mask if mask.dtype == bool else mask > -np.inf)
    S = S if mask.dtype == bool else S + mask
keep = np.broadcast_to(keep, S.shape)
top = S.max(axis=-1, keepdims=True, where=keep, initial=-np.inf)
E = np.exp(np.where(keep, S - np.where(top > -np.inf, top, 0), -np.inf))
total = E.sum(axis=-1, keepdims=True)
A = (E / np.where(total > 0, total, 1)).astype(Q.dtype)
return A, A @ V""",
    "multi_head_attention": """\
def split(x):
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)

Q, K, V = X @ Wq, X @ Wk, X @ Wv
S = split(Q) @ split(K).swapaxes(-1, -2) / X.dtype.type(np.sqrt(K.shape[-1] // heads))
keep = np.tri(X.shape[-2], dtype=bool) if causal else np.ones(S.shape[-2:], bool)
keep = np.broadcast_to(keep, S.shape)
top = S.max(axis=-1, keepdims=True, where=keep, initial=-np.inf)
E = np.where(keep, np.exp(S - top), 0)
A = (E / E.sum(axis=-1, keepdims=True)).astype(X.dtype)
C = (A @ split(V)).swapaxes(-2, -3).reshape(V.shape)
return Q, K, V, A, C, C @ Wo""",
    "attention_linear_layers": "Q, K, V = X @ Wq.T, X @ Wk.T, X @ Wv.T\n"
    "if bq is not None:\n    Q, K, V = Q + bq, K + bk, V + bv"
    + _WEIGHTS
    + "return Q, K, V, A, A @ V",
    "embedding": "return E[tokens] + P[: tokens.shape[-1]]",
    **gradient_skeletons.BODIES,
}
"""Code that is right in float64 and float32, for batches and without tokens as well."""


def function(profile: str) -> str:
    """A function that says what it has to do, raises until it does, and suggests how."""
    first, _, rest = ABOUT[profile].partition("\n\n")
    declared = known_profiles()[profile]
    names = declared.quantities
    if declared.base and declared.intermediates:
        steps = [name for name in names if name in declared.intermediates]
        rest += f" A dict of them may hold {', '.join(steps)} besides, and the test is sharper."
    elif len(names) > 1 and not declared.base:
        named = ", ".join(f'"{"scores" if n == "Ω" else n}": {n}' for n in names)
        rest += f" {names[-1]} alone will do, but the more there is, the sharper the test; "
        rest += f"{{{named}}} says it all."
    margin = " " * 4
    told = textwrap.fill(rest, WIDTH, initial_indent=margin, subsequent_indent=margin)
    body = "\n".join(f"    #     {line}".rstrip() for line in BODIES[profile].splitlines())
    return (
        f'def {profile}({SIGNATURES[profile]}):\n    """{first}\n\n{told}\n    """\n'
        "    # Call your implementation here, and turn what it returns into arrays.\n    #\n"
        f'{body}\n    raise RuntimeError("{profile} is still to be written")\n'
    )
