"""Masks for attention with heads: boolean ones, and additive ones that may hold −inf.

A mask is drawn in its own shape, which broadcasts to the scores' [*batch, h, L, S]. A shape is
written as the axes it has, "Bx1xLxS", where B stands for all batch axes. Masks of one seed and
shape keep the same keys, whatever they say about the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.inputs import draws
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.inputs.head_families import own_keys

Mask = NDArray[Any]
Bools = NDArray[np.bool_]
Shape = tuple[int, ...]
MaskRecipe = Callable[[Frame, Shape], Mask]


def shape_of(f: Frame, axes: str) -> Shape:
    """The sizes of the axes in a text such as "Bx1xLxS"."""
    sizes: list[int] = []
    for axis in axes.split("x"):
        sizes += f.batch if axis == "B" else [1 if axis == "1" else f.sizes[axis]]
    return tuple(sizes)


def scores_shape(f: Frame) -> Shape:
    """[*batch, h, L, S]."""
    return shape_of(f, "BxhxLxS")


def masked(
    f: Frame,
    inputs: Callable[[Frame], Inputs],
    mask: MaskRecipe,
    axes: str,
    expanded: bool = False,
) -> Inputs:
    """Inputs with a mask of the shape `axes`, or the same mask `expanded` to [*batch, h, L, S]."""
    drawn = mask(f, shape_of(f, axes))
    if expanded:
        drawn = np.broadcast_to(drawn, scores_shape(f))
    return {**inputs(f), "mask": drawn}


def with_garbage(f: Frame, recipe: Callable[[Frame], Inputs], causal: bool = False) -> Inputs:
    """Inputs whose keys and values that no query may read hold huge numbers.

    `causal` says that the function is called so; what may be read is taken top-left.
    """
    inputs = recipe(f)
    read: Bools = np.ones(scores_shape(f), bool)
    if "mask" in inputs:
        mask: Mask = inputs["mask"]
        read &= mask if mask.dtype == np.bool_ else np.isfinite(mask)
    if causal:
        read &= np.tri(f.sizes["L"], f.sizes["S"], dtype=bool)
    group = own_keys(f) == np.arange(f.sizes["g"])[:, None]
    seen: Bools = np.any(read, axis=-2, keepdims=True)
    unread = ~np.any(np.swapaxes(seen, -2, -3) & group[..., None], axis=-2)
    for name, height in (("K", 10 if f.half else 33), ("V", 14 if f.half else 33)):
        huge = f.full(f"garbage/{name}", inputs[name].shape, height, height)
        inputs[name] = np.where(unread[..., None], huge, inputs[name])
    return inputs


# --- boolean ---------------------------------------------------------------------------------


def every(f: Frame, shape: Shape) -> Bools:
    """All keys."""
    return np.ones(shape, bool)


def kept(f: Frame, shape: Shape) -> Bools:
    """About three keys in five, at least one and not all of them, other ones for each query.

    Along a last axis of size 1 it is queries that are kept or not.
    """
    keeps: Bools = np.asarray(draws.integers(f"{f.seed}/mask", shape, 0, 4) < 3)
    axis = -1 if shape[-1] > 1 else -2
    size = shape[axis]
    few = tuple(1 if i == len(shape) + axis else n for i, n in enumerate(shape))
    first = draws.integers(f"{f.seed}/mask/kept", few, 0, size - 1)
    other = (first + draws.integers(f"{f.seed}/mask/dropped", few, 1, size - 1)) % size
    np.put_along_axis(keeps, first, True, axis)
    np.put_along_axis(keeps, other, False, axis)
    return keeps


def _orders(f: Frame, shape: Shape) -> NDArray[np.int64]:
    """[..., L, S]: the keys in an order of its own for each query."""
    rows = int(np.prod(shape[:-1]))
    orders = [f.permutation(f"mask/{row}", shape[-1]) for row in range(rows)]
    return np.array(orders, np.int64).reshape(shape)


def one_hot(f: Frame, shape: Shape) -> Bools:
    """One key for each query, in each leading place another permutation of the keys."""
    *lead, queries, keys = shape
    order = _orders(f, (*lead, keys))
    return np.asarray(order[..., np.arange(queries) % keys, None] == np.arange(keys))


def powers(f: Frame, shape: Shape) -> Bools:
    """1, 2, 4, 8 … keys, from query to query."""
    steps = max(shape[-1].bit_length(), 1)
    count = 2 ** (np.arange(shape[-2]) % steps)
    return np.asarray(_orders(f, shape).argsort(-1) < count[:, None])


def band(f: Frame, shape: Shape) -> Bools:
    """The keys at most three places from the straight line from corner to corner."""
    queries, keys = shape[-2:]
    distance = np.arange(keys) * (queries - 1) - np.arange(queries)[:, None] * (keys - 1)
    return np.array(np.broadcast_to(np.abs(distance) <= 3 * (queries - 1), shape))


def padding(f: Frame, shape: Shape) -> Bools:
    """The first keys, fewer from sample to sample; none is full, and none is empty."""
    *lead, keys = shape
    sample = np.arange(int(np.prod(lead))).reshape(lead)
    return np.asarray(np.arange(keys) < (keys - 1 - 3 * sample % (keys - 1))[..., None])


def but_last_two(f: Frame, shape: Shape) -> Bools:
    """As `kept` among all keys but the last two, which no query keeps."""
    *lead, keys = shape
    dropped = np.zeros((*lead, 2), bool)
    return np.concatenate([kept(f, (*lead, keys - 2)), dropped], axis=-1)


def scattered(f: Frame, shape: Shape) -> Bools:
    """As `kept`, but there are two keys, at any places, that no query keeps."""
    return but_last_two(f, shape)[..., f.permutation("mask/places", shape[-1])]


def one_empty(f: Frame, shape: Shape) -> Bools:
    """As `kept`, but in the first leading place the middle query keeps none."""
    keeps = kept(f, shape)
    keeps[(*(0,) * (len(shape) - 2), shape[-2] // 2)] = False
    return keeps


def empty_sample(f: Frame, shape: Shape) -> Bools:
    """As `padding`, but the last sample has no keys at all."""
    keeps = padding(f, shape)
    keeps[-1] = False
    return keeps


def but_first(f: Frame, shape: Shape) -> Bools:
    """As `kept`, but the first query has lost the first key, and the others keep their own."""
    keeps = kept(f, shape)
    own = np.arange(min(shape[-2:]))
    keeps[..., own, own] = own > 0
    keeps[..., 0, -1] = True
    return keeps


# --- additive --------------------------------------------------------------------------------


def zero(f: Frame, shape: Shape) -> Floats:
    """A mask that changes nothing."""
    return np.zeros(shape)


def bias(f: Frame, shape: Shape) -> Floats:
    """Finite normal numbers."""
    return f.normal("mask/bias", shape)


def slopes(f: Frame, shape: Shape) -> Floats:
    """A bias per head that falls with the distance of query and key (ALiBi)."""
    heads, queries, keys = shape[-3:]
    distance = np.abs(np.arange(queries)[:, None] - np.arange(keys)).astype(np.float64)
    slope = -np.ldexp(1.0, -np.arange(heads))
    return np.broadcast_to(slope[:, None, None] * distance, shape)


def minimum(f: Frame) -> float:
    """The most negative finite number."""
    return -f.form.largest


def penalty(f: Frame) -> float:
    """A finite number that is taken for −inf: −2**30, in float16 −2**14."""
    return -(2.0 ** (14 if f.half else 30))


def moderate(f: Frame) -> float:
    """Far below every score, yet of a size that a score still shows beside it: −2**17."""
    return -(2.0**17)


def nothing(f: Frame) -> float:
    return -np.inf


def added(
    f: Frame,
    shape: Shape,
    keeps: MaskRecipe,
    low: Callable[[Frame], float] = nothing,
    base: MaskRecipe = zero,
) -> Floats:
    """`base` where `keeps` is true, and `low` elsewhere."""
    return np.where(keeps(f, shape), base(f, shape), low(f))


def shared(f: Frame, shape: Shape, mask: MaskRecipe) -> Mask:
    """The same in all samples, as along an axis of size 1."""
    samples = len(f.batch)
    one = mask(f, (*(1,) * samples, *shape[samples:]))
    return np.broadcast_to(one, shape)


KINDS: Final = {"boolean": kept, "additive": bias}
"""What a mask of each kind is, where only its shape matters."""

DROPPED: Final = partial(added, keeps=kept)
"""0 and −inf."""

HOLES: Final = partial(added, keeps=kept, base=bias)
"""−inf beside finite numbers."""
