"""A query without keys gets NaN."""

from _kernels import kernel, softmax

QKVAC = {"supports": "all"}

scaled_dot_product_attention = kernel(
    softmax=lambda Z, keep: softmax(Z, keep, normalise=lambda E: E / E.sum(-1, keepdims=True))
)
