"""Attention with heads in float64 NumPy, step by step, and what becomes of it when a step is wrong.

`Right` follows the equations; each other class here differs from it in one step, as real
implementations have done. They show which cases tell them apart, and which do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvac.spec.cases.case import Case
from qkvac.spec.formats import dtype

Array = np.ndarray[Any, Any]


class Right:
    """Ω, A and C of a case, rounded once to its dtype; a query without keys has weights 0."""

    alignment = "top-left"
    empty = 0.0

    def __init__(self, case: Case, name: str) -> None:
        self.case, self.name = case, name
        self.causal = bool(case.attributes.get("causal"))
        self.given: float | None = case.attributes.get("scale")

    def stored(self, array: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(dtype(self.name))

    def repeated(self, x: Array, heads: int) -> Array:
        return np.repeat(x, heads // max(x.shape[-3], 1), axis=-3)

    def scale(self, Q: Array, V: Array) -> float:
        return float(Q.shape[-1] ** -0.5 if self.given is None else self.given)

    def triangle(self, queries: int, keys: int) -> Array:
        offset = keys - queries if self.alignment == "bottom-right" else 0
        return np.tri(queries, keys, offset, dtype=bool)

    def whole(self, mask: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(mask, shape)

    def biased(self, scores: Array, scale: float, mask: Array) -> Array:
        return scores * scale + np.where(np.isfinite(mask), mask, 0.0)

    def kept(self, mask: Array) -> Array:
        return mask if mask.dtype == np.bool_ else np.isfinite(mask)

    def visible(self, mask: Array | None, shape: tuple[int, ...]) -> Array:
        keeps = np.ones(shape, bool) if mask is None else self.kept(mask)
        return np.asarray(keeps & self.triangle(*shape[-2:]) if self.causal else keeps)

    def weights(self, scaled: Array, keeps: Array) -> Array:
        scaled = np.where(keeps, scaled, -np.inf)
        top = scaled.max(-1, keepdims=True, initial=-np.inf)
        terms = np.exp(scaled - np.where(np.isfinite(top), top, 0.0))
        total = terms.sum(-1, keepdims=True)
        alive = keeps.any(-1, keepdims=True)
        return np.where(alive, terms / np.where(alive, total, 1.0), self.empty)

    def context(self, A: Array, V: Array) -> Array:
        return A @ V

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        Q, K, V = (inputs[name].astype(np.float64) for name in ("Q", "K", "V"))
        heads = Q.shape[-3]
        scores = Q @ self.repeated(K, heads).swapaxes(-1, -2)
        mask = inputs.get("mask")
        scale = self.scale(Q, V)
        if mask is not None:
            mask = self.whole(mask if mask.dtype == np.bool_ else mask.astype(float), scores.shape)
        if mask is None or mask.dtype == np.bool_:
            scaled = scores * scale
        else:
            scaled = self.biased(scores, scale, mask)
        with np.errstate(all="ignore"):
            A = self.stored(self.weights(scaled, self.visible(mask, scores.shape)))
            C = self.stored(self.context(A.astype(np.float64), self.repeated(V, heads)))
        return {"Ω": self.stored(scores), "A": A, "C": C}


# --- heads -----------------------------------------------------------------------------------


class Tiled(Right):
    """Key/value heads 0, 1, 0, 1 instead of 0, 0, 1, 1."""

    def repeated(self, x: Array, heads: int) -> Array:
        return np.concatenate([x] * (heads // x.shape[-3]), axis=-3)


class FirstHead(Right):
    """Every head reads the first one's keys and values."""

    def repeated(self, x: Array, heads: int) -> Array:
        return np.repeat(x[..., :1, :, :], heads, axis=-3)


class FirstSample(Right):
    """Every sample reads the first one's keys and values."""

    def repeated(self, x: Array, heads: int) -> Array:
        return super().repeated(np.broadcast_to(x[:1], x.shape), heads)


class RoundedKeys(Right):
    """Keys and values with 11 significant bits."""

    def repeated(self, x: Array, heads: int) -> Array:
        fraction, exponent = np.frexp(super().repeated(x, heads))
        return np.asarray(np.ldexp(np.rint(fraction * 2**11), exponent - 11))


# --- scale -----------------------------------------------------------------------------------


class Unscaled(Right):
    def scale(self, Q: Array, V: Array) -> float:
        return 1.0


class DefaultScale(Right):
    """An explicit scale is ignored."""

    def scale(self, Q: Array, V: Array) -> float:
        return float(Q.shape[-1] ** -0.5)


class ScaleOfValues(Right):
    def scale(self, Q: Array, V: Array) -> float:
        return float(V.shape[-1] ** -0.5) if self.given is None else self.given


class ScaleOfModel(Right):
    """The width of all heads together."""

    def scale(self, Q: Array, V: Array) -> float:
        return float((Q.shape[-1] * Q.shape[-3]) ** -0.5) if self.given is None else self.given


class ScaleOfWholeRoot(Right):
    """1/⌊√d⌋."""

    def scale(self, Q: Array, V: Array) -> float:
        return 1.0 / int(Q.shape[-1] ** 0.5) if self.given is None else self.given


class PositiveScale(Right):
    def scale(self, Q: Array, V: Array) -> float:
        return abs(super().scale(Q, V))


# --- causal ----------------------------------------------------------------------------------


class BottomRight(Right):
    alignment = "bottom-right"


class Strict(Right):
    """A query does not see itself, the first one excepted."""

    def triangle(self, queries: int, keys: int) -> Array:
        strict = np.tri(queries, keys, -1, dtype=bool)
        strict[0, 0] = True
        return strict


class CausalForgotten(Right):
    """The flag is ignored where there is a mask or a scale too."""

    def __init__(self, case: Case, name: str) -> None:
        super().__init__(case, name)
        self.causal = self.causal and not case.masked and self.given is None


# --- masks -----------------------------------------------------------------------------------


class Inverted(Right):
    def kept(self, mask: Array) -> Array:
        return ~mask if mask.dtype == np.bool_ else super().kept(mask)


class FirstQuery(Right):
    """The first query's mask is everybody's."""

    def whole(self, mask: Array, shape: tuple[int, ...]) -> Array:
        whole = np.broadcast_to(mask, shape)
        return np.broadcast_to(whole[..., :1, :], shape)


class OtherSample(Right):
    """Each sample has the mask of another one."""

    def whole(self, mask: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(mask, shape)[::-1]


class OtherHead(Right):
    def whole(self, mask: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(mask, shape)[..., ::-1, :, :]


class SampleAsHead(Right):
    """[B, 1, …] is read as [1, B, …], where that fits, and [h, L, S] as [B, 1, L, S]."""

    def whole(self, mask: Array, shape: tuple[int, ...]) -> Array:
        if mask.ndim == len(shape) and mask.shape[1] == 1 and mask.shape[0] == shape[1]:
            return np.broadcast_to(mask.swapaxes(0, 1), shape)
        if mask.ndim == len(shape) - 1 and mask.shape[0] == shape[0]:
            return np.broadcast_to(mask[:, None], shape)
        return np.broadcast_to(mask, shape)


class NoBias(Right):
    """An additive mask is 0 or −inf."""

    def biased(self, scores: Array, scale: float, mask: Array) -> Array:
        return scores * scale


class BiasFirst(Right):
    """The bias is scaled as the scores are."""

    def biased(self, scores: Array, scale: float, mask: Array) -> Array:
        return (scores + np.where(np.isfinite(mask), mask, 0.0)) * scale


class Filled(Right):
    """Dropped scores are a constant."""

    constant = -1e4

    def weights(self, scaled: Array, keeps: Array) -> Array:
        return super().weights(np.where(keeps, scaled, self.constant), np.ones_like(keeps))


class Penalised(Right):
    """A constant is added to dropped scores."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        return super().weights(np.where(keeps, scaled, scaled - 1e9), np.ones_like(keeps))


class Leaking(Right):
    """Dropped keys keep a weight of 1e-12."""

    def context(self, A: Array, V: Array) -> Array:
        return np.where(A == 0, 1e-12, A) @ V


class MaskedLate(Right):
    """Weights are dropped after the softmax."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        return super().weights(scaled, np.ones_like(keeps)) * keeps


class EmptyMean(Right):
    """A query without keys reads the mean of all values."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        A = super().weights(scaled, keeps)
        return np.where(keeps.any(-1, keepdims=True), A, 1 / max(A.shape[-1], 1))


class EmptyNaN(Right):
    empty = np.nan


# --- softmax ---------------------------------------------------------------------------------


class AcrossQueries(Right):
    """The softmax runs over queries."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        return super().weights(scaled.swapaxes(-1, -2), keeps.swapaxes(-1, -2)).swapaxes(-1, -2)


class GlobalMaximum(Right):
    """One maximum is subtracted from all scores of a head."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        terms = np.where(keeps, np.exp(scaled - scaled.max((-1, -2), keepdims=True)), 0.0)
        return np.asarray(terms / terms.sum(-1, keepdims=True))


class NoMaximum(Right):
    """No maximum is subtracted, in float32."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        terms = np.where(keeps, np.exp(scaled.astype(np.float32)), 0.0)
        return np.asarray(terms / terms.sum(-1, keepdims=True))


class LastTokensLost(Right):
    """Keys beyond the last multiple of 4 are not read."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        keeps = keeps.copy()
        keeps[..., keeps.shape[-1] // 4 * 4 :] = False
        return super().weights(scaled, keeps)


class HeldInStorage(Right):
    """Every step is rounded to the dtype, which the most negative number leaves."""

    def biased(self, scores: Array, scale: float, mask: Array) -> Array:
        narrow = dtype(self.name)
        with np.errstate(over="ignore"):
            scaled = (scores.astype(narrow) * narrow.type(scale)).astype(narrow)
            return np.asarray(scaled + mask.astype(narrow)).astype(np.float64)

    def weights(self, scaled: Array, keeps: Array) -> Array:
        scaled = np.where(keeps, scaled, -np.inf)
        terms = np.exp(scaled - scaled.max(-1, keepdims=True))
        return np.asarray(terms / terms.sum(-1, keepdims=True))


class OverflowingScores(Right):
    """The product of queries and keys is rounded to the dtype before it is scaled."""

    def weights(self, scaled: Array, keeps: Array) -> Array:
        scale = self.scale(np.zeros(self.case.sizes["d"]), np.zeros(self.case.sizes["v"]))
        held = self.stored(scaled / scale).astype(np.float64)
        return super().weights(held * scale, keeps)
