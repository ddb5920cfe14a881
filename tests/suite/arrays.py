"""A plain NumPy algebra, to test the evaluation of the equations by what it computes.

It is written for clarity alone and takes any leading batch axes; nothing of the suite uses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkvac.spec.grammar.equations import Masks
from qkvac.spec.grammar.scalar import Scalar

Array = np.ndarray[Any, Any]


class Arrays(Masks):
    """Values are NumPy arrays; `reported` lists the results in the order they were reported."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def report(self, name: str, value: Array) -> Array:
        self.reported.append(name)
        return value

    def center(self, value: Array) -> Array:
        return value

    def matmul(self, x: Array, y: Array) -> Array:
        return np.asarray(np.einsum("...ij,...jk->...ik", x, y))

    def transpose(self, x: Array) -> Array:
        return np.swapaxes(x, -1, -2)

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(x + y)

    def subtract(self, x: Array, y: Array) -> Array:
        return np.asarray(x - y)

    def multiply(self, x: Array, y: Array) -> Array:
        return np.asarray(x * y)

    def negate(self, x: Array) -> Array:
        return -x

    def scale(self, x: Array, s: Scalar) -> Array:
        return np.asarray(x * float(s))

    def shift(self, x: Array, s: Scalar) -> Array:
        return np.asarray(x + float(s))

    def softmax(self, x: Array, axis: int, where: Array | None) -> Array:
        kept = np.broadcast_to(True if where is None else where, x.shape)
        largest = np.max(x, axis, keepdims=True, where=kept, initial=-np.inf)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        powers = np.where(kept, np.exp(np.where(kept, x - largest, 0.0)), 0.0)
        total = powers.sum(axis, keepdims=True)
        return np.asarray(powers / np.where(total == 0, 1.0, total))

    def sigmoid(self, x: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-x)))

    def tanh(self, x: Array) -> Array:
        return np.asarray(np.tanh(x))

    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(x.sum(axis, keepdims=True))

    def sum_to(self, x: Array, like: Array) -> Array:
        x = x.sum(tuple(range(x.ndim - like.ndim)))
        ones = tuple(i for i, size in enumerate(like.shape) if size == 1)
        return np.asarray(x.sum(ones, keepdims=True))

    def split(self, x: Array, h: int) -> Array:
        *lead, rows, width = x.shape
        return np.moveaxis(x.reshape(*lead, rows, h, width // h), -2, -3)

    def merge(self, x: Array) -> Array:
        *lead, heads, rows, width = x.shape
        return np.moveaxis(x, -3, -2).reshape(*lead, rows, heads * width)

    def repeat(self, x: Array, h: int) -> Array:
        return np.repeat(x, h // x.shape[-3], axis=-3)

    def take(self, table: Array, index: Array) -> Array:
        return np.asarray(table[index])

    def first(self, x: Array, n: int, axis: int) -> Array:
        return np.take(x, np.arange(n), axis=axis)

    def scatter_add(self, x: Array, index: Array, like: Array) -> Array:
        result = np.zeros(like.shape)
        np.add.at(result, index, x)
        return result

    def pad(self, x: Array, like: Array) -> Array:
        result = np.zeros(like.shape)
        result[..., : x.shape[-2], :] = x
        return result

    def lift(self, x: Array, axis: int, count: int) -> Array:
        at = x.ndim + axis
        return x.reshape(*x.shape[:at], *(1,) * count, *x.shape[at:])

    def drop(self, x: Array, axis: int, count: int) -> Array:
        return np.squeeze(x, tuple(range(axis - count, axis)))
