"""Gradients as kernels compute them: weights from logarithms of sums, row sums from C and dC."""

import numpy as np
from _gradients import turned

QKVAC = {"supports": "all", "arithmetic": {"softmax": "logsumexp"}}


def attention_gradients(X, Wq, Wk, Wv, dC):
    scale = X.dtype.type(Wq.shape[1] ** -0.5)
    Q, K, V = X @ Wq * scale, X @ Wk, X @ Wv
    S = Q @ turned(K)
    top = S.max(axis=-1, keepdims=True, initial=-np.inf)
    A = np.exp(S - (top + np.log(np.exp(S - top).sum(axis=-1, keepdims=True))))
    dS = A * (dC @ turned(V) - (dC * (A @ V)).sum(axis=-1, keepdims=True))
    back = {"q": dS @ K * scale, "k": turned(dS) @ Q, "v": turned(A) @ dC}
    fused = np.concatenate(list(back.values()), axis=-1)
    dX = fused @ np.concatenate([Wq, Wk, Wv], axis=1).T
    dW = X.reshape(-1, X.shape[-1]).T @ fused.reshape(-1, fused.shape[-1])
    return dX, *np.split(dW, 3, axis=1)
