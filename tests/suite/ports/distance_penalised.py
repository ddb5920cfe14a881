"""Each score is lowered by 0.001 for every token between query and key."""

import numpy as np
from _base import port, softmax


def penalised(S):
    token = np.arange(len(S), dtype=S.dtype)
    return softmax(S - S.dtype.type(1e-3) * abs(token[:, None] - token))


attention = port(softmax=penalised)
