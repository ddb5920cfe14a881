"""Scores of tokens among themselves made once, their triangle mirrored."""

import numpy as np
from _base import product
from _kernels import normalise, shifted, t

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}


def dot_product_attention(X):
    lower = np.tril(product(X, t(X)))
    S = lower + t(np.tril(lower, -1))
    A = normalise(np.exp(shifted(S)))
    return {"scores": S, "A": A, "C": product(A, X)}
