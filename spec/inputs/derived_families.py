"""Families of inputs of any profile: one function each, of a frame and the anatomy of a text.

They know tokens (inputs of which every sample has its own), weights (shared factors of products)
and whatever else is shared. Queries and keys are shaped through columns of the tokens that are
given a task, see `steering`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.syntax import Expr, Tensor
from qkvac.spec.inputs import draws
from qkvac.spec.inputs.anatomy import Anatomy
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.inputs.profile_families import above_tiny
from qkvac.spec.inputs.steering import ONES, Steering

Array = NDArray[Any]

GAIN: Final = 2.0**13
"""Of a code that fits: exact in every format, and further ahead than exponentials reach."""

Family = Callable[[Frame, Anatomy], Inputs]
Draw = Callable[[Tensor, tuple[int, ...]], Floats]


def drawn(f: Frame, a: Anatomy, real: Draw) -> Inputs:
    """All inputs of a text; `real` draws those of real numbers that are no masks."""
    own, inputs = {tensor.name for tensor in a.real}, Inputs()
    for tensor in a.program.inputs:
        lead = () if tensor.name in a.profile.without_batch else f.batch
        shape = (*lead, *(_size(axis, f) for axis in tensor.axes))
        if tensor.name in own:
            inputs[tensor.name] = real(tensor, shape)
        elif tensor.kind == "index":
            limit = _size(a.profile.index_limits[tensor.name], f)
            seed = f"{f.seed}/{tensor.name}"
            # Tokens are no floats.
            inputs[tensor.name] = draws.integers(seed, shape, 0, limit - 1)  # type: ignore[assignment]
        else:
            inputs[tensor.name] = mask(f, tensor, shape)
    return inputs


def _size(axis: Expr, f: Frame) -> int:
    return int(fold(axis, f.sizes).rational())


# --- masks -----------------------------------------------------------------------------------


def mask(f: Frame, tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """Three of four keys are kept, the first one always; an additive mask moves them besides."""
    kept = np.asarray(draws.integers(f"{f.seed}/{tensor.name}", shape, 0, 3) < 3)
    kept[..., :1] = True
    if tensor.kind == "mask":
        return kept
    return np.where(kept, f.normal(tensor.name, shape), -np.inf)


def empty_rows(f: Frame, a: Anatomy) -> Inputs:
    """Plain data; every third query may see no key at all."""
    inputs = plain(f, a)
    for name in a.profile.masks & inputs.keys():
        array = inputs[name]
        array[..., ::3, :] = False if array.dtype == np.bool_ else -np.inf
    return inputs


def broadcast_mask(f: Frame, a: Anatomy, kept: tuple[int, ...]) -> Inputs:
    """Plain data; of the mask's axes only those at the places `kept`, from the end, are long."""
    inputs = plain(f, a)
    for tensor in a.program.inputs:
        if tensor.name in a.profile.masks:
            size = [_size(axis, f) for axis in tensor.axes]
            shape = tuple(
                n if place in kept else 1
                for place, n in zip(range(-len(size), 0), size, strict=True)
                if place >= min(kept)
            )
            inputs[tensor.name] = mask(f, tensor, shape)
    return inputs


def open_mask(f: Frame, a: Anatomy) -> Inputs:
    """Plain data; the mask keeps every key, and moves none."""
    inputs = plain(f, a)
    for name in a.profile.masks & inputs.keys():
        array = inputs[name]
        inputs[name] = np.ones_like(array) if array.dtype == np.bool_ else np.zeros_like(array)
    return inputs


# --- generic data ----------------------------------------------------------------------------


def plain(f: Frame, a: Anatomy, tokens: int = 0, weights: int = 0) -> Inputs:
    """Normal data, tokens and weights times powers of two; weights keep magnitudes."""
    shared = {tensor.name for tensor in a.weights}

    def real(tensor: Tensor, shape: tuple[int, ...]) -> Floats:
        if tensor.name in shared:
            width = max(shape[a.factors[tensor.name]], 1)
            return f.normal(tensor.name, shape, weights - (width.bit_length() - 1) // 2)
        own = tensor in a.tokens
        return f.normal(tensor.name, shape, tokens if own else 0)

    return {name: _stored(f, array) for name, array in drawn(f, a, real).items()}


def _stored(f: Frame, array: Floats) -> Floats:
    return above_tiny(f, array) if array.dtype.kind == "f" else array


def hot(f: Frame, a: Anatomy) -> Inputs:
    """Scores of deviation 16 or more: nearly one-hot."""
    return plain(f, a, tokens=2)


def saturated(f: Frame, a: Anatomy) -> Inputs:
    """Tokens of deviation 1024: their exponentials overflow in float64, too."""
    return plain(f, a, tokens=10)


def cool(f: Frame, a: Anatomy) -> Inputs:
    """Tokens of deviation 1/2."""
    return plain(f, a, tokens=-1)


def tiny(f: Frame, a: Anatomy) -> Inputs:
    """Tokens far below 1, of whose products with each other none is subnormal."""
    return plain(f, a, tokens=(f.form.emin + 2) // 4)


def heated(f: Frame, a: Anatomy, heat: tuple[int, ...] = (2, 0, -4)) -> Inputs:
    """A batch of which sample b has its tokens times 2**heat[b]: hot, plain and tiny ones."""
    inputs = plain(f, a)
    count = int(np.prod(f.batch))
    powers = np.resize(np.asarray(heat), count).reshape(f.batch)
    for tensor in a.tokens:
        array = inputs[tensor.name]
        own = powers.reshape(*f.batch, *(1,) * tensor.rank)
        inputs[tensor.name] = above_tiny(f, np.ldexp(array, own.astype(np.int32)))
    return inputs


def equal_rows(f: Frame, a: Anatomy) -> Inputs:
    """All tokens the same, on plain data: keys tie."""
    return _alike(plain(f, a), a)


def _alike(inputs: Inputs, a: Anatomy) -> Inputs:
    for tensor in a.tokens:
        if tensor.rank >= 2:
            array = inputs[tensor.name]
            inputs[tensor.name] = np.repeat(array[..., :1, :], array.shape[-2], axis=-2)
    return inputs


def zero_row(f: Frame, a: Anatomy) -> Inputs:
    """One token in the middle is 0."""
    inputs = plain(f, a)
    for tensor in a.tokens:
        if tensor.rank >= 2:
            array = inputs[tensor.name]
            middle = array.shape[-2] // 2
            array[..., middle : middle + 1, :] = 0
    return inputs


def ranged(f: Frame, a: Anatomy) -> Inputs:
    """Columns of tokens far apart in magnitude; rows of weights make up for it."""
    span = {"float64": 60, "float16": 2}.get(f.form.name, 12)
    inputs, powers = plain(f, a), dict[str, Floats]()
    own = {tensor.name for tensor in a.tokens}
    for token, weight, turned in a.projections:
        if token not in own:
            continue
        array = inputs[token]
        if token not in powers:
            powers[token] = f.integers(f"span/{token}", array.shape[-1:], -span, span)
            inputs[token] = np.ldexp(array, powers[token].astype(np.int32))
        rows = -powers[token].astype(np.int32)
        inputs[weight] = np.ldexp(inputs[weight], rows if turned else rows[:, None])
    return {name: _stored(f, array) for name, array in inputs.items()}


def cancelling(f: Frame, a: Anatomy) -> Inputs:
    """Sums of products whose large terms cancel in pairs and leave small ones."""
    inputs = plain(f, a)
    found = [projection for projection in a.projections if projection[0] in inputs]
    for token, weight, turned in found:
        rows = inputs[weight] if turned else np.swapaxes(inputs[weight], -1, -2)
        _in_pairs(inputs[token], rows)
    if not found:
        for scores in a.scores:
            names = [getattr(node, "name", "") for node in (scores.query, scores.key)]
            if names[0] != names[1] and inputs.keys() >= set(names):
                _in_pairs(inputs[names[0]], inputs[names[1]])
    return inputs


def _in_pairs(left: Floats, right: Floats) -> None:
    """Rows of two factors: the last third of the sum takes the first one back, both 2**6 up."""
    part = left.shape[-1] // 3
    if part:
        if np.max(np.abs(left), initial=0.0) < 2**5:
            left[..., :part] *= 2**6
        left[..., -part:] = left[..., :part]
        right[..., -part:] = -right[..., :part]


def subnormal(f: Frame, a: Anatomy) -> Inputs:
    """Subnormal numbers in the factor that is used last."""
    inputs = plain(f, a)
    assert a.last_used is not None
    steps = 2 ** (f.form.precision - 2)
    shape = inputs[a.last_used.name].shape
    inputs[a.last_used.name] = f.integers("low", shape, -steps, steps) * f.form.smallest
    return inputs


def moved(f: Frame, a: Anatomy, by: float, rows: bool = False) -> Inputs:
    """Plain data, all scores moved by about `by` after scaling; with `rows`, by each row's own."""
    inputs = plain(f, a)
    steering = Steering(a, f, inputs, alone=True)
    for scores in a.scores:
        last = [steering.width(scores.query) - 1]
        raw = abs(by) * steering.width(scores.query) ** 0.5
        step = 2.0 ** (int(raw).bit_length() // 2)
        up = round(raw / step) * (1 if by > 0 else -1)
        height = ONES
        if rows:
            count = steering.rows(scores.query)
            height = f.integers("row", (count, 1), -8, 8) / 8
            height[:2, 0] = (1.0, -1.0)[:count]
        steering.put(scores.query, last, height * step)
        steering.put(scores.key, last, ONES * up)
    return inputs


# --- exact families --------------------------------------------------------------------------


def whole(f: Frame, a: Anatomy) -> Inputs:
    """Entries −1, 0, 1 with few nonzeros: sums are small whole numbers as far as they go."""
    shared = {tensor.name for tensor in a.weights}

    def real(tensor: Tensor, shape: tuple[int, ...]) -> Floats:
        if tensor.name in shared and len(shape) >= 2:
            return _sparse(f, tensor.name, shape, a.factors[tensor.name])
        if tensor.name in a.multipliers:
            return np.ldexp(1.0, draws.signs(f"{f.seed}/{tensor.name}", shape).astype(np.int32))
        return f.integers(tensor.name, shape, -1, 1)

    return drawn(f, a, real)


def _sparse(f: Frame, name: str, shape: tuple[int, ...], summed: int) -> Floats:
    """Two entries ±1 along the axis that is summed over."""
    matrix = np.zeros(shape)
    view = np.swapaxes(matrix, summed, -2)
    *lead, inner, outer = view.shape
    for place in np.ndindex(*lead):
        for column in range(outer):
            seed = f"{name}/{place}/{column}"
            rows = f.permutation(seed, inner)[: min(2, isqrt(inner))]
            view[(*place, rows, column)] = draws.signs(f"{f.seed}/{seed}", rows.shape)
    return matrix


def copies(f: Frame, a: Anatomy) -> Inputs:
    """Weights that pick columns, tokens whose entries use every bit."""
    shared = {tensor.name for tensor in a.weights}

    def real(tensor: Tensor, shape: tuple[int, ...]) -> Floats:
        if tensor.name in shared and len(shape) >= 2:
            return _picks(f, tensor.name, shape, a.factors[tensor.name])
        if tensor in a.tokens:
            return f.full(tensor.name, shape)
        return np.full(shape, 1.0 if tensor.name in a.multipliers else 0.0)

    return drawn(f, a, real)


def _picks(f: Frame, name: str, shape: tuple[int, ...], summed: int) -> Floats:
    matrix = np.zeros(shape)
    view = np.swapaxes(matrix, summed, -2)
    inner, outer = view.shape[-2:]
    if inner:
        view[..., f.permutation(name, inner)[np.arange(outer) % inner], np.arange(outer)] = 1
    return matrix


def lookup(f: Frame, a: Anatomy, tied: bool = False) -> Inputs:
    """Each query finds one key, so that values are copied with every bit; or two that tie.

    Query i asks for the ±1 code of i, a key answers to that of its place in a permutation.
    """
    inputs = whole(f, a) if tied else copies(f, a)
    for name in a.multipliers:
        inputs[name] = np.ones_like(inputs[name])
    steering = Steering(a, f, inputs)
    for number, scores in enumerate(a.scores):
        rows, keys = steering.rows(scores.query), steering.rows(scores.key)
        bits = max(1, (max(rows, keys) - 1).bit_length() - tied)
        wanted = np.arange(keys) >> 1 if tied else np.arange(keys)
        order = f.permutation(f"order/{number}", keys)
        columns = range(bits)
        answers = np.zeros((keys, bits))
        answers[order] = _code(wanted, bits)
        steering.put(scores.query, columns, _code(np.arange(rows), bits), GAIN)
        steering.put(scores.key, columns, answers)
        steering.zero(scores.query, range(bits, steering.width(scores.query)))
    return inputs


def _code(numbers: Array, bits: int) -> Floats:
    return np.asarray(2.0 * (numbers[:, None] >> np.arange(bits) & 1) - 1)


def uniform(f: Frame, a: Anatomy) -> Inputs:
    """All scores 0 on small whole numbers: equal weights."""
    inputs = whole(f, a)
    steering = Steering(a, f, inputs)
    for scores in a.scores:
        steering.zero(scores.query, range(steering.width(scores.query)))
    return inputs


def balanced(f: Frame, a: Anatomy) -> Inputs:
    """Scores that are alike for all keys of a query, although queries and keys differ.

    Queries are [a, 0] and keys [constant, b]: the weights are equal, but b moves the scores to
    first order, so that few gradients are 0.
    """
    inputs = whole(f, a)
    steering = Steering(a, f, inputs)
    for scores in a.scores:
        width = steering.width(scores.query)
        half = (width + 1) // 2
        steering.put(scores.key, range(half), ONES)
        # Through weights of tokens that are 0 a gradient goes on.
        steering.put(scores.query, range(half, width), 0 * ONES)
    return inputs
