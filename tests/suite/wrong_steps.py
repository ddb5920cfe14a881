"""Wrong steps of attention and embedding, each a function to put in the place of a right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkvac.tests.suite import formulas

Step = Callable[..., Any]


def shuffle(**places: str) -> Step:
    """Reads some inputs under the names of others."""
    return lambda inputs: inputs | {name: inputs[other] for name, other in places.items()}


def transposed(*names: str) -> Step:
    return lambda inputs: inputs | {name: inputs[name].T for name in names}


def single(x: Any, y: Any) -> Any:
    """A product that is accumulated in float32."""
    return (x.astype(np.float32) @ y.astype(np.float32)).astype(x.dtype)


def reshaped(x: Any, heads: int) -> Any:
    """Heads split by reshape alone."""
    return x.reshape(*x.shape[:-2], heads, x.shape[-2], x.shape[-1] // heads)


def interleaved(x: Any, heads: int) -> Any:
    """Column j goes to head j mod h."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def flattened(x: Any) -> Any:
    """Heads merged without the swap of axes."""
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])


def filled(value: float) -> Step:
    """A finite number for what is masked."""
    return lambda s, keep: formulas.softmax(s if keep is None else np.where(keep, s, value), None)


def added(value: float) -> Step:
    """A finite number added to what is masked."""
    return lambda s, keep: formulas.softmax(s if keep is None else s + value * ~keep, None)


def late(scores: Any, keep: Any) -> Any:
    """The mask applied after the softmax, rows normalised again."""
    weights = formulas.softmax(scores, None)
    kept = weights if keep is None else weights * keep
    return kept / kept.sum(axis=-1, keepdims=True)


def overall(scores: Any, keep: Any) -> Any:
    """The maximum of the whole matrix subtracted."""
    return formulas.softmax(np.maximum(scores - scores.max(), -745.0), keep)


def unshifted(scores: Any, keep: Any) -> Any:
    powers = np.exp(scores) if keep is None else np.exp(scores) * keep
    return powers / powers.sum(axis=-1, keepdims=True)


def across(axis: int) -> Step:
    def softmax(scores: Any, keep: Any) -> Any:
        logits = scores if keep is None else np.where(keep, scores, -np.inf)
        powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    return softmax


def averaged(weights: Any, values: Any) -> Any:
    """Each head uses the mean of all heads' weights."""
    return formulas.product(np.broadcast_to(weights.mean(-3, keepdims=True), weights.shape), values)


def first_head(weights: Any, values: Any) -> Any:
    return formulas.product(np.broadcast_to(weights[..., :1, :, :], weights.shape), values)


def leaked(weights: Any, values: Any) -> Any:
    """Values of the first sample for all."""
    return formulas.product(weights, np.broadcast_to(values[:1], values.shape))


def biased(times: float) -> Step:
    return lambda x, w, b: formulas.dense(x, w, None if b is None else times * b)


def raised(x: Any, weight: Any, bias: Any) -> Any:
    """A bias larger by 1."""
    return formulas.dense(x, weight, bias + 1)


def halved(x: Any, weight: Any, bias: Any) -> Any:
    """The bias in half precision."""
    return formulas.dense(x, weight, bias.astype(np.float16).astype(bias.dtype))


def by_column(x: Any, weight: Any, bias: Any) -> Any:
    """The bias added along the tokens."""
    return formulas.dense(x, weight, None) + bias[:, None]


def moved(by: int) -> Step:
    """Positions that start at `by`."""
    return lambda tokens, E, P: E[tokens] + P[np.arange(tokens.shape[-1]) + by]


def clipped(last: int) -> Step:
    return lambda tokens, E, P: formulas.embed(np.minimum(tokens, last), E, P)


def running_on(tokens: Any, table: Any, places: Any) -> Any:
    """Positions counted through the batch."""
    return table[tokens] + places[np.arange(tokens.size).reshape(tokens.shape)]


def sorted_ids(tokens: Any, table: Any, places: Any) -> Any:
    return formulas.embed(np.sort(tokens), table, places)


def inverse(tokens: Any, table: Any, places: Any) -> Any:
    """Token i at the place where i is, instead of the token at place i."""
    return formulas.embed(np.argsort(tokens), table, places)


def narrowed(kind: Any) -> Step:
    """Ids that pass through another type."""
    return lambda tokens, E, P: formulas.embed(tokens.astype(kind).astype(np.int64) % len(E), E, P)
