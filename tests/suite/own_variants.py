"""Profiles of somebody's own: variants of attention, each with a right function and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from qkvac.cells import Subject
from qkvac.checks.findings import Finding, Visit
from qkvac.checks.registry import finding
from qkvac.isolation.process import Outcome
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.derived_cases import all_cases
from qkvac.spec.registry import choose, known_profiles
from qkvac.subjects.roster import Entry

Array = np.ndarray[Any, Any]
Function = Callable[..., Mapping[str, Array]]

DECLARED: Final = '''
from qkvac.spec import Flag, Profile, Size

CROSS = Profile(
    "cross", "queries of X attend to Z",
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
    takes="X, Z, Wq, Wk, Wv", returns="Q, K, V, A, C", reports="Ω", shared="Wq, Wk, Wv",
)


def difference(causal):
    kept = ", where=causal(n, n)" if causal else ""
    return f"""
    X[n, d]
    W1[d, c]
    U1[d, c]
    W2[d, c]
    U2[d, c]
    Wv[d, v]
    lam[1]
    V[n, v] = X @ Wv
    B1[n, n] = softmax((X @ W1) @ (X @ U1).T / sqrt(c), axis=1{kept})
    B2[n, n] = softmax((X @ W2) @ (X @ U2).T / sqrt(c), axis=1{kept})
    A[n, n] = B1 - lam * B2
    C[n, v] = A @ V
    """


DIFFERENTIAL = Profile(
    "differential", "the difference of two attentions", difference,
    takes="X, W1, U1, W2, U2, Wv, lam", returns="A, C", reports="V, B1, B2",
    keywords={"causal": Flag()}, shared="W1, U1, W2, U2, Wv, lam",
)


def heads(causal):
    kept = ", where=causal(p, p)" if causal else ""
    return f"""
    T[p, f]
    Mq[f, w]
    Mk[f, w]
    Mv[f, w]
    r
    V[p, w] = T @ Mv
    A[r, p, p] = softmax(split(T @ Mq, r) @ split(T @ Mk, r).T / sqrt(w / r), axis=2{kept})
    Y[p, w] = merge(A @ split(V, r))
    """


HEADS = Profile(
    "heads", "several heads", heads,
    takes="T, Mq, Mk, Mv", returns="V, Y", keywords={"r": Size("r"), "causal": Flag()},
    shared="Mq, Mk, Mv",
)
'''


def softmax(S: Array, keep: Any = True) -> Array:
    """Rows over the kept keys; a query without keys gets zeros."""
    keep = np.broadcast_to(keep, S.shape)
    S = np.where(keep, S, -np.inf)
    top = S.max(axis=-1, keepdims=True, initial=-np.inf)
    E = np.exp(S - np.where(np.isfinite(top), top, 0))
    total = E.sum(axis=-1, keepdims=True)
    return np.asarray(E / np.where(total > 0, total, 1))


def turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def cross(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Mapping[str, Array]:
    Q, K, V = X @ Wq, Z @ Wk, Z @ Wv
    S = Q @ turned(K)
    A = softmax(S / np.sqrt(Q.shape[-1]))
    return {"Q": Q, "K": K, "V": V, "Ω": S, "A": A, "C": A @ V}


def differential(
    X: Array,
    W1: Array,
    U1: Array,
    W2: Array,
    U2: Array,
    Wv: Array,
    lam: Array,
    *,
    causal: bool = False,
    leak: int = 0,
) -> Mapping[str, Array]:
    V, root = X @ Wv, np.sqrt(W1.shape[-1])
    n = X.shape[-2]
    first = np.tri(n, dtype=bool) if causal else True
    second = np.tri(n, n, leak, dtype=bool) if causal else True
    B1 = softmax((X @ W1) @ turned(X @ U1) / root, first)
    B2 = softmax((X @ W2) @ turned(X @ U2) / root, second)
    A = B1 - lam * B2
    return {"V": V, "B1": B1, "B2": B2, "A": A, "C": A @ V}


def heads(
    T: Array, Mq: Array, Mk: Array, Mv: Array, *, r: int = 1, causal: bool = False
) -> Mapping[str, Array]:
    def split(x: Array) -> Array:
        return np.swapaxes(x.reshape(*x.shape[:-1], r, x.shape[-1] // r), -2, -3)

    q, k, v = (split(T @ M) for M in (Mq, Mk, Mv))
    keep = np.tri(T.shape[-2], dtype=bool) if causal else True
    A = softmax(q @ turned(k) / np.sqrt(q.shape[-1]), keep)
    Y = np.swapaxes(A @ v, -2, -3).reshape(*T.shape[:-1], -1)
    return {"V": T @ Mv, "Y": Y}


FUNCTIONS: Final[Mapping[str, Function]] = {
    "cross": cross,
    "differential": differential,
    "heads": heads,
}


@contextmanager
def declared(folder: Path) -> Iterator[None]:
    """With the profiles of `DECLARED` beside the suite's own."""
    path = folder / "variants.py"
    path.write_text(DECLARED, encoding="utf-8")
    try:
        choose([path])
        yield
    finally:
        choose()


def case_of(profile: str, variant: str = "") -> Case:
    """A case of plain data."""
    found = all_cases(known_profiles()[profile])
    return next(case for case in found if case.variant in ("", variant or "plain"))


def entry_of(profile: str) -> Entry:
    """A port that supports everything."""
    raw = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}
    return Entry(Subject("port", "default", "cpu", port="port.py"), raw, (profile,), {})


def found(check: str, case: Case, function: Function, dtype: str = "float64") -> Finding:
    """What a check makes of a function, called in this process."""

    def ask(inputs: Mapping[str, Array]) -> Outcome:
        with np.errstate(all="ignore"):
            told = function(*inputs.values(), **case.attributes)
        return Outcome("ok", outputs={n: a.astype(dtype) for n, a in told.items()})

    inputs = case.inputs(dtype)
    visit = Visit(entry_of(case.profile), dtype, case, inputs, ask(inputs), ask, lambda: None)
    return finding(check, visit)
