"""Correct evaluations of the attention equations that differ in every rounding.

The rounding bounds must hold for all of them. Each `Variant` fixes the order of summation, the
use of fused multiply-add, where the scale is applied, how the softmax is written, and which
intermediates are rounded to storage. Everything is done in NumPy with explicit products and
additions, so that no library chooses an order. `truth` is the independent yardstick: Arb balls,
written out by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from qkvac.spec.enclosures.arb_balls import working_precision
from qkvac.spec.formats import FORMATS, dtype

Array = NDArray[Any]

SUMMATIONS = ("sequential", "reversed", "random", "pairwise", "worst")


@dataclass(frozen=True)
class Variant:
    """One correct way to evaluate attention in a storage format."""

    name: str
    order: str = "sequential"
    fma: bool = False
    scale: str = "scores"
    """Where 1/√c goes: "scores", "divide" (scores by √c), "query", or "split" as c^(−1/4) twice."""
    base: float = 0.0
    """2 writes e^x as 2^(x·log₂e)."""
    rough: bool = False
    """An exponential 2.5 ulp off instead of the library's."""
    shift: bool = True
    form: str = "divided"
    block: int = 0
    fused: bool = False
    """No intermediate is rounded to storage; only results are."""
    wide: bool = False
    """float64 inside."""
    narrow: bool = False
    """The softmax's elementwise operations in the storage format."""
    products_first: bool = False
    """The softmax's division after the product with V."""

    def formats(self, name: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """(storage, accumulation)"""
        wide = {"bfloat16": "float32", "float16": "float32"}.get(name, name)
        return dtype(name), dtype("float64" if self.wide else wide)


def _base(order: str, **options: Any) -> Variant:
    return Variant(order, order, **options)


VARIANTS = (
    *(_base(order) for order in SUMMATIONS),
    Variant("fma", fma=True),
    Variant("fma-reversed-query", "reversed", fma=True, scale="query"),
    Variant("query", "random", scale="query"),
    Variant("split", "pairwise", scale="split"),
    Variant("divide", scale="divide"),
    Variant("exp2", base=2.0),
    Variant("rough-worst", "worst", rough=True),
    Variant("reciprocal", form="reciprocal"),
    Variant("logsumexp", form="logsumexp"),
    Variant("logsumexp-exp2", form="logsumexp", base=2.0, scale="split"),
    Variant("fused", "random", fused=True),
    Variant("fused-exp2-query", fused=True, base=2.0, scale="query", form="reciprocal"),
    Variant("products-first", fused=True, products_first=True, rough=True),
    Variant("wide", wide=True),
    Variant("wide-fused", wide=True, fused=True),
    Variant("narrow", narrow=True),
    Variant("flash-1", block=1, fused=True),
    Variant("flash-8", "reversed", block=8, fused=True, base=2.0),
    Variant("flash-16", block=16, fused=True, rough=True),
)

UNSHIFTED = (Variant("unshifted", shift=False), Variant("unshifted-reversed", "worst", shift=False))
"""Correct only while the exponentials stay in range."""


def ordered_sum(terms: Array, axis: int, order: str, rng: np.random.Generator) -> Array:
    """Σ terms along `axis` in the terms' own format and in the given order."""
    terms = np.moveaxis(terms, axis, 0)
    if order == "reversed":
        terms = terms[::-1]
    elif order == "random":
        terms = terms[rng.permutation(len(terms))]
    elif order == "worst":
        # Descending, entry by entry: the partial sums become as large as they can.
        index = np.argsort(-terms.astype(np.float64), axis=0)
        terms = np.take_along_axis(terms, index, 0)
    if order == "pairwise":
        while len(terms) > 1:
            odd = terms[len(terms) // 2 * 2 :]
            terms = np.concatenate([terms[:-1:2] + terms[1::2], odd])
        return terms[0] if len(terms) else np.zeros(terms.shape[1:], terms.dtype)
    total = np.zeros(terms.shape[1:], terms.dtype)
    for term in terms:
        total = total + term
    return total


def product(
    x: Array, y: Array, kind: np.dtype[Any], variant: Variant, rng: np.random.Generator
) -> Array:
    """x @ y in format `kind`, in the variant's order."""
    if variant.fma and kind == np.float32:
        keys = range(x.shape[-1])
        total = np.zeros((*x.shape[:-1], y.shape[-1]), np.float32)
        for k in reversed(keys) if variant.order == "reversed" else keys:
            exact = x[..., k : k + 1].astype(np.float64) * y[..., k : k + 1, :].astype(np.float64)
            total = (total + exact).astype(np.float32)
        return total
    terms = x.astype(kind)[..., :, :, None] * y.astype(kind)[..., None, :, :]
    return ordered_sum(terms, -2, variant.order, rng)


def _exponential(x: Array, variant: Variant, rng: np.random.Generator) -> Array:
    kind = x.dtype
    if variant.base:
        x = x * kind.type(np.log2(np.e))
        return np.exp2(x)
    if variant.rough and kind in (np.float32, np.float64):
        unit = 2.0 ** -(24 if kind == np.float32 else 53)
        sign = rng.choice([-1.0, 1.0], x.shape)
        return (np.exp(x.astype(np.longdouble)) * (1 + 5 * unit * sign)).astype(kind)
    return np.exp(x)


def _scores(
    q: Array, k: Array, c: int, kinds: tuple[np.dtype[Any], ...], variant: Variant, rng: Any
) -> tuple[Array, Array]:
    """(Ω, Ω/√c), the former unscaled also where the scale sits in Q and K."""
    storage, inner = kinds
    keep = inner if variant.fused else storage
    plain = product(q, k.swapaxes(-1, -2), inner, variant, rng).astype(keep)
    factor = inner.type(1) / np.sqrt(inner.type(c))
    if variant.scale == "query":
        q = (q.astype(inner) * factor).astype(keep)
        return plain, product(q, k.swapaxes(-1, -2), inner, variant, rng).astype(keep)
    if variant.scale == "split":
        root = np.sqrt(factor)
        q, k = ((m.astype(inner) * root).astype(keep) for m in (q, k))
        return plain, product(q, k.swapaxes(-1, -2), inner, variant, rng).astype(keep)
    if variant.scale == "divide":
        return plain, (plain.astype(inner) / np.sqrt(inner.type(c))).astype(keep)
    return plain, (plain.astype(inner) * factor).astype(keep)


def _softmax(
    scores: Array, keep: Array, kinds: tuple[np.dtype[Any], ...], variant: Variant, rng: Any
) -> tuple[Array, Array]:
    """(numerators, denominators); A is their quotient, or the former alone with ones."""
    storage, inner = kinds
    kind = storage if variant.narrow else inner
    scores = np.where(keep, scores.astype(kind), kind.type(-np.inf))
    top = scores.max(-1, keepdims=True) if variant.shift else np.zeros((), kind)
    terms = _exponential(scores - top, variant, rng)
    total = ordered_sum(terms.astype(inner), -1, variant.order, rng)[..., None].astype(kind)
    if variant.form == "logsumexp":
        normalizer = top + np.log(total)
        return _exponential(scores - normalizer, variant, rng), np.ones_like(total)
    return terms, total


def _divided(terms: Array, total: Array, variant: Variant) -> Array:
    if variant.form == "reciprocal":
        return np.asarray(terms * (total.dtype.type(1) / total))
    return np.asarray(terms / total)


def _blocked(scores: Array, keep: Array, v: Array, variant: Variant, rng: Any) -> Array:
    """C by an online softmax over blocks of keys; numerators are never divided on their own."""
    kind = scores.dtype
    n, keys = scores.shape
    top = np.full((n, 1), -np.inf, kind)
    total, result = np.zeros((n, 1), kind), np.zeros((n, v.shape[-1]), kind)
    for start in range(0, keys, variant.block):
        part = slice(start, min(start + variant.block, keys))
        block = np.where(keep[:, part], scores[:, part], kind.type(-np.inf))
        new = np.maximum(top, block.max(-1, keepdims=True))
        base = np.where(np.isfinite(new), new, kind.type(0))
        rescale = _exponential(top - base, variant, rng)
        terms = _exponential(block - base, variant, rng)
        total = total * rescale + ordered_sum(terms, -1, variant.order, rng)[:, None]
        result = result * rescale + product(terms, v[part], kind, variant, rng)
        top = new
    return result / total


def attention(
    inputs: Mapping[str, Array], name: str, variant: Variant, causal: bool = False, seed: int = 0
) -> dict[str, Array]:
    """Q, K, V, Ω, A, C in the format `name`, evaluated as `variant` says."""
    storage, inner = kinds = variant.formats(name)
    rng, x = np.random.default_rng(seed), inputs["X"]
    n, c = x.shape[0], inputs["Wq"].shape[1]
    keep = np.tri(n, dtype=bool) if causal else np.ones((n, n), bool)
    between = inner if variant.fused else storage
    with np.errstate(all="ignore"):
        q, k, v = (
            product(x, inputs[w], inner, variant, rng).astype(between) for w in ("Wq", "Wk", "Wv")
        )
        omega, scores = _scores(q, k, c, kinds, variant, rng)
        terms, total = _softmax(scores, keep, kinds, variant, rng)
        weights = _divided(terms, total, variant).astype(between)
        if variant.block:
            context = _blocked(scores.astype(inner), keep, v.astype(inner), variant, rng)
        elif variant.products_first:
            context = product(terms, v, inner, variant, rng) / total
        else:
            context = product(weights, v, inner, variant, rng)
        results = {"Q": q, "K": k, "V": v, "Ω": omega, "A": weights, "C": context}
        return {quantity: value.astype(storage) for quantity, value in results.items()}


# --- the yardstick -------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """True values as unevaluated sums hi + lo, beyond double precision."""

    high: Array
    low: Array

    def error(self, computed: Array) -> Array:
        """|computed − true|, to a relative 2**-50."""
        y = computed.astype(np.float64)
        return np.abs((y - self.high) - self.low)


def _pair(matrix: flint.arb_mat) -> Truth:
    entries = matrix.entries()
    high = [float(entry.mid()) for entry in entries]
    low = [float((entry - h).mid()) for entry, h in zip(entries, high, strict=True)]
    shape = (matrix.nrows(), matrix.ncols())
    return Truth(np.reshape(high, shape), np.reshape(low, shape))


def _balls(array: Array) -> flint.arb_mat:
    rows, columns = array.shape
    return flint.arb_mat(rows, columns, array.astype(np.float64).ravel().tolist())


def truth(given: Mapping[str, Array], causal: bool = False) -> dict[str, Truth]:
    """The attention equations in 320-bit balls; quantities in `given` are taken as they are."""
    with working_precision(320):
        known = {name: _balls(array) for name, array in given.items()}
        for name, weight in (("Q", "Wq"), ("K", "Wk"), ("V", "Wv")):
            if name not in known and weight in known:
                known[name] = known["X"] * known[weight]
        if "Ω" not in known and "Q" in known:
            known["Ω"] = known["Q"] * known["K"].transpose()
        if "A" not in known and "Ω" in known:
            n, keys, c = known["Ω"].nrows(), known["Ω"].ncols(), known["Q"].ncols()
            scale = 1 / flint.arb(c).sqrt()
            rows = []
            for i in range(n):
                last = i + 1 if causal else keys
                row = [(known["Ω"][i, j] * scale).exp() for j in range(last)]
                total = sum(row, flint.arb(0))
                rows += [*(term / total for term in row), *[flint.arb(0)] * (keys - last)]
            known["A"] = flint.arb_mat(n, keys, rows)
        if "C" not in known and "A" in known and "V" in known:
            known["C"] = known["A"] * known["V"]
        return {name: _pair(matrix) for name, matrix in known.items() if name not in given}


# --- data ----------------------------------------------------------------------------------

FAMILIES = (
    "normal", "hot 6", "hot 30", "tiny", "cancellation", "wide", "shift 30", "shift 1000",
    "shift 30000", "dominating", "equal rows",
)  # fmt: skip


def inputs(family: str, name: str, shape: tuple[int, int, int], seed: int = 0) -> dict[str, Array]:
    """X, Wq, Wk, Wv of a family, representable in the format `name`."""
    n, d, c = shape
    rng = np.random.default_rng([seed, n, d, c, sum(map(ord, family))])
    x = rng.standard_normal((n, d))
    q, k, v = (rng.standard_normal((d, c)) / np.sqrt(d) for _ in range(3))
    if family.startswith("hot"):
        q = q * float(family.split()[1])
    elif family == "tiny":
        x = x * 2.0 ** {"float16": -7, "float64": -400}.get(name, -48)
    elif family == "cancellation":
        half = rng.standard_normal((n, (d + 1) // 2)) * 64
        x = np.concatenate([half, -half], 1)[:, :d] + x / 64
        q, k = (np.concatenate([w[: (d + 1) // 2]] * 2)[:d] for w in (q, k))
    elif family == "wide":
        spread = 4 if name == "float16" else 20
        power = np.exp2(rng.integers(-spread, spread + 1, d))
        x, q, k, v = x * power, *(w / power[:, None] for w in (q, k, v))
        v = v * np.exp2(rng.integers(-spread, spread + 1, c))
    elif family.startswith("shift"):
        x[:, 0] = 1
        q[:, -1] = k[:, -1] = 0
        q[0, -1], k[0, -1] = float(family.split()[1]), -np.sqrt(c)
        q[0, -1] *= 1 if seed % 2 else -1
    elif family == "dominating":
        x[:, 0] = 0
        x[rng.integers(n), 0] = 8
        x[:, -1] = 1
        k[0, :], q[-1, :] = 1, 8
    elif family == "equal rows":
        x[:] = x[0]
    kind = dtype(name)
    return {"X": x.astype(kind)} | {
        name: weight.astype(kind) for name, weight in (("Wq", q), ("Wk", k), ("Wv", v))
    }


def representable(values: Mapping[str, Truth], name: str) -> bool:
    """Whether no true value leaves the range of the format, with room for partial sums."""
    largest = FORMATS[name].largest / 16
    return all(bool((np.abs(value.high) < largest).all()) for value in values.values())
