"""THE spec module: what trainable scaled dot-product self-attention is.

Each profile states its equations as text that can be read next to the paper: input embeddings
X (n tokens, width d), three trainable matrices, the scores Ω = QKᵀ, the attention weights
A = softmax(Ω/√c) row by row, and the context vectors C = AV. Everything else in the suite
interprets these texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final

from qkvac.spec.formats import FORMATS
from qkvac.spec.grammar.syntax import SpecError
from qkvac.spec.profile import Flag, Mask, Parameter, Profile, Size

SPEC_VERSION: Final = "1.3"
"""Changes whenever an equation, a bound, a case or a convention changes a verdict."""


ATTENTION = """
X[n, d]
Wq[d, c]
Wk[d, c]
Wv[d, c]
Q[n, c] = X @ Wq
K[n, c] = X @ Wk
V[n, c] = X @ Wv
Ω[n, n] = Q @ K.T
A[n, n] = softmax(Ω / sqrt(c), axis=1)
C[n, c] = A @ V
"""

NO_WEIGHTS = """
X[n, d]
Ω[n, n] = X @ X.T
A[n, n] = softmax(Ω, axis=1)
C[n, d] = A @ X
"""

LINEAR = """
X[n, d]
Wq[c, d]
Wk[c, d]
Wv[c, d]
Q[n, c] = X @ Wq.T
K[n, c] = X @ Wk.T
V[n, c] = X @ Wv.T
Ω[n, n] = Q @ K.T
A[n, n] = softmax(Ω / sqrt(c), axis=1)
C[n, c] = A @ V
"""

CROSS = """
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
"""

EMBEDDING = """
E[t, d]
P[p, d]
tokens[n]
X[n, d] = take(E, tokens) + first(P, n)
"""


def _biased(bias: str) -> str:
    text = LINEAR
    if bias:
        for name in ("q", "k", "v"):
            text = text.replace(f"X @ W{name}.T", f"X @ W{name}.T + b{name}")
        text = text.replace("Wv[c, d]\n", "Wv[c, d]\nbq[c]\nbk[c]\nbv[c]\n")
    return text


def _causal(text: str) -> str:
    return text.replace("axis=1)", "axis=1, where=causal(n, n))")


def _scaled_dot_product_attention(mask: str, causal: str, scale: str) -> str:
    where = {"": [], "boolean": ["mask"], "additive": ["finite(mask)"]}[mask]
    where = [*where, *(["causal(L, S)"] if causal else [])]
    scores = "Ω * scale" if scale else "Ω / sqrt(d)"
    scores += " + mask" if mask == "additive" else ""
    kept = f", where={' & '.join(where)}" if where else ""
    declared = ("mask[h, L, S]\n" if mask else "") + ("scale\n" if scale else "")
    return f"""
Q[h, L, d]
K[g, S, d]
V[g, S, v]
{declared}Ω[h, L, S] = Q @ repeat(K, h).T
A[h, L, S] = softmax({scores}, axis=2{kept})
C[h, L, v] = A @ repeat(V, h)
"""


def _multi_head(causal: str) -> str:
    kept = ", where=causal(n, n)" if causal else ""
    return f"""
X[n, d]
Wq[d, c]
Wk[d, c]
Wv[d, c]
Wo[c, o]
h
Q[n, c] = X @ Wq
K[n, c] = X @ Wk
V[n, c] = X @ Wv
Ω[h, n, n] = split(Q, h) @ split(K, h).T
A[h, n, n] = softmax(Ω / sqrt(c / h), axis=2{kept})
C[n, c] = merge(A @ split(V, h))
Y[n, o] = C @ Wo
"""


PROFILES: Final = (
    Profile(
        "attention",
        "self-attention with trainable weights",
        ATTENTION,
        takes="X, Wq, Wk, Wv",
        returns="Q, K, V, A, C",
        reports="Ω",
        shared="Wq, Wk, Wv",
        short="attn",
    ),
    Profile(
        "dot_product_attention",
        "self-attention without weights and without scale",
        NO_WEIGHTS,
        takes="X",
        returns="A, C",
        reports="Ω",
        short="dot",
    ),
    Profile(
        "causal_attention",
        "self-attention in which a token sees itself and earlier tokens",
        _causal(ATTENTION),
        takes="X, Wq, Wk, Wv",
        returns="Q, K, V, A, C",
        reports="Ω",
        shared="Wq, Wk, Wv",
        short="causal",
    ),
    Profile(
        "scaled_dot_product_attention",
        "what kernels implement, given queries, keys and values",
        _scaled_dot_product_attention,
        takes="Q, K, V",
        returns="A, C",
        reports="Ω",
        keywords={"causal": Flag(), "mask": Mask(), "scale": Parameter("scale", optional=True)},
        samples=True,
        unequal={
            "grouped_heads": ("g", "h"),
            "cross_length": ("L", "S"),
            "value_width": ("d", "v"),
        },
        short="sdpa",
    ),
    Profile(
        "multi_head_attention",
        "several heads, merged and projected",
        _multi_head,
        takes="X, Wq, Wk, Wv, Wo",
        returns="Q, K, V, A, C, Y",
        reports="Ω",
        keywords={"heads": Size("h"), "causal": Flag()},
        shared="Wq, Wk, Wv, Wo",
        short="heads",
    ),
    Profile(
        "attention_linear_layers",
        "self-attention with weights stored (c, d), as linear layers store them",
        _biased,
        takes="X, Wq, Wk, Wv, bq, bk, bv",
        returns="Q, K, V, A, C",
        reports="Ω",
        shared="Wq, Wk, Wv, bq, bk, bv",
        transposed="Wq, Wk, Wv",
        optional={"bias": "bq, bk, bv"},
        short="linear",
    ),
    Profile(
        "embedding",
        "token embeddings plus position embeddings",
        EMBEDDING,
        takes="tokens, E, P",
        returns="X",
        shared="E, P",
        short="embed",
    ),
    Profile(
        "cross_attention",
        "queries of one sequence attend to another, with trainable weights",
        CROSS,
        takes="X, Z, Wq, Wk, Wv",
        returns="Q, K, V, A, C",
        reports="Ω",
        shared="Wq, Wk, Wv",
        short="cross",
    ),
)
"""The suite's own profiles, in the order in which they are listed."""


@dataclass(frozen=True)
class Convention:
    """A choice that reasonable systems make differently; the first option is the spec's own."""

    name: str
    options: tuple[str, ...]
    about: str

    @property
    def default(self) -> str:
        return self.options[0]


CONVENTIONS: Final[Mapping[str, Convention]] = MappingProxyType(
    {
        convention.name: convention
        for convention in (
            Convention("empty_row", ("zeros", "mean", "NaN"), "weights of a query without keys"),
            Convention(
                "causal_alignment", ("top-left", "bottom-right"), "the triangle where L ≠ S"
            ),
            Convention("mask", ("True keeps", "True drops"), "what a boolean mask says"),
            Convention("weight_layout", ("d×c", "c×d"), "how weight matrices are stored"),
        )
    }
)

SOFTMAX_FORMS: Final = ("shifted, divided", "fused", "reciprocal", "logsumexp")
"""How the softmax is computed. Bits through the softmax are asked of the first form alone."""

SIGMOID_FORMS: Final = ("quotient", "logarithm", "tanh")
"""How σ is computed: 1/(1 + e^−x) or e^x/(1 + e^x); e^−ln(1 + e^−x); ½(1 + tanh(x/2))."""


@dataclass(frozen=True)
class Arithmetic:
    """The declared arithmetic model of an implementation: the formats that its roundings are of.

    Raises SpecError for an unknown format or form of softmax or sigmoid. An accumulator at least
    as precise as declared is always covered.
    """

    storage: str
    operands: str
    accumulation: str
    elementwise: str
    scores: str
    """The type in which the scores Ω are held."""
    softmax: str | None = None
    flushes: bool = False
    """Whether subnormal inputs and results may be replaced by 0."""
    blocks: int = 0
    """Block size along keys of an online softmax; 0 is unblocked."""
    truncates: bool = False
    """Whether results are cut off to the format that they are stored in, not rounded to nearest."""
    sigmoid: str | None = None

    def __post_init__(self) -> None:
        for name in ("storage", "operands", "accumulation", "elementwise", "scores"):
            if getattr(self, name) not in FORMATS:
                raise SpecError(
                    f"arithmetic.{name} = {getattr(self, name)!r} is no format; "
                    f"choose from {', '.join(FORMATS)}"
                )
        for name, forms in (("softmax", SOFTMAX_FORMS), ("sigmoid", SIGMOID_FORMS)):
            form = getattr(self, name)
            if form is not None and form not in forms:
                raise SpecError(f"arithmetic.{name} = {form!r}; choose from {', '.join(forms)}")
        if self.blocks < 0:
            raise SpecError(f"arithmetic.blocks = {self.blocks}; it is a block size, or 0")

    @classmethod
    def for_dtype(cls, dtype: str, declared: Mapping[str, Any] | None = None) -> Arithmetic:
        """The default model of a dtype with `declared` fields put in.

        By default everything is in the tensor's dtype, except that bfloat16 and float16
        accumulate in float32.
        """
        wide = "float32" if dtype in ("bfloat16", "float16") else dtype
        given = dict(declared or {})
        unknown = given.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise SpecError(f"arithmetic has no field {min(unknown)!r}")
        storage = given.get("storage", dtype)
        accumulation = given.get("accumulation", wide)
        model = cls(storage, storage, accumulation, storage, storage)
        return replace(model, **given)

    @property
    def u_s(self) -> float:
        """Unit roundoff of storing a result; twice that of the format where it is cut off."""
        return self._stored(self.storage)

    @property
    def u_h(self) -> float:
        """Unit roundoff with which scores are held."""
        return self._stored(self.scores)

    @property
    def u_o(self) -> float:
        """Unit roundoff that factors suffer before a product; 0 where they are used as stored."""
        coarser = FORMATS[self.operands].precision < FORMATS[self.storage].precision
        return FORMATS[self.operands].unit if coarser else 0.0

    @property
    def u_a(self) -> float:
        """Unit roundoff of accumulation."""
        return FORMATS[self.accumulation].unit

    @property
    def u_e(self) -> float:
        """Unit roundoff of the elementwise operations of the softmax."""
        return FORMATS[self.elementwise].unit

    @property
    def floor(self) -> float:
        """λ of storage: the absolute error of a result that underflows."""
        return self._floor(self.storage)

    @property
    def floor_a(self) -> float:
        """λ of accumulation."""
        return self._floor(self.accumulation)

    def _stored(self, name: str) -> float:
        unit = FORMATS[name].unit
        return 2 * unit if self.truncates else unit

    def _floor(self, name: str) -> float:
        return FORMATS[name].tiny if self.flushes else FORMATS[name].smallest
