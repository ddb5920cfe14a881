"""The same with keys and values expanded first; it is right as well."""

import numpy as np
from port import QKVAC, causal_softmax, merge, split, turned

__all__ = ["QKVAC", "latent_attention"]


def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
    L, Q = X @ Wd, X @ Wq
    k, v = split(L @ Uk, heads), split(L @ Uv, heads)
    root = X.dtype.type(np.sqrt(Q.shape[-1] // heads))
    A = causal_softmax(split(Q, heads) @ turned(k) / root)
    C = merge(A @ v)
    return L, Q, A, C, C @ Wo
