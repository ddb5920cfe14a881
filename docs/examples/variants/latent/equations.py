"""Multi-head latent attention: keys and values are expanded from what little a cache holds.

The weights that expand them can be absorbed by those of the queries and of the result: another
order of the same products, whose rounding errors are allowed as well.
"""

from qkvac.spec import Profile, Size

INPUTS = """
    X[n, d]
    Wq[d, c]
    Wd[d, r]
    Uk[r, c]
    Uv[r, c]
    Wo[c, o]
    h
    L[n, r] = X @ Wd
    Q[n, c] = X @ Wq
"""

EXPANDED = f"""{INPUTS}
    K[n, c] = L @ Uk
    V[n, c] = L @ Uv
    Ω[h, n, n] = split(Q, h) @ split(K, h).T
    A[h, n, n] = softmax(Ω / sqrt(c / h), axis=2, where=causal(n, n))
    C[n, c] = merge(A @ split(V, h))
    Y[n, o] = C @ Wo
"""

ABSORBED = f"""{INPUTS}
    Ω[h, n, n] = split(Q, h) @ split(Uk, h).T @ L.T
    A[h, n, n] = softmax(Ω / sqrt(c / h), axis=2, where=causal(n, n))
    C[n, c] = merge(A @ L @ split(Uv, h))
    Y[n, o] = C @ Wo
"""

LATENT_ATTENTION = Profile(
    "latent_attention",
    "several heads whose keys and values are expanded from one latent vector a token",
    EXPANDED,
    alternatives=(ABSORBED,),
    takes="X, Wq, Wd, Uk, Uv, Wo",
    keywords={"heads": Size("h")},
    returns="L, Q, A, C, Y",
    reports="K, V, Ω",
    shared="Wq, Wd, Uk, Uv, Wo",
)
