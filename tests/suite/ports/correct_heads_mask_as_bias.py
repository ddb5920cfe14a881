"""A boolean or causal mask becomes 0 and −∞, added to scores whose scale sits in the queries."""

import numpy as np
from _base import product, wide
from _kernels import kept, layer, normalise, repeat, scale, shifted, single, t

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}
scaled = scale


def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
    K, V, inner = repeat(K, Q.shape[-3]), repeat(V, Q.shape[-3]), wide(Q.dtype)
    keep = kept(mask, causal, Q.shape[-2], K.shape[-2])
    added = np.where(keep, 0, -np.inf).astype(inner)
    if mask is not None and mask.dtype != bool:
        added = added + mask.astype(inner)
    factor = inner.type(scaled(scale, Q.shape[-1]))
    A = normalise(np.exp(shifted((Q * factor) @ t(K) + added))).astype(Q.dtype)
    return {"A": A, "C": product(A, V)}


multi_head_attention = layer(attend=scaled_dot_product_attention)
causal_attention = single(attend=scaled_dot_product_attention)
