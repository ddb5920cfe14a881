"""Poor arithmetic on arrays: narrow products, exponentials, maxima and sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkvac.spec.formats import FORMATS, dtype

Array = np.ndarray[Any, Any]
Function = Callable[..., Array]


def kept_scores(x: Array, where: Array | None) -> Array:
    return x if where is None else np.where(where, x, x.dtype.type(-np.inf))


def row_maximum(x: Array) -> Array:
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isfinite(top), top, np.zeros((), x.dtype))


def rounded(x: Array, bits: int) -> Array:
    """x rounded to nearest, ties to even, at `bits` significand bits; the dtype stays."""
    fraction, exponent = np.frexp(x)
    return np.asarray(
        np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(x.dtype, copy=False)
    )


def through(x: Array, name: str) -> Array:
    """x stored in a format and read back."""
    return x.astype(dtype(name)).astype(x.dtype)


def tfloat32(x: Array) -> Array:
    return rounded(x, FORMATS["tfloat32"].precision)


def brain(x: Array) -> Array:
    return rounded(x, FORMATS["bfloat16"].precision)


def eight_bits(x: Array) -> Array:
    """x in 255 equal steps between −max |x| and max |x|."""
    step = np.max(np.abs(x), initial=0.0) / x.dtype.type(127)
    return np.where(step > 0, np.rint(x / np.where(step > 0, step, 1)) * step, 0).astype(x.dtype)


def running(x: Array, y: Array, bits: int) -> Array:
    """x @ y, term after term, every partial sum rounded to `bits` significand bits."""
    total = np.zeros(np.broadcast_shapes(x[..., :1].shape, y[..., :1, :].shape), x.dtype)
    for k in range(x.shape[-1]):
        total = rounded(total + x[..., k, None] * y[..., k, None, :], bits)
    return total


def in_format(x: Array, y: Array, name: str) -> Array:
    """x @ y with both factors and the product in another format."""
    kind = dtype(name)
    return np.asarray((x.astype(kind) @ y.astype(kind)).astype(x.dtype))


def pairs(x: Array, y: Array) -> Array:
    """Factors split into two bfloat16 parts, the product of the two lower parts left out."""
    high, top = brain(x), brain(y)
    low, rest = brain(x - high), brain(y - top)
    return np.asarray(low @ top + high @ rest + high @ top)


def strassen(x: Array, y: Array) -> Array:
    """Strassen's seven half-size products: small only beside the largest entries."""
    (*_, n, k), m = x.shape, y.shape[-1]
    x = np.pad(x, [*[(0, 0)] * (x.ndim - 2), (0, n % 2), (0, k % 2)])
    y = np.pad(y, [*[(0, 0)] * (y.ndim - 2), (0, k % 2), (0, m % 2)])
    (a, b), (c, d) = (np.split(half, 2, axis=-1) for half in np.split(x, 2, axis=-2))
    (e, f), (g, h) = (np.split(half, 2, axis=-1) for half in np.split(y, 2, axis=-2))
    one, two, three = (a + d) @ (e + h), (c + d) @ e, a @ (f - h)
    four, five = d @ (g - e), (a + b) @ h
    six, seven = (c - a) @ (e + f), (b - d) @ (g + h)
    top = np.concatenate([one + four - five + seven, three + five], axis=-1)
    bottom = np.concatenate([two + four, one - two + three + six], axis=-1)
    return np.concatenate([top, bottom], axis=-2)[..., :n, :m]


def tensor_tiles(x: Array, y: Array) -> Array:
    """TF32 factors where every axis is a multiple of 8."""
    if any(axis % 8 for axis in (*x.shape[-2:], *y.shape[-2:])):
        return x @ y
    return tfloat32(x) @ tfloat32(y)


def without_last_terms(x: Array, y: Array, tile: int = 8) -> Array:
    """Terms beyond the last whole tile are left out of the sums."""
    whole = x.shape[-1] // tile * tile or x.shape[-1]
    return x[..., :whole] @ y[..., :whole, :]


def without_last_row(x: Array, y: Array) -> Array:
    """Rows beyond the last whole tile of 16 are never written."""
    product = x @ y
    whole = product.shape[-2] // 16 * 16 or product.shape[-2]
    product[..., whole:, :] = 0
    return product


def polynomial(z: Array, degree: int) -> Array:
    """e^z as 2^whole · p(fraction), with a polynomial through the Chebyshev points."""
    p = np.polynomial.Chebyshev.interpolate(np.exp2, degree, domain=[-0.5, 0.5])
    halvings = np.maximum(z / np.log(2), -5000)
    whole = np.rint(halvings)
    return np.asarray(np.ldexp(p(halvings - whole), whole.astype(int)).astype(z.dtype))


def exponent_field(z: Array) -> Array:
    """Schraudolph's trick: the scaled argument is read as the bits of a float."""
    bits = np.maximum(z * (2**23 / np.log(2)) + (127 * 2**23 - 366393), 0)
    return np.asarray(bits.astype(np.int32).view(np.float32).astype(z.dtype))


def compounding(z: Array) -> Array:
    """(1 + z/1024)^1024."""
    return np.maximum(1 + z / 1024, 0) ** 1024


def softmax(
    x: Array,
    where: Array | None = None,
    *,
    maximum: Function = row_maximum,
    exp: Function = np.exp,
    normalise: Function = lambda e: e / e.sum(axis=-1, keepdims=True),
) -> Array:
    """Attention weights of scaled scores [..., n, keys], made of the given pieces."""
    kept = kept_scores(x, where)
    return normalise(exp(kept - maximum(kept)))


def in_precision(x: Array, where: Array | None = None, *, name: str) -> Array:
    """A softmax every step of which is rounded to a format."""
    return softmax(x.astype(dtype(name)), where).astype(x.dtype)


def by_blocks(x: Array, v: Array, block: int, fault: str) -> Array:
    """Context by an online softmax over blocks of keys, one rescaling of which is forgotten."""
    shape = x.shape[:-1]
    m = np.full((*shape, 1), -np.inf, x.dtype)
    total = np.zeros((*shape, 1), x.dtype)
    context = np.zeros((*shape, v.shape[-1]), x.dtype)
    for start in range(0, x.shape[-1], block):
        part = x[..., start : start + block]
        new = np.maximum(m, part.max(axis=-1, keepdims=True))
        shrink, terms = np.exp(m - new), np.exp(part - new)
        if fault == "last block only" and start:
            total, context = np.zeros_like(total), np.zeros_like(context)
        total = total * (1 if fault == "sum" else shrink) + terms.sum(axis=-1, keepdims=True)
        context = context * (1 if fault == "context" else shrink)
        context = context + terms @ v[..., start : start + block, :]
        m = new if fault != "maximum" else part.max(axis=-1, keepdims=True)
        if fault == "early division":
            context = context / total
            total = np.ones_like(total)
    return context / total


def normalised(e: Array, epsilon: float = 0.0) -> Array:
    return np.asarray(e / (e.sum(axis=-1, keepdims=True) + e.dtype.type(epsilon)))


def by_narrow_sum(e: Array) -> Array:
    ones = np.ones((e.shape[-1], 1), e.dtype)
    return e / running(e, ones, FORMATS["bfloat16"].precision)


def first_of_tile(x: Array) -> Array:
    """The maximum of the first query of each tile of 8, for all of them."""
    return np.repeat(row_maximum(x)[..., ::8, :], 8, axis=-2)[..., : x.shape[-2], :]
