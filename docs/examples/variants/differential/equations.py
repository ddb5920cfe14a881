"""Differential attention: the difference of two softmaxes, with a learned factor λ."""

from qkvac.spec import Profile

DIFFERENTIAL_ATTENTION = Profile(
    "differential_attention",
    "what one attention sees and another, times λ, does not",
    """
    X[n, d]
    W1[d, c]
    U1[d, c]
    W2[d, c]
    U2[d, c]
    Wv[d, v]
    lam[1]
    Q1[n, c] = X @ W1
    K1[n, c] = X @ U1
    Q2[n, c] = X @ W2
    K2[n, c] = X @ U2
    V[n, v] = X @ Wv
    A[n, n] = softmax(Q1 @ K1.T / sqrt(c), axis=1) - lam * softmax(Q2 @ K2.T / sqrt(c), axis=1)
    C[n, v] = A @ V
    """,
    takes="X, W1, U1, W2, U2, Wv, lam",
    returns="A, C",
    reports="Q1, K1, Q2, K2, V",
    shared="W1, U1, W2, U2, Wv, lam",
)
