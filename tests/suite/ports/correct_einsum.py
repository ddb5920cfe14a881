"""Subscripts instead of products; the operands are never transposed."""

import numpy as np
from _base import port

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}

attention = port(
    project=lambda X, *weights: [np.einsum("nd,dc->nc", X, W) for W in weights],
    scores=lambda Q, K: np.einsum("ic,jc->ij", Q, K),
    context=lambda A, V: np.einsum("ij,jc->ic", A, V),
)
