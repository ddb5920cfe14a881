"""Misbehaviour: functions that compute the right formula and do something else besides.

Each entry wraps a correct function of inputs into one that misbehaves. What such a function does
wrong shows when it is called again, on other memory, or in another state: what catches it is a
check of the protocol, or the contract, more often than a value.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(frozen=True)
class Habit:
    """A way to misbehave; `what` completes "a function that …"."""

    name: str
    what: str
    wrap: Callable[[Function], Function]
    also_known_as: tuple[str, ...] = ()
    dtype: str = "float32"
    inputs: tuple[str, ...] = ()
    """Inputs without which it has no place."""


def stale_cache(plain: Function) -> Function:
    cache = dict[Any, dict[str, Array]]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        key = tuple((name, a.shape, a.dtype.name) for name, a in inputs.items())
        if key not in cache:
            cache[key] = plain(inputs)
        return {name: a.copy() for name, a in cache[key].items()}

    return call


def stale_projection(plain: Function) -> Function:
    """Weights are kept from the first call of their shape, inputs are not."""
    cache = dict[Any, dict[str, Array]]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        first, *rest = inputs
        key = tuple((name, inputs[name].shape, inputs[name].dtype.name) for name in rest)
        kept = cache.setdefault(key, {name: inputs[name].copy() for name in rest})
        return plain({first: inputs[first], **kept})

    return call


def scaled_in_place(plain: Function) -> Function:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        last = next(array for array in reversed(list(inputs.values())) if array.flags.writeable)
        last *= last.dtype.type(0.5)
        return results

    return call


def borrowed(plain: Function) -> Function:
    """The first result lies in the memory of an input of its shape, if there is one."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        for name, array in inputs.items():
            flat = array.reshape(-1)
            found = next((r for r in results if results[r].size <= flat.size), None)
            if found is not None and np.shares_memory(flat, array) and array.flags.writeable:
                value = results[found]
                place = flat[: value.size].reshape(value.shape)
                place[...] = value
                results[found] = place
                return results
            del name
        return results

    return call


def buffer_reused(plain: Function) -> Function:
    buffers = dict[Any, Array]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        name = next(reversed(results))
        buffer = buffers.setdefault((results[name].shape, results[name].dtype), results[name])
        buffer[...] = results[name]
        return {**results, name: buffer}

    return call


def misread(plain: Function) -> Function:
    """Arrays are read in the order in which they lie in memory."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return plain({k: a.ravel(order="K").reshape(a.shape) for k, a in inputs.items()})

    return call


def steps_ignored(plain: Function) -> Function:
    def packed(array: Array) -> Array:
        if array.ndim < 2 or array.flags.c_contiguous or array.base is None:
            return array
        rows = np.ascontiguousarray(array).reshape(-1)
        return np.resize(rows[: max(1, rows.size // 2)], array.shape).astype(array.dtype)

    return lambda inputs: plain({name: packed(array) for name, array in inputs.items()})


def order_random(plain: Function) -> Function:
    generator = np.random.default_rng()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        name, array = next(iter(inputs.items()))
        if array.ndim < 2:
            return plain(inputs)
        order = generator.permutation(array.shape[-1])
        moved = {name: array[..., order]}
        for other, weight in inputs.items():
            inner = weight.shape[-2:-1] == array.shape[-1:] and other != name
            moved[other] = weight[..., order, :] if inner else moved.get(other, weight)
        return plain({key: np.ascontiguousarray(value) for key, value in moved.items()})

    return call


def order_remembered(plain: Function) -> Function:
    """Rows of the last result are reached in an order that the last call left behind."""
    orders = dict[int, Array]()
    scale = dict[int, float]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        name = next(reversed(results))
        last, n = results[name], len(results[name])
        # A warm start from the last call leaves its trace in the last bit.
        if scale.get(n, 0.0) and last.size:
            results[name] = np.nextafter(last, last.dtype.type(np.sign(scale[n]) * np.inf))
        scale[n] = float(last.astype(np.float64).sum()) if last.size else 0.0
        orders[n] = np.arange(n)
        return results

    return call


def dropout(plain: Function) -> Function:
    generator = np.random.default_rng()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        name = next(reversed(results))
        kept = generator.random(results[name].shape) >= 0.1
        results[name] = (results[name] * kept / results[name].dtype.type(0.9)).astype(
            results[name].dtype
        )
        return results

    return call


def widened(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs in float64; masks and indices as they are."""
    return {n: a if a.dtype.kind in "biu" else a.astype(np.float64) for n, a in inputs.items()}


def path_by_magnitude(plain: Function) -> Function:
    """Large inputs take a path in double precision, others do not."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        array = next(a for a in inputs.values() if a.dtype.kind not in "biu")
        if not array.size or np.abs(array.astype(np.float64)).max() <= 4:
            return plain(inputs)
        wide = plain(widened(inputs))
        return {name: a.astype(array.dtype) for name, a in wide.items()}

    return call


def rounded_down(plain: Function) -> Function:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        exact = plain(widened(inputs))
        for name, value in results.items():
            nearest = exact[name].astype(value.dtype)
            below = np.nextafter(nearest, value.dtype.type(-np.inf))
            results[name] = np.where(exact[name] < nearest, below, nearest)
        return results

    return call


def swapped(plain: Function) -> Function:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        first, second, *_ = results
        return {**results, first: results[second], second: results[first]}

    return call


def last_row_left(plain: Function) -> Function:
    """Memory of the last call of that size, as an allocator would return it."""
    left = dict[Any, Array]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        name = next(reversed(results))
        value = results[name]
        old = left.get((value.shape, value.dtype))
        left[value.shape, value.dtype] = value.copy()
        if old is not None and value.shape[-2] > 1:
            results[name] = np.concatenate([value[..., :-1, :], old[..., -1:, :]], axis=-2)
        return results

    return call


def _set_rounding(upward: bool) -> None:
    arm = platform.machine() in ("aarch64", "arm64")
    ctypes.CDLL(None).fesetround((0x400000 if arm else 0x800) if upward else 0)


def rounding_left_upward(plain: Function) -> Function:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        _set_rounding(upward=True)
        return results

    return call


def _last(change: Callable[[Array], Array | None]) -> Callable[[Function], Function]:
    """A change of the last result; None leaves it out."""

    def wrap(plain: Function) -> Function:
        def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
            results = plain(inputs)
            name = next(reversed(results))
            changed = change(results.pop(name))
            return results if changed is None else {**results, name: changed}

        return call

    return wrap


def _where_one_token(change: Callable[[Array], Array]) -> Callable[[Function], Function]:
    return _last(lambda x: change(x) if x.shape[-2] == 1 else x)


def _refuse(reason: str) -> Callable[[Array], Array]:
    def refuse(x: Array) -> Array:
        raise ValueError(reason)

    return refuse


HABITS: Final = (
    Habit("stale-cache", "returns what it computed first for these shapes", stale_cache),
    Habit("stale-weights", "keeps the weights of its first call", stale_projection),
    Habit("input-scaled-in-place", "scales an input in place", scaled_in_place),
    Habit("input-overwritten", "writes a result into the memory of an input", borrowed),
    Habit("buffer-reused", "returns C in a buffer that the next call writes into", buffer_reused),
    Habit(
        *("memory-order-misread", "reads arrays in the order in which they lie in memory", misread),
        ("pytorch/pytorch#181133", "pytorch/pytorch#163597", "ROCm/pytorch#3230"),
    ),
    Habit("steps-ignored", "reads views with steps as if they had none", steps_ignored),
    Habit("order-random", "sums in a new order every time", order_random),
    Habit("state-kept", "carries the last call's sums into the next result", order_remembered),
    Habit(
        "dropout-left-on",
        "drops a tenth at random, as in training",
        dropout,
        ("pytorch/pytorch#27968",),
    ),
    Habit("path-by-magnitude", "takes another path for large inputs", path_by_magnitude),
    Habit("rounded-down", "rounds results toward −∞", rounded_down),
    Habit("rounding-left-upward", "leaves the thread rounding upward", rounding_left_upward),
    Habit("float64-returned", "returns C in float64", _last(lambda x: x.astype(np.float64))),
    Habit("context-missing", "does not return its last result", _last(lambda x: None)),
    Habit("context-transposed", "returns C transposed", _last(lambda x: x.swapaxes(-1, -2).copy())),
    Habit("batch-axis-added", "returns C with one axis more", _last(lambda x: x[None])),
    Habit("zeros", "returns zeros", _last(np.zeros_like), ("chrishayuk/larql#227",)),
    Habit("nan-for-one-token", "returns NaN for one token", _where_one_token(lambda x: x * np.nan)),
    Habit("zero-for-one-token", "returns zeros for one token", _where_one_token(np.zeros_like)),
    Habit(
        *("one-token-refused", "raises for one token", _where_one_token(_refuse("too short"))),
    ),
    Habit(
        *("no-tokens-refused", "raises where there is no token"),
        _last(lambda x: x if x.shape[-2] else _refuse("no tokens")(x)),
        ("pytorch/pytorch#141218",),
    ),
    Habit(
        *("context-of-128-tokens", "returns zeros for tokens beyond 128"),
        _last(lambda x: np.where(np.arange(x.shape[-2])[:, None] < 128, x, 0).astype(x.dtype)),
    ),
    Habit("quantities-swapped", "returns its first two results under each other's names", swapped),
    Habit("last-row-uninitialised", "leaves the last row of C as memory had it", last_row_left),
)
