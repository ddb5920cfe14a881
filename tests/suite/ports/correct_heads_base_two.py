"""Powers of 2, a reciprocal of the sum, and weights that are divided after the values."""

import numpy as np
from _base import product
from _kernels import kernel, layer, shifted, single, softmax

QKVAC = {"supports": "all", "arithmetic": {"softmax": "reciprocal"}}


def reciprocal(E):
    total = E.sum(axis=-1, keepdims=True)
    return E * (1 / np.where(total > 0, total, 1))


def powers(Z, keep):
    halvings = shifted(np.where(keep, Z, -np.inf)) * Z.dtype.type(np.log2(np.e))
    return reciprocal(np.exp2(halvings.astype(Z.dtype)))


scaled_dot_product_attention = kernel(softmax=powers)
multi_head_attention = layer(attend=kernel(softmax=powers), output=product)
causal_attention = single(
    attend=kernel(softmax=lambda Z, keep: softmax(Z, keep, normalise=reciprocal))
)
