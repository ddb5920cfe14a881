"""The rounding bounds of the logistic function σ(x) = 1/(1 + e^(−x)), and of tanh.

Condition. If the argument is off by δ, |δ| ≤ E, then

    |σ(x + δ) − σ(x)| ≤ σ(1 − σ)(e^E − 1):

σ(x + δ) − σ = σ(1 − σ)(e^δ − 1)/(1 + σ(e^δ − 1)). For δ ≥ 0 the denominator is at least 1; for
δ < 0 it is at least e^δ, and (1 − e^δ)e^(−δ) = e^|δ| − 1. As tanh x = 2σ(2x) − 1, and 4σ(1 − σ) at
2x is 1 − tanh² x,

    |tanh(x + δ) − tanh x| ≤ ½(1 − tanh² x)(e^(2E) − 1),

and at most E, as the derivative is at most 1.

Implementation. An exponential of 3 ulp whose argument is rounded three times (where it is written
as 2^(x·log₂e): the constant and the product; the subtraction of a softmax is allowed for as well)
gives e^(−x̂) up to a factor e^τ, |τ| ≤ θ_e = 3u(|x| + E) − ln(1 − 6u): as if x were off by
θ = E + θ_e. A sum and a quotient follow, each rounded once, whether 1/(1 + e^(−x)) or
e^x/(1 + e^x) is meant: a factor between (1 − u)/(1 + u) and its inverse. With g = 2u/(1 − u),

    |σ̂ − σ| ≤ σ(1 − σ)(e^θ − 1)(1 + g) + gσ + 3λ,

λ for each underflow of exponential, quotient and storage. Where e^(−x) overflows, its reciprocal is
0: there σ, which is about 1/largest and may well be representable, is lost as a whole. No result is
further off than max(σ, 1 − σ) + g. Of tanh 5 ulp are allowed, the most that conforming libraries
may be off: 10u·|tanh x|, and λ.

Forms. What a port may declare as `sigmoid`:

* `quotient`: as above.
* `logarithm`: e^(−L), L = ln(1 + e^(−x)), which is max(0, −x) + ln(1 + e), e = e^(−|x|). The inner
  exponential moves L by at most e/(1 + e)·(e^θ_e − 1); its sum with 1 is rounded, the logarithm is
  3 ulp off, and L, like the argument of the last exponential, rounded at its own magnitude: with

      s = e/(1 + e)·(e^θ_e − 1) + u + 6u·ln(1 + e) + 3u·L − ln(1 − 6u)

  σ is off by the factor e^s, also where it is near 1.
* `tanh`: ½(1 + tanh(x/2)). Its error is that of tanh: about u everywhere, whatever σ is, so that
  nothing is left of small results.

Undeclared, it is either of the first two.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.softmax_bound import (
    ARGUMENT,
    CENTER_UNDERFLOW,
    EXPONENT,
    EXPONENTIAL,
    UNDERFLOWS,
    compound,
)
from qkvac.spec.formats import FORMATS

Array = NDArray[np.float64]

QUOTIENT: Final = 2
"""Roundings after the exponential: a sum and a quotient."""

LOGARITHM: Final = 6
"""A logarithm's relative error in u: 3 ulp."""

LENGTH: Final = 3
"""In units of u·L: L itself, and the constant and the product of the last exponential."""

TANGENT: Final = 10
"""A hyperbolic tangent's relative error in u: 5 ulp."""


def logistic(x: Array) -> Array:
    """σ(x) in float64, accurate at both ends."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def sigmoid_error(a: Arithmetic, x: Array, error: Array, doubt: float) -> tuple[Array, Array]:
    """σ and the bound of |σ̂ − σ| for arguments off by `error`, one entry at a time.

    `doubt` is 1 + 2**-53 over the model's finest unit roundoff: the true argument may be
    (doubt − 1)·error from the one given.
    """
    if a.sigmoid == "tanh":
        return _through_tanh(a, x, error, doubt)
    u = a.u_e
    e = np.exp(-np.abs(x))
    value = logistic(x)
    rounded = compound(*[u] * ARGUMENT) * (np.abs(x) + doubt * error)
    rounded = rounded - np.log1p(-EXPONENTIAL * u)
    bound = np.zeros_like(value)
    if a.sigmoid != "logarithm":
        moved = _moved(x, e, error + rounded)
        relative = QUOTIENT * u / (1 - u)
        bound = moved * (1 + relative) + relative * value
        lost = overflows(a, x, error + rounded)
        bound = np.where(lost, np.maximum(bound, value + moved), bound)
    if a.sigmoid != "quotient":
        moved, length = _moved(x, e, error), np.maximum(-x, 0.0) + np.log1p(e)
        exponent = e / (1 + e) * np.expm1(np.minimum(rounded, EXPONENT))
        exponent += u * (1 + LOGARITHM * np.log1p(e) + LENGTH * (length + doubt * error))
        exponent -= np.log1p(-EXPONENTIAL * u)
        through = moved + (value + moved) * np.expm1(np.minimum(exponent, 1.0))
        whole = np.exp(np.minimum(exponent + error - length, EXPONENT))
        bound = np.maximum(bound, np.where(exponent > 1, whole, through))
    # The center's own argument is off by (doubt − 1)·error; ln σ and ln σ(1 − σ) are no steeper.
    bound = np.fmin(bound, 2.0) * np.exp(np.minimum((doubt - 1) * error, EXPONENT))
    limit = np.fmin(np.maximum(value, 1 - value) + (doubt - 1) * error, 1.0)
    bound = np.fmin(bound, limit + compound(u * QUOTIENT, u * EXPONENTIAL))
    return value, _known(error, bound + _floor(a, UNDERFLOWS))


def overflows(a: Arithmetic, x: Array, theta: Array) -> NDArray[np.bool_]:
    """Where e^(−x) may leave the range of the format that it is computed in."""
    return np.asarray(theta - x > np.log(FORMATS[a.elementwise].largest))


def _moved(x: Array, e: Array, theta: Array) -> Array:
    """σ(1 − σ)(e^θ − 1); of large θ in one exponential, as σ(1 − σ) may have underflowed."""
    near = e / (1 + e) ** 2 * np.expm1(np.minimum(theta, 1.0))
    far = np.exp(np.minimum(theta - np.abs(x), EXPONENT)) / (1 + e) ** 2
    return np.asarray(np.where(theta > 1, far, near))


def tanh_error(a: Arithmetic, x: Array, error: Array, doubt: float) -> tuple[Array, Array]:
    """tanh x and the bound of its error, as in `sigmoid_error`."""
    value = np.tanh(x)
    e = np.exp(-2 * np.abs(x))
    # ½(1 − tanh² x) is 2σ(1 − σ) at 2x.
    moved = np.fmin(2 * _moved(2 * x, e, 2 * doubt * error), error)
    library = compound(TANGENT * a.u_e)
    bound = moved + library * (np.abs(value) + doubt * moved)
    bound = np.fmin(bound, np.fmin(1 + np.abs(value) + (doubt - 1) * error, 2.0) + library)
    return value, _known(error, bound + _floor(a, UNDERFLOWS))


def _through_tanh(a: Arithmetic, x: Array, error: Array, doubt: float) -> tuple[Array, Array]:
    """½(1 + t) with t = tanh(x/2): halves are exact, the sum is rounded at its own magnitude."""
    value = logistic(x)
    _, off = tanh_error(a, x / 2, error / 2 + _floor(a, 1), doubt)
    bound = off / 2
    return value, _known(error, bound + a.u_e * (value + doubt * bound) + _floor(a, UNDERFLOWS))


def _floor(a: Arithmetic, underflows: int) -> float:
    lowest = "tiny" if a.flushes else "smallest"
    least = max(getattr(FORMATS[f], lowest) for f in (a.elementwise, a.storage))
    return float(underflows * least + CENTER_UNDERFLOW)


def _known(error: Array, bound: Array) -> Array:
    """Nothing is known of an argument of which nothing is."""
    return np.asarray(np.where(np.isfinite(error), bound, np.inf))
