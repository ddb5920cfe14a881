"""Masked scores become the lowest number, and their exponentials are set to 0 before the sum."""

import numpy as np
from _kernels import kernel, layer, normalise, shifted

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}


def softmax(Z, keep):
    finite = np.where(keep, np.maximum(Z, np.finfo(Z.dtype).min), np.finfo(Z.dtype).min)
    return normalise(np.exp(shifted(finite)) * keep)


scaled_dot_product_attention = kernel(softmax=softmax)
multi_head_attention = layer(attend=kernel(softmax=softmax))
