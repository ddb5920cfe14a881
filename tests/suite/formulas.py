"""All profiles but that of kernels in plain NumPy, with steps that can be exchanged for wrong ones.

The steps as they stand are right. A mistake is a `Steps` with one of them replaced; what cases
must catch is tried that way, without a port or a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.cases.case import Case

Array = NDArray[Any]


def wide(x: Array) -> Array:
    """In the type that products accumulate in."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def product(x: Array, y: Array) -> Array:
    return np.asarray((wide(x) @ wide(y)).astype(x.dtype))


def turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def triangle(n: int) -> Array:
    return np.tri(n, dtype=bool)


def softmax(scores: Array, keep: Array | None) -> Array:
    """Over the last axis, the row's maximum subtracted; what is not kept is 0."""
    logits = wide(scores)
    if keep is not None:
        logits = np.where(keep, logits, np.asarray(-np.inf, logits.dtype))
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray((powers / powers.sum(axis=-1, keepdims=True)).astype(scores.dtype))


def dense(x: Array, weight: Array, bias: Array | None) -> Array:
    """A linear layer whose weight is stored (out, in)."""
    result = wide(x) @ wide(turned(weight))
    return np.asarray((result if bias is None else result + wide(bias)).astype(x.dtype))


def split(x: Array, heads: int) -> Array:
    """[…, n, c] to […, h, n, c/h]."""
    return np.swapaxes(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -2, -3)


def merge(x: Array) -> Array:
    """[…, h, n, c/h] to […, n, c]."""
    swapped = np.swapaxes(x, -2, -3)
    return swapped.reshape(*swapped.shape[:-2], swapped.shape[-2] * swapped.shape[-1])


def root(d: int, c: int, heads: int) -> float:
    """What scores are divided by."""
    return float(np.sqrt(c / heads))


def embed(tokens: Array, table: Array, places: Array) -> Array:
    rows = wide(table)[tokens] + wide(places)[: tokens.shape[-1]]
    return np.asarray(rows.astype(table.dtype))


@dataclass(frozen=True)
class Steps:
    """The steps of an evaluation."""

    product: Callable[[Array, Array], Array] = product
    triangle: Callable[[int], Array | None] = triangle
    softmax: Callable[[Array, Array | None], Array] = softmax
    dense: Callable[[Array, Array, Array | None], Array] = dense
    split: Callable[[Array, int], Array] = split
    merge: Callable[[Array], Array] = merge
    root: Callable[[int, int, int], float] = root
    embed: Callable[[Array, Array, Array], Array] = embed
    raw: Callable[[Array], Array] = lambda x: product(x, turned(x))
    """Scores without weights."""
    weighted: Callable[[Array, Array], Array] = product
    """The values by their weights."""
    arrange: Callable[[dict[str, Array]], dict[str, Array]] = lambda inputs: inputs
    """What is done with the inputs first."""


def evaluate(
    case: Case, inputs: Mapping[str, Array], steps: Steps | None = None
) -> dict[str, Array]:
    """All quantities of a case of any profile but `scaled_dot_product_attention`."""
    s = steps or Steps()
    x = s.arrange(dict(inputs))
    with np.errstate(all="ignore"):
        if case.profile == "embedding":
            return {"X": s.embed(x["tokens"], x["E"], x["P"])}
        if case.profile == "dot_product_attention":
            scores = s.raw(x["X"])
            weights = s.softmax(scores, None)
            return {"Ω": scores, "A": weights, "C": s.weighted(weights, x["X"])}
        return _projected(case, x, s)


def _projected(case: Case, x: Mapping[str, Array], s: Steps) -> dict[str, Array]:
    if case.profile == "attention_linear_layers":
        q, k, v = (s.dense(x["X"], x[f"W{name}"], x.get(f"b{name}")) for name in "qkv")
    else:
        q, k, v = (s.product(x["X"], x[f"W{name}"]) for name in "qkv")
    heads = case.attributes.get("heads")
    parts = (q, k, v) if heads is None else tuple(s.split(part, heads) for part in (q, k, v))
    scores = s.product(parts[0], turned(parts[1]))
    masked = case.profile == "causal_attention" or case.attributes.get("causal")
    keep = s.triangle(scores.shape[-1]) if masked else None
    divisor = s.root(x["X"].shape[-1], q.shape[-1], heads or 1)
    weights = s.softmax(scores / scores.dtype.type(divisor), keep)
    context = s.weighted(weights, parts[2])
    results = {"Q": q, "K": k, "V": v, "Ω": scores, "A": weights, "C": context}
    if heads is None:
        return results
    merged = s.merge(context)
    return results | {"C": merged, "Y": s.product(merged, x["Wo"])}
