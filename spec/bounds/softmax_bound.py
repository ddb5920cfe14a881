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
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS

Array = NDArray[np.float64]

CALM: Final = 2.0**-6
"""Below this θ, e^θ − 1 ≤ θ(1 + θ) and D ≥ 1 − Σ A(e^θ − 1) are sharp enough."""

EXPONENT: Final = 600.0
"""Exponents are cut here: the bound is trivial long before, and sums must not overflow."""

UNDERFLOWS: Final = 3
"""λ a weight: its exponential, its quotient, its storage."""

CENTER_UNDERFLOW: Final = 2.0**-1070
"""The same for the center, which is evaluated in float64."""

ARGUMENT: Final = 3
"""Roundings of an exponential's argument: subtraction, constant log₂e, product."""

EXPONENTIAL: Final = 6
"""An exponential's relative error in u: 3 ulp."""

RESCALE: Final = 8
"""Relative error in u of rescaling by e^(old maximum − new maximum): exponential and product."""

FREE_OF_LOGARITHM: Final = ("shifted, divided", "reciprocal")


def compound(*errors: float | Array) -> Any:
    """Π(1 + error) − 1, without the cancellation that would lose u = 2**-53."""
    total: float | Array = 0.0
    for error in errors:
        total = total + error + total * error
    return total


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
    rise: float
    """Upper bound of every e^θ − 1, cut at 1: larger growth is within the weights' own bounds."""


@dataclass(frozen=True)
class _Rows:
    """A softmax along one axis: the true weights, and the logarithmic errors of their terms."""

    axis: int
    keys: Array | float
    """Number of kept keys, one a row."""
    depth: Array
    """z, −inf where masked."""
    normalizer: Array
    """Σ e^z, one a row."""
    value: Array
    theta: Array
    """θ; of no meaning where masked."""
    fixed: float
    """The part of θ that does not depend on the scores."""
    logarithm: Array | float
    """Relative error that the log-sum-exp gives to a whole row."""
    doubt: float

    def sum(self, terms: Array) -> Array:
        return np.asarray(terms.sum(self.axis, keepdims=True))

    def growth(self) -> tuple[Array, Array, Array]:
        """(A(e^θ − 1), Σ A(1 − e^(−θ)), D); the latter two may be larger, and smaller."""
        if self.calm:
            growth = 1 + self.theta
            growth *= self.theta
            growth *= self.value
            lost = self.sum(growth)
            return growth, lost, 1 - lost
        growth = self.value * np.expm1(np.minimum(self.theta, 1.0))
        # A key whose own weight has underflowed counts by what its score may be at most.
        raised = np.exp(np.minimum(self.depth + self.theta, EXPONENT)) / self.normalizer
        growth = np.where(self.theta > 1, raised - self.value, growth)
        lost = -self.sum(self.value * np.expm1(-self.theta))
        return growth, lost, self.sum(self.value * np.exp(-self.theta))

    @property
    def calm(self) -> bool:
        return bool(self.theta.max(initial=0.0) < CALM)

    def doubted(self) -> Array | float:
        """Factor for bounds that are proportional to A, as far as the center of A may be off.

        A weight at the center is off by e^(2(doubt − 1)θ), once for its own score and once for the
        row's sum, and the bound is a product of three of them: A, Σ A(1 − e^(−θ)) and 1/D.
        """
        if self.doubt < 1 + 2.0**-20 or self.theta.max(initial=0.0) < 2.0**-24:
            return 1.0
        heard = np.where(self.depth + self.theta > -745, self.theta, 0.0)
        worst = heard.max(self.axis, keepdims=True, initial=0.0)
        return np.asarray(np.exp(np.minimum(6 * (self.doubt - 1) * worst, EXPONENT)))


def _rows(
    a: Arithmetic,
    scores: Array,
    error: Array,
    axis: int,
    where: np.ndarray | None,
    doubt: float,
) -> _Rows:
    size, u = scores.shape[axis], a.u_e
    keys: Array | float = float(size)
    if where is not None:
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
        can_lead = np.where(scores + error >= leading, error, 0.0)
        rival = can_lead.max(axis, keepdims=True, initial=0.0)
    blocks = -(-size // a.blocks) if a.blocks else 1
    fixed = -np.log1p(-EXPONENTIAL * u)
    fixed += RESCALE * max(u, a.u_a) * blocks if blocks > 1 else 0.0
    steps = compound(*[u] * ARGUMENT)
    theta = (1 + steps) * error
    theta -= steps * (depth if where is None else np.where(where, depth, 0.0))
    theta += steps * rival + fixed

    logarithm: Array | float = 0.0
    if a.softmax not in FREE_OF_LOGARITHM:
        # m and m + log l are rounded, and log l is 3 ulp off; S − L is longer by log l.
        length = 2 * (np.abs(top) + rival) + 11 * np.log(np.maximum(keys, 1))
        logarithm = np.expm1(np.minimum(u * length, EXPONENT))
    return _Rows(axis, keys, depth, normalizer, value, theta, float(fixed), logarithm, doubt)


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
    a, u = arithmetic, arithmetic.u_e
    if where is not None:
        where = np.broadcast_to(where, scores.shape)
    rows = _rows(a, scores, error, axis, where, doubt)
    value, theta = rows.value, rows.theta
    lowest = "tiny" if a.flushes else "smallest"
    floor = UNDERFLOWS * max(getattr(FORMATS[f], lowest) for f in (a.elementwise, a.storage))
    floor += CENTER_UNDERFLOW
    summing = rows.keys * (a.u_a + floor) + (u if u > a.u_a else 0.0)
    single = compound(u, u)
    quotient = compound(single, rows.logarithm)

    growth, lost, remaining = rows.growth()
    total = lost if rows.calm else rows.sum(growth)
    remaining = remaining * np.maximum(1 - summing, 0.0)
    bound = growth * ((1 + quotient) / remaining)
    bound += value * ((quotient + lost + summing) / remaining)
    if not rows.calm:
        # Weights that underflow in float64 may matter once the maximum itself is uncertain.
        reach = rows.depth + theta - np.log(rows.normalizer * remaining)
        raised = np.exp(np.minimum(reach, EXPONENT)) * (1 + quotient)
        bound = np.where(remaining < 0.5, raised, bound)
        below = (total + summing - np.expm1(-theta) + quotient) / (1 + total + summing)
        bound = np.maximum(bound, value * np.minimum(below, 1.0))
    doubted = rows.doubted()
    growth, total, bound = growth * doubted, total * doubted, bound * doubted
    if not bound.max(initial=0.0) < 0.5:
        limit = np.maximum(value, 1 - value) if doubt < 1.5 else np.ones_like(value)
        # Where nothing is left of the denominator, 0/0 stands for any weight at all.
        bound = np.fmin(bound, limit + (single + rows.fixed + summing))
    bound += floor
    if not np.all(np.isfinite(theta)):
        bound = np.where(np.isfinite(theta).all(axis, keepdims=True), bound, np.inf)
    if where is not None:
        bound = np.where(where, bound, 0.0)
    if a.u_s > u:
        single = compound(single, a.u_s)
    common = (rows.logarithm + summing) / np.maximum(1 - summing, 0.0)
    rise = float(np.minimum(2 * theta.max(initial=0.0), 1.0))
    weights = Weights(growth, total, remaining / doubted, common, single, floor, rise)
    return value, bound, weights


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
    unit = np.exp2(np.frexp(np.abs(spread).max(-2, keepdims=True, initial=0.0))[1] - 1.0)
    spread, offset = spread / unit, (product - middle) / unit
    first, second = np.split(growth @ np.concatenate([spread, spread**2], -1), 2, -1)
    square = second + total * offset**2
    deviation = square - 2 * offset * first
    # The subtraction may cancel; what its rounding can hide is added.
    deviation = np.maximum(deviation, 0.0) + 2.0**-46 * square + 2.0**-1000
    moved = unit * np.sqrt(total * deviation) / weights.remaining
    common = weights.common
    error = moved * (1 + common) + common * np.abs(product)
    error += (1 + (doubt - 1) * weights.rise) * from_values
    error += weights.single / (1 - weights.single) * size
    error += weights.floor * np.abs(values).sum(-2, keepdims=True)
    error *= 1 + common + total / weights.remaining
    return np.where(total < 0.5, error, np.inf)
