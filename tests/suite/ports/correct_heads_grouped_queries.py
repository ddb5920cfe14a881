"""Query heads that share keys are gathered as further rows, instead of repeating the keys."""

import numpy as np
from _base import product
from _kernels import kernel, layer, t

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}


def gathered(left, right):
    """left (..., h, L, a) @ right (..., g, a, b), in one batched product over g."""
    *lead, h, L, a = left.shape
    g = right.shape[-3]
    if not g or not h:
        return np.zeros((*lead, h, L, right.shape[-1]), left.dtype)
    rows = left.reshape(*lead, g, h // g * L, a)
    return product(rows, right).reshape(*lead, h, L, right.shape[-1])


scaled_dot_product_attention = kernel(
    repeat=lambda K, h: K, scores=lambda Q, K: gathered(Q, t(K)), context=gathered
)
multi_head_attention = layer(attend=scaled_dot_product_attention)
