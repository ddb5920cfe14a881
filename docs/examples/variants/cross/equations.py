"""Cross-attention with weights: queries from X, keys and values from Z."""

from qkvac.spec import Profile

WEIGHTED_CROSS_ATTENTION = Profile(
    "weighted_cross_attention",
    "queries of X attend to Z, with trainable weights",
    """
    X[n, d]
    Z[m, e]
    Wq[d, c]
    Wk[e, c]
    Wv[e, c]
    Q[n, c] = X @ Wq
    K[m, c] = Z @ Wk
    V[m, c] = Z @ Wv
    Ω[n, m] = Q @ K.T
    A[n, m] = softmax(Ω / sqrt(c), axis=1)
    C[n, c] = A @ V
    """,
    takes="X, Z, Wq, Wk, Wv",
    returns="Q, K, V, A, C",
    reports="Ω",
    shared="Wq, Wk, Wv",
)
