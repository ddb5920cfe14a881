"""THE spec module: what trainable scaled dot-product self-attention is.

Each profile states its equations as text that can be read next to the paper: input embeddings
X (n tokens, width d), three trainable matrices, the scores Ω = QKᵀ, the attention weights
A = softmax(Ω/√c) row by row, and the context vectors C = AV. Everything else in the suite
interprets these texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from qkvac.spec.adjoint import adjoint, cotangent
from qkvac.spec.equations import Program, SpecError, parse
from qkvac.spec.formats import FORMATS

SPEC_VERSION: Final = "1.2"
"""Changes whenever an equation, a bound, a case or a convention changes a verdict."""


@dataclass(frozen=True)
class Budget:
    """Operations that an implementation of a profile needs, for all tokens at once."""

    products: int
    transpositions: int


@dataclass(frozen=True)
class Profile:
    """A function that ports offer: its equations, one text for each choice of its flags."""

    name: str
    about: str
    texts: Mapping[str, str]
    """Variant name → text; the first is the one without flags."""
    quantities: tuple[str, ...]
    """What the function returns, in order; the last one is the profile's result."""
    optional: frozenset[str] = frozenset()
    budget: Budget | None = None
    base: str = ""
    """The profile whose gradients these are; "" for a function that computes no gradients."""

    @property
    def text(self) -> str:
        return next(iter(self.texts.values()))

    @property
    def last(self) -> str:
        return self.quantities[-1]

    def program(self, variant: str | None = None) -> Program:
        """The equations of a variant, by default the first; of gradients they are derived."""
        if variant is not None and variant not in self.texts:
            known = ", ".join(self.texts)
            raise SpecError(f"{self.name} has no variant {variant!r}; it has {known}")
        declared = _parsed(self.text if variant is None else self.texts[variant])
        return adjoint(declared, PROFILES[self.base].last) if self.base else declared

    def alternatives(self, variant: str | None = None) -> tuple[Program, ...]:
        """Programs of the same exact values, any of which an implementation may evaluate.

        The first is the declared one. Their bounds differ, and the larger one is asked.
        """
        declared = self.program(variant)
        if not self.base:
            return (declared,)
        forward = PROFILES[self.base].program(variant)
        return declared, adjoint(forward, PROFILES[self.base].last, contracted=True)

    def reported(self, variant: str | None = None) -> tuple[str, ...]:
        """Those of the quantities that a variant has."""
        tensors = self.program(variant).tensors
        return tuple(name for name in self.quantities if name in tensors)

    def results(self, variant: str | None = None) -> tuple[str, ...]:
        """What a variant is for: the last quantity, or every gradient."""
        if not self.base:
            return (self.last,)
        return tuple(name for name in self.reported(variant) if name not in self.optional)


@cache
def _parsed(text: str) -> Program:
    return parse(text)


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

EMBEDDING = """
E[t, d]
P[p, d]
tokens[n]
X[n, d] = take(E, tokens) + head(P, n)
"""


def _biased(text: str) -> str:
    for name in ("q", "k", "v"):
        text = text.replace(f"X @ W{name}.T", f"X @ W{name}.T + b{name}")
    return text.replace("Wv[c, d]\n", "Wv[c, d]\nbq[c]\nbk[c]\nbv[c]\n")


def _causal(text: str) -> str:
    return text.replace("axis=1)", "axis=1, where=causal(n, n))")


def _scaled_dot_product_attention(scale: str, mask: str, causal: bool) -> str:
    where = {"none": [], "boolean": ["mask"], "additive": ["finite(mask)"]}[mask]
    where = [*where, *(["causal(L, S)"] if causal else [])]
    scores = f"Ω {scale}" + (" + mask" if mask == "additive" else "")
    kept = f", where={' & '.join(where)}" if where else ""
    parameter = "scale\n" if "scale" in scale else ""
    declared = "mask[h, L, S]\n" if mask != "none" else ""
    return f"""
Q[h, L, d]
K[g, S, d]
V[g, S, v]
{declared}{parameter}Ω[h, L, S] = Q @ repeat(K, h).T
A[h, L, S] = softmax({scores}, axis=2{kept})
C[h, L, v] = A @ repeat(V, h)
"""


def _multi_head(causal: bool) -> str:
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


SDPA_VARIANTS: Final = MappingProxyType(
    {
        "-".join(filter(None, (mask, causal and "causal", scale))) or "plain": (
            _scaled_dot_product_attention(
                "* scale" if scale else "/ sqrt(d)", mask or "none", bool(causal)
            )
        )
        for scale in ("", "scale")
        for mask in ("", "boolean", "additive")
        for causal in ("", "causal")
    }
)


def _gradients(base: Profile) -> Profile:
    """The gradients of a profile's inputs, given the cotangent of its last quantity."""
    programs = [base.program(variant) for variant in base.texts]
    inputs = dict.fromkeys(t.name for p in programs for t in p.inputs if t.kind == "real")
    results = tuple(map(cotangent, inputs))
    tensors = {name for program in programs for name in program.tensors}
    steps = ("A", "dA", "dΩ", "dQ", "dK", "dV")
    optional = tuple(s for s in steps if s.removeprefix("d") in tensors and s not in results)
    return Profile(
        f"{base.name}_gradients",
        f"gradients of {base.name}, by the cotangent of {base.last}",
        base.texts,
        (*optional, *results),
        frozenset(optional),
        base=base.name,
    )


_FORWARD: Final = (
    Profile(
        "attention",
        "self-attention with trainable weights",
        {"plain": ATTENTION},
        ("Q", "K", "V", "Ω", "A", "C"),
        frozenset({"Ω"}),
        Budget(products=5, transpositions=1),
    ),
    Profile(
        "dot_product_attention",
        "self-attention without weights and without scale",
        {"plain": NO_WEIGHTS},
        ("Ω", "A", "C"),
        frozenset({"Ω"}),
        Budget(products=2, transpositions=1),
    ),
    Profile(
        "causal_attention",
        "self-attention in which a token sees itself and earlier tokens",
        {"plain": _causal(ATTENTION)},
        ("Q", "K", "V", "Ω", "A", "C"),
        frozenset({"Ω"}),
        Budget(products=5, transpositions=1),
    ),
    Profile(
        "scaled_dot_product_attention",
        "what kernels implement, given queries, keys and values",
        SDPA_VARIANTS,
        ("Ω", "A", "C"),
        frozenset({"Ω"}),
    ),
    Profile(
        "multi_head_attention",
        "several heads, merged and projected",
        {"plain": _multi_head(causal=False), "causal": _multi_head(causal=True)},
        ("Q", "K", "V", "Ω", "A", "C", "Y"),
        frozenset({"Ω"}),
    ),
    Profile(
        "attention_linear_layers",
        "self-attention with weights stored (c, d), as linear layers store them",
        {"plain": LINEAR, "bias": _biased(LINEAR)},
        ("Q", "K", "V", "Ω", "A", "C"),
        frozenset({"Ω"}),
    ),
    Profile(
        "embedding",
        "token embeddings plus position embeddings",
        {"plain": EMBEDDING},
        ("X",),
    ),
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {profile.name: profile for profile in _FORWARD}
)

GRADIENTS: Final[Mapping[str, Profile]] = MappingProxyType(
    {profile.name: profile for profile in map(_gradients, _FORWARD)}
)

DECLARED: Final[Mapping[str, Profile]] = MappingProxyType({**PROFILES, **GRADIENTS})
"""Every profile, those of gradients last."""


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


@dataclass(frozen=True)
class Arithmetic:
    """The declared arithmetic model of an implementation: the formats that its roundings are of.

    Raises SpecError for an unknown format or softmax form. An accumulator at least as precise as
    declared is always covered.
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

    def __post_init__(self) -> None:
        for name in ("storage", "operands", "accumulation", "elementwise", "scores"):
            if getattr(self, name) not in FORMATS:
                raise SpecError(
                    f"arithmetic.{name} = {getattr(self, name)!r} is no format; "
                    f"choose from {', '.join(FORMATS)}"
                )
        if self.softmax is not None and self.softmax not in SOFTMAX_FORMS:
            raise SpecError(
                f"arithmetic.softmax = {self.softmax!r}; choose from {', '.join(SOFTMAX_FORMS)}"
            )
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
        """Unit roundoff of the storage format."""
        return FORMATS[self.storage].unit

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

    def _floor(self, name: str) -> float:
        return FORMATS[name].tiny if self.flushes else FORMATS[name].smallest
