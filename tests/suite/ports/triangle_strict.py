"""A token may not see itself, and the first one sees nothing."""

import numpy as np
from _kernels import kept, kernel, single

QKVAC = {"supports": "all"}


def strict(L, S):
    return np.tri(L, S, -1, dtype=bool)


causal_attention = single(attend=kernel(kept=lambda *given: kept(*given, triangle=strict)))
