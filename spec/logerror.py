"""The rounding bound of a softmax, through the logarithmic errors of its terms.

One row: scores Sₖ, each off by at most Eₖ, and a true result Aₖ = e^Sₖ / Σ e^S. A computed term
is e^(Sₖ + τₖ) up to a factor common to the row, |τₖ| ≤ θₖ. With zₖ = Sₖ − max S, u = u_e,

    θₖ = Eₖ + 3u(|zₖ| + Eₖ + E*) + 6u + 8uB

* 3u: the subtraction of the maximum and, where the exponential is written as 2^(x·log₂e), the
  constant and the product. The computed difference may exceed |zₖ| by Eₖ + E*, where E* is the
  largest error of a key that can be the computed maximum, S + E ≥ max(S − E): a key whose score
  is the most negative finite number has a huge error, and no influence.
* 6u: an exponential of 3 ulp, the largest that conforming libraries are allowed.
* 8u for each of B blocks of an online softmax, if B > 1: the exponential and the product that
  rescale. Their own arguments telescope into the 3u|z| above.

The sum over n kept keys has a relative error r = n·u_a (and u, if it is rounded to a coarser
format), and the quotient two more roundings, as dividing by multiplication with a reciprocal
has: g = (1 + u)². Hence, with D = Σ A e^(−θ) and U = Σ A e^θ,

    Âₖ ≤ Aₖ e^θₖ g / (D(1 − r))        Âₖ ≥ Aₖ e^(−θₖ) / (g U(1 + r)).

Both sides are kept in the form of differences, so that nothing cancels. A key that cannot be
told from the maximum makes D small, and only then the bound is as large as the trivial one,
max(A, 1 − A). Through the log-sum-exp, Â = e^(S − L), the row carries a common factor more: L is
rounded at its own magnitude, not at that of z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS

Array = np.ndarray[Any, np.dtype[np.float64]]

CALM = 2.0**-6
"""Below this θ, e^θ − 1 ≤ θ(1 + θ) and D ≥ 1 − Σ A(e^θ − 1) are sharp enough."""

EXPONENT = 600.0
"""Exponents are cut here: the bound is trivial long before, and sums must not overflow."""

UNDERFLOWS = 8
"""λ an entry: exponential, quotient or product, the center's own, each at most twice."""

FREE_OF_LOGARITHM = ("shifted, divided", "reciprocal")


@dataclass(frozen=True)
class Weights:
    """Errors of a softmax over its last axis, which a product with it can use more sharply."""

    growth: Array
    """Aₖ(e^θₖ − 1), shaped like A."""
    total: Array
    """Its sum, one a row."""
    remaining: Array
    """Lower bound of D, one a row."""
    common: Array | float
    """Relative error that all weights of a row share: the sum's, and the log-sum-exp's."""
    single: float
    """Relative error of each weight by itself: the quotient's two roundings, and storage."""
    floor: float
    """Absolute error of each weight by underflow."""


def softmax_error(
    arithmetic: Arithmetic,
    scores: Array,
    error: Array,
    axis: int,
    where: np.ndarray | None,
    doubt: float,
) -> tuple[Array, Array, Weights]:
    """A, the bound of |Â − A| for scores off by `error`, and what a product with A can use.

    Entries that `where` masks are exactly 0, and so is their bound. `doubt` is 1 + 2**-53 over
    the model's finest unit roundoff.
    """
    a, u, size = arithmetic, arithmetic.u_e, scores.shape[axis]
    keys: Array | float = float(size)
    if where is not None:
        where = np.broadcast_to(where, scores.shape)
        keys = where.sum(axis, keepdims=True, dtype=np.float64)
        scores, error = np.where(where, scores, -np.inf), np.where(where, error, 0.0)
    top = scores.max(axis, keepdims=True, initial=-np.inf)
    if where is not None:
        top = np.where(keys > 0, top, 0.0)
    depth = scores - top
    value = np.exp(depth)
    normalizer = value.sum(axis, keepdims=True)
    if where is not None:
        normalizer[keys == 0] = 1.0
    value /= normalizer

    rival = error.max(axis, keepdims=True, initial=0.0)
    if not np.all(rival < 1):
        leading = (scores - error).max(axis, keepdims=True, initial=-np.inf)
        rival = np.where(scores + error >= leading, error, 0.0).max(
            axis, keepdims=True, initial=0.0
        )
    blocks = -(-size // a.blocks) if a.blocks else 1
    fixed = -np.log1p(-6 * u) + (8 * max(u, a.u_a) * blocks if blocks > 1 else 0.0)
    steps = (1 + u) ** 3 - 1
    visible = depth if where is None else np.where(where, depth, 0.0)
    theta = (1 + steps) * error
    theta -= steps * visible
    theta += steps * rival + fixed

    lowest = "tiny" if a.flushes else "smallest"
    floor = UNDERFLOWS * max(getattr(FORMATS[f], lowest) for f in (a.elementwise, a.storage))
    summing = keys * (a.u_a + floor) + (u if u > a.u_a else 0.0)
    logarithm: Array | float = 0.0
    if a.softmax not in FREE_OF_LOGARITHM:
        # m and m + log l are rounded, and log l is 3 ulp off; S − L is longer by log l.
        logarithm = np.expm1(u * (2 * (np.abs(top) + rival) + 11 * np.log(np.maximum(keys, 1))))
    quotient = (1 + u) ** 2 * (1 + logarithm) - 1

    largest = theta.max(initial=0.0)
    if largest < CALM:
        growth = 1 + theta
        growth *= theta
        growth *= value
        total = lost = growth.sum(axis, keepdims=True)
        remaining = 1 - lost
    else:
        growth = value * np.expm1(np.minimum(theta, 1.0))
        raised = np.exp(np.minimum(depth + theta, EXPONENT)) / normalizer
        growth = np.where(theta > 1, raised - value, growth)
        total = growth.sum(axis, keepdims=True)
        lost = -(value * np.expm1(-theta)).sum(axis, keepdims=True)
        remaining = (value * np.exp(-theta)).sum(axis, keepdims=True)
    remaining = remaining * np.maximum(1 - summing, 0.0)
    bound = growth * ((1 + quotient) / remaining)
    bound += value * ((quotient + lost + summing) / remaining)
    if largest >= CALM:
        # Weights that underflow in float64 may matter once the maximum itself is uncertain.
        raised = np.exp(np.minimum(depth + theta - np.log(normalizer * remaining), EXPONENT))
        bound = np.where(remaining < 0.5, raised * (1 + quotient), bound)
        below = total + summing
        below = (below - np.expm1(-theta) + quotient) / (1 + below)
        bound = np.maximum(bound, value * np.minimum(below, 1.0))
    if doubt > 1 + 2.0**-20 and largest > 2.0**-24:
        heard = np.where(depth + theta > -745, theta, 0.0).max(axis, keepdims=True, initial=0.0)
        grown = np.exp(np.minimum(6 * (doubt - 1) * heard, EXPONENT))
        growth, total, bound = growth * grown, total * grown, bound * grown
        remaining = remaining / grown
    if not bound.max(initial=0.0) < 0.5:
        limit = np.maximum(value, 1 - value) if doubt < 1.5 else np.ones_like(value)
        # Where nothing is left of the denominator, 0/0 stands for any weight at all.
        bound = np.fmin(bound, limit + (quotient + fixed + summing))
    bound += floor
    if not np.isfinite(largest):
        bound = np.where(np.isfinite(theta).all(axis, keepdims=True), bound, np.inf)
    if where is not None:
        bound = np.where(where, bound, 0.0)
    stored = a.u_s if a.u_s > u else 0.0
    single = (1 + u) ** 2 * (1 + stored) - 1
    common = (1 + logarithm) / np.maximum(1 - summing, 0.0) - 1
    return value, bound, Weights(growth, total, remaining, common, single, floor)


def weighted_error(
    weights: Weights,
    values: Array,
    product: Array,
    size: Array,
    from_values: Array | float,
    doubt: float,
) -> Array:
    """Bound of the error that Â and V̂ contribute to C = A @ V, before its own roundings.

    `size` bounds |Â||V̂|, `from_values` |Â||V̂ − V|. As Σ A(V − C) = 0, the weights' errors act
    on V − C instead of V:

        |ΔC| ≤ Σₖ Aₖ(e^θₖ − 1)|Vₖ − C| / D + common·|C| + single·|Â||V|

    so that an error common to the scores of a row cancels. The sum over k is replaced by its
    Cauchy–Schwarz bound √(Σₖ Gₖ · Σₖ Gₖ(Vₖ − C)²), which takes two matrix products instead of
    an array over (query, key, column).
    """
    growth, total = weights.growth, weights.total
    middle = values.sum(-2, keepdims=True) / max(values.shape[-2], 1)
    spread = values - middle
    unit = np.exp2(np.frexp(np.abs(spread).max(-2, keepdims=True, initial=0.0))[1])
    spread, offset = spread / unit, (product - middle) / unit
    first, second = np.split(growth @ np.concatenate([spread, spread**2], -1), 2, -1)
    square = second + total * offset**2
    deviation = square - 2 * offset * first
    # The subtraction may cancel; what its rounding can hide is added.
    deviation = np.maximum(deviation, 0.0) + 2.0**-46 * square + 2.0**-1000
    moved = unit * np.sqrt(total * deviation) / weights.remaining
    common = weights.common
    error = moved * (1 + common) + common * np.abs(product) + doubt * from_values
    error += weights.single / (1 - weights.single) * size
    error += weights.floor * np.abs(values).sum(-2, keepdims=True)
    error *= 1 + common + total / weights.remaining
    return np.where(total < 0.5, error, np.inf)
