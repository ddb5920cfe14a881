"""A port that offers every forward profile, and ways to get single functions of it wrong.

Written to files, because ports run in processes. It is plain NumPy in the dtype of its inputs, and
supports all that a port can declare.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

from qkvac.spec.registry import gradient_profiles
from qkvac.spec.symbolic.numpy_functions import body, signature

EVERYTHING: Final = '''
import numpy as np

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}


def weights(S, keep=True, empty=0.0):
    """Softmax of each row over the kept keys."""
    keep = np.broadcast_to(keep, S.shape)
    S = np.where(keep, S, S.dtype.type(-np.inf))
    top = S.max(axis=-1, keepdims=True, initial=-np.inf)
    E = np.exp(S - np.where(np.isfinite(top), top, 0))
    total = E.sum(axis=-1, keepdims=True)
    return np.where(total > 0, E / np.where(total > 0, total, 1), S.dtype.type(empty))


def triangle(L, S):
    return np.tri(L, S, dtype=bool)


def heads_of(x, h):
    *lead, n, c = x.shape
    return x.reshape(*lead, n, h, c // h).swapaxes(-2, -3)


def named(Q, K, V, S, A, C):
    return {"Q": Q, "K": K, "V": V, "scores": S, "A": A, "C": C}


def attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.swapaxes(-1, -2)
    A = weights(S / S.dtype.type(K.shape[-1] ** 0.5))
    return named(Q, K, V, S, A, A @ V)


def causal_attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.swapaxes(-1, -2)
    n = X.shape[-2]
    A = weights(S / S.dtype.type(K.shape[-1] ** 0.5), triangle(n, n))
    return named(Q, K, V, S, A, A @ V)


def cross_attention(X, Z, Wq, Wk, Wv):
    Q, K, V = X @ Wq, Z @ Wk, Z @ Wv
    S = Q @ K.swapaxes(-1, -2)
    A = weights(S / S.dtype.type(K.shape[-1] ** 0.5))
    return named(Q, K, V, S, A, A @ V)


def dot_product_attention(X):
    S = X @ X.swapaxes(-1, -2)
    A = weights(S)
    return {"scores": S, "A": A, "C": A @ X}


def attention_linear_layers(X, Wq, Wk, Wv, bq, bk, bv):
    Q, K, V = (
        X @ W.T if b is None else X @ W.T + b for W, b in ((Wq, bq), (Wk, bk), (Wv, bv))
    )
    S = Q @ K.swapaxes(-1, -2)
    A = weights(S / S.dtype.type(K.shape[-1] ** 0.5))
    return named(Q, K, V, S, A, A @ V)


def embedding(tokens, E, P):
    return E[tokens] + P[: tokens.shape[-1]]


def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
    h, g = Q.shape[-3], K.shape[-3]
    K, V = (np.repeat(x, h // max(g, 1), axis=-3) for x in (K, V))
    S = Q @ K.swapaxes(-1, -2)
    Z = S * S.dtype.type(scale) if scale is not None else S / S.dtype.type(Q.shape[-1] ** 0.5)
    keep = triangle(*S.shape[-2:]) if causal else np.array(True)
    if mask is not None and mask.dtype == bool:
        keep = keep & mask
    elif mask is not None:
        keep = keep & np.isfinite(mask)
        Z = Z + np.where(np.isfinite(mask), mask, 0)
    A = weights(Z, keep)
    return {"scores": S, "A": A, "C": A @ V}


def multi_head_attention(X, Wq, Wk, Wv, Wo, *, heads, causal=False):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    q, k, v = (heads_of(x, heads) for x in (Q, K, V))
    S = q @ k.swapaxes(-1, -2)
    n = X.shape[-2]
    A = weights(S / S.dtype.type(k.shape[-1] ** 0.5), triangle(n, n) if causal else True)
    C = (A @ v).swapaxes(-2, -3).reshape(V.shape)
    return {**named(Q, K, V, S, A, C), "Y": C @ Wo}
'''

GRADIENTS: Final = "\n\n".join(
    f"def {name}({signature(profile)}):\n{textwrap.indent(body(profile), '    ')}"
    for name, profile in gradient_profiles().items()
)
"""The functions of gradients, for whoever has NumPy as np."""


def write(folder: Path, text: str = "", name: str = "my_port") -> str:
    """A port that is right except for what `text` changes; returns its path."""
    path = folder / f"{name}.py"
    path.write_text(EVERYTHING + textwrap.dedent(text), encoding="utf-8")
    return str(path)
