"""One query at a time, in a Python loop."""

import numpy as np
from _base import project, scale

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def attention(X, Wq, Wk, Wv):
    Q, K, V = project(X, Wq, Wk, Wv)
    s = X.dtype.type(scale(*X.shape, K.shape[1]))
    A = np.zeros((len(X), len(X)), X.dtype)
    C = np.zeros_like(V)
    for i, query in enumerate(Q):
        z = np.array([query @ key for key in K]) * s
        E = np.exp(z - z.max())
        A[i] = E / E.sum()
        C[i] = A[i] @ V
    return {"Q": Q, "K": K, "V": V, "A": A, "C": C}
