"""An online softmax over blocks of 4 keys, masks included, skipping blocks without any key."""

import numpy as np
from _base import wide
from _kernels import bias, kept, layer, repeat, scale, scores, single

BLOCK = 4
QKVAC = {"supports": "all", "arithmetic": {"softmax": "fused", "blocks": BLOCK}}
scaled = scale


def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
    K, V, inner = repeat(K, Q.shape[-3]), repeat(V, Q.shape[-3]), wide(Q.dtype)
    S = scores(Q, K)
    Z = S.astype(inner) * inner.type(scaled(scale, Q.shape[-1])) + bias(mask, inner)
    Z = np.where(kept(mask, causal, *S.shape[-2:]), Z, -np.inf)
    top = np.full((*S.shape[:-1], 1), -np.inf, inner)
    total, C = np.zeros_like(top), np.zeros((*S.shape[:-1], V.shape[-1]), inner)
    for start in range(0, S.shape[-1], BLOCK):
        part, values = Z[..., start : start + BLOCK], V[..., start : start + BLOCK, :]
        if not np.isfinite(part).any():
            continue
        new = np.maximum(top, part.max(axis=-1, keepdims=True))
        base = np.where(np.isfinite(new), new, 0)
        shrink, terms = np.exp(top - base), np.exp(part - base)
        total = total * shrink + terms.sum(axis=-1, keepdims=True)
        C = C * shrink + terms @ values.astype(inner)
        top = new
    some = np.where(total > 0, total, 1)
    A = np.exp(Z - np.where(np.isfinite(top), top, 0)) / some
    return {"scores": S, "A": A.astype(Q.dtype), "C": (C / some).astype(Q.dtype)}


multi_head_attention = layer(attend=scaled_dot_product_attention)
causal_attention = single(attend=scaled_dot_product_attention)
