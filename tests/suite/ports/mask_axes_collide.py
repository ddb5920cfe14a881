"""A mask without heads is broadcast so that its samples meet the heads."""

import numpy as np
from _kernels import kept, kernel

QKVAC = {"supports": "all"}


def collided(mask, causal, L, S):
    if mask is not None and mask.ndim == 4 and mask.shape[1] == 1:
        mask = np.swapaxes(mask, 0, 1)
    return kept(mask, causal, L, S)


scaled_dot_product_attention = kernel(kept=collided)
