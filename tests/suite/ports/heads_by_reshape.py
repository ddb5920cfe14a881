"""Heads are split by a reshape alone."""

from _kernels import layer

QKVAC = {"supports": "all"}

multi_head_attention = layer(
    split=lambda X, h: X.reshape(*X.shape[:-2], h, X.shape[-2], X.shape[-1] // h)
)
