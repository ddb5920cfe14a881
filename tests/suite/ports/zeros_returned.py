"""Every result has the right shape and dtype, and is 0."""

import numpy as np
from _base import attention as plain


def attention(X, Wq, Wk, Wv):
    return {name: np.zeros_like(value) for name, value in plain(X, Wq, Wk, Wv).items()}
