"""The equations at 250 decimal digits in mpmath: what the tests take for the truth.

Written apart from the algebras of the oracle: plain loops over object arrays of `mpf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np
from mpmath import mp, mpf

from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.grammar import equations
from qkvac.spec.grammar.equations import Masks, Program
from qkvac.spec.grammar.scalar import Scalar

DIGITS = 250


def number(value: Any) -> mpf:
    """A double, exactly."""
    return mpf(float(value))


def numbers(array: Any) -> Any:
    exact = np.asarray(array).astype(np.float64)
    return np.array([number(v) for v in exact.ravel()] or [None], dtype=object)[
        : exact.size
    ].reshape(exact.shape)


def exact_scalar(s: Scalar) -> mpf:
    factor = mpf(s.factor.numerator) / s.factor.denominator
    return factor * mpmath.sqrt(mpf(s.radicand.numerator) / s.radicand.denominator)


class Multiprecision(Masks):
    """The algebra of object arrays of `mpf`; `empty` is the weight in a row without keys."""

    def __init__(self, empty_row: str = "zeros") -> None:
        self.empty_row = empty_row

    def report(self, name: str, value: Any) -> Any:
        return value

    def center(self, value: Any) -> Any:
        return value.astype(np.float64)

    def matmul(self, x: Any, y: Any) -> Any:
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        x, y = np.broadcast_to(x, lead + x.shape[-2:]), np.broadcast_to(y, lead + y.shape[-2:])
        out = np.empty((*lead, x.shape[-2], y.shape[-1]), dtype=object)
        for index in np.ndindex(out.shape):
            *batch, i, j = index
            terms = zip(x[(*batch, i)], y[(*batch, slice(None), j)], strict=True)
            out[index] = mpmath.fsum(a * b for a, b in terms)
        return out

    def transpose(self, x: Any) -> Any:
        return x.swapaxes(-1, -2)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def subtract(self, x: Any, y: Any) -> Any:
        return x - y

    def multiply(self, x: Any, y: Any) -> Any:
        return x * y

    def negate(self, x: Any) -> Any:
        return -x

    def scale(self, x: Any, s: Scalar) -> Any:
        return x * exact_scalar(s)

    def shift(self, x: Any, s: Scalar) -> Any:
        return x + exact_scalar(s)

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis=axis, keepdims=True)

    def softmax(self, x: Any, axis: int, where: Any) -> Any:
        kept = np.broadcast_to(True if where is None else where, x.shape)
        rows, masks = np.moveaxis(x, axis, -1), np.moveaxis(kept, axis, -1)
        out = np.empty(rows.shape, dtype=object)
        for index in np.ndindex(rows.shape[:-1]):
            row, mask = rows[index], masks[index]
            keys = len(row)
            if not mask.any():
                weight = mpf(1) / keys if keys and self.empty_row == "mean" else mpf(0)
                out[index] = np.array([weight] * keys, dtype=object)
                continue
            top = max(row[mask])
            terms = [
                mpmath.exp(v - top) if keep else mpf(0) for v, keep in zip(row, mask, strict=True)
            ]
            total = mpmath.fsum(terms)
            out[index] = np.array([term / total for term in terms], dtype=object)
        return np.moveaxis(out, -1, axis)

    def split(self, x: Any, h: int) -> Any:
        width = x.shape[-1] // h
        return np.stack([x[..., i * width : (i + 1) * width] for i in range(h)], axis=-3)

    def merge(self, x: Any) -> Any:
        return np.concatenate([x[..., i, :, :] for i in range(x.shape[-3])], axis=-1)

    def repeat(self, x: Any, h: int) -> Any:
        group = x.shape[-3]
        return np.stack([x[..., i * group // h, :, :] for i in range(h)], axis=-3)

    def take(self, table: Any, index: Any) -> Any:
        rows = [table[i] for i in index.ravel()]
        return np.array(rows, dtype=object).reshape(*index.shape, table.shape[-1])

    def first(self, x: Any, n: int, axis: int) -> Any:
        return np.take(x, range(n), axis=axis)

    def lift(self, x: Any, axis: int, count: int) -> Any:
        for _ in range(count):
            x = np.expand_dims(x, x.ndim + axis)
        return x

    def sigmoid(self, x: Any) -> Any:
        return np.vectorize(lambda entry: 1 / (1 + mp.exp(-entry)), otypes=[object])(x)

    def tanh(self, x: Any) -> Any:
        return np.vectorize(mp.tanh, otypes=[object])(x)

    def drop(self, x: Any, axis: int, count: int) -> Any:
        for _ in range(count):
            x = np.squeeze(x, axis - 1)
        return x

    def sum_to(self, x: Any, like: Any) -> Any:
        out = np.full(like.shape, mpf(0), dtype=object)
        view = np.broadcast_to(np.arange(out.size).reshape(like.shape), x.shape)
        for target, value in zip(view.ravel(), x.ravel(), strict=True):
            out.reshape(-1)[target] += value
        return out

    def scatter_add(self, x: Any, index: Any, like: Any) -> Any:
        out = np.full(like.shape, mpf(0), dtype=object)
        for target, row in zip(index.ravel(), x.reshape(-1, like.shape[-1]), strict=True):
            out[target] += row
        return out

    def pad(self, x: Any, like: Any) -> Any:
        out = np.full(like.shape, mpf(0), dtype=object)
        out[: x.shape[0]] = x
        return out


def truth(
    program: Program, inputs: Mapping[str, Any], sizes: Mapping[str, Any], empty_row: str = "zeros"
) -> dict[str, Any]:
    """Every equation's value at DIGITS digits; masks and indices are passed as they are."""
    with mp.workdps(DIGITS):
        exact = {t.name: t.kind == "real" for t in program.inputs}
        values = {k: numbers(v) if exact[k] else v for k, v in inputs.items() if k in exact}
        return equations.evaluate(program, Multiprecision(empty_row), values, sizes)


def misses(enclosure: Enclosure, true: Any) -> list[tuple[int, ...]]:
    """Entries whose true value lies outside hi + lo ± radius; unknown ones claim nothing."""
    assert enclosure.shape == true.shape
    with mp.workdps(DIGITS):
        return [
            index
            for index in np.ndindex(true.shape)
            if enclosure.known[index]
            and abs(true[index] - number(enclosure.hi[index]) - number(enclosure.lo[index]))
            > number(enclosure.radius[index])
        ]
