"""Loops over samples and heads, each of which is a product of two matrices."""

import numpy as np
from _base import product
from _kernels import bias, kept, layer, scale, softmax

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}
scaled = scale


def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
    *lead, h, L, d = Q.shape
    S, dtype = K.shape[-2], Q.dtype
    shapes = {"scores": (L, S), "A": (L, S), "C": (L, V.shape[-1])}
    made = {name: np.zeros((*lead, h, *shape), dtype) for name, shape in shapes.items()}
    each = h // max(K.shape[-3], 1)
    added = np.broadcast_to(bias(mask, dtype), (*lead, h, L, S))
    keep = np.broadcast_to(kept(mask, causal, L, S), (*lead, h, L, S))
    for sample in np.ndindex(*lead):
        for head in range(h):
            one, group = (*sample, head), (*sample, head // each)
            found = product(Q[one], K[group].T)
            weights = softmax(found * dtype.type(scaled(scale, d)) + added[one], keep[one])
            made["scores"][one], made["A"][one] = found, weights
            made["C"][one] = product(weights, V[group])
    return made


multi_head_attention = layer(attend=scaled_dot_product_attention)
