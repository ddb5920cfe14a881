"""V is X itself, cut or padded to c columns."""

import numpy as np
from _base import port, project


def unprojected(X, Wq, Wk, Wv):
    (n, d), c = X.shape, Wv.shape[1]
    V = np.zeros((n, c), X.dtype)
    V[:, : min(c, d)] = X[:, :c]
    return *project(X, Wq, Wk, Wv)[:2], V


attention = port(project=unprojected)
