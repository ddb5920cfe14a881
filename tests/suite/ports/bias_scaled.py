"""An additive mask is scaled with the scores."""

import numpy as np
from _base import product, wide
from _kernels import bias, kept, repeat, scale, scores, softmax

QKVAC = {"supports": "all"}
scaled = scale


def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
    K, V = repeat(K, Q.shape[-3]), repeat(V, Q.shape[-3])
    S, inner = scores(Q, K), wide(Q.dtype)
    Z = (S + np.maximum(bias(mask, inner), -1e30)) * inner.type(scaled(scale, Q.shape[-1]))
    A = softmax(Z.astype(inner), kept(mask, causal, *S.shape[-2:])).astype(Q.dtype)
    return {"scores": S, "A": A, "C": product(A, V)}
