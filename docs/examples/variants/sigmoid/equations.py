"""Attention in which each key is weighed by itself: a sigmoid in place of the softmax."""

from qkvac.spec import Parameter, Profile

SIGMOID_ATTENTION = Profile(
    "sigmoid_attention",
    "attention whose weights are sigmoids of the scores",
    """
    X[n, d]
    Wq[d, c]
    Wk[d, c]
    Wv[d, c]
    bias
    Q[n, c] = X @ Wq
    K[n, c] = X @ Wk
    V[n, c] = X @ Wv
    Ω[n, n] = Q @ K.T
    A[n, n] = sigmoid(Ω / sqrt(c) + bias)
    C[n, c] = A @ V
    """,
    takes="X, Wq, Wk, Wv",
    keywords={"bias": Parameter("bias", values=(-2.5, 0.375))},
    returns="Q, K, V, A, C",
    reports="Ω",
    shared="Wq, Wk, Wv",
)
