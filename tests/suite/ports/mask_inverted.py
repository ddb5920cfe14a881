"""True in a mask is taken for what is dropped."""

from _kernels import kept, kernel

QKVAC = {"supports": "all"}


def inverted(mask, causal, L, S):
    return kept(~mask if mask is not None and mask.dtype == bool else mask, causal, L, S)


scaled_dot_product_attention = kernel(kept=inverted)
