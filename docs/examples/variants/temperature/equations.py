"""Several heads, each of which learns the temperature of its softmax."""

from qkvac.spec import Flag, Profile, Size


def text(causal):
    kept = ", where=causal(n, n)" if causal else ""
    return f"""
    X[n, d]
    Wq[d, c]
    Wk[d, c]
    Wv[d, c]
    tau[h, 1, 1]
    Q[n, c] = X @ Wq
    K[n, c] = X @ Wk
    V[n, c] = X @ Wv
    Ω[h, n, n] = split(Q, h) @ split(K, h).T
    A[h, n, n] = softmax(Ω * tau, axis=2{kept})
    C[n, c] = merge(A @ split(V, h))
    """


TEMPERED_ATTENTION = Profile(
    "tempered_attention",
    "several heads, each with a temperature of its own",
    text,
    takes="X, Wq, Wk, Wv, tau",
    keywords={"heads": Size("h"), "causal": Flag()},
    returns="Q, K, V, A, C",
    reports="Ω",
    shared="Wq, Wk, Wv, tau",
)
