"""An additive mask is taken for a constant, and gets zeros."""

import numpy as np
from _gradients import through_softmax, turned

QKVAC = {"supports": ["masks", "scale", "cross_length", "value_width"]}


def scaled_dot_product_attention_gradients(Q, K, V, dC, *, causal=False, mask=None, scale=None):
    scale = Q.dtype.type(Q.shape[-1] ** -0.5 if scale is None else scale)
    S = Q @ turned(K) * scale
    kept = np.tri(*S.shape[-2:]) > 0 if causal else np.True_
    if mask is not None and mask.dtype == bool:
        kept = kept & mask
    elif mask is not None:
        S = S + mask
    S = np.where(kept, S, -np.inf)
    top = S.max(axis=-1, keepdims=True)
    E = np.exp(S - np.where(top == -np.inf, 0, top))
    total = E.sum(axis=-1, keepdims=True)
    A = (E / np.where(total == 0, 1, total)).astype(Q.dtype)
    dS = through_softmax(A, dC @ turned(V))
    found = {"dQ": dS @ K * scale, "dK": turned(dS) @ Q * scale, "dV": turned(A) @ dC}
    if mask is not None and mask.dtype != bool:
        found["dmask"] = np.zeros_like(mask)
    return found
