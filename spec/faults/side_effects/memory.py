"""Misbehaviour about memory, heads and sizes: how arrays lie is taken for what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from qkvac.spec.faults.side_effects.calls import Array, Function, Habit


def _changing(*names: str, change: Callable[[Array], Array]) -> Callable[[Function], Function]:
    """A function that reads some of its inputs otherwise."""

    def wrap(plain: Function) -> Function:
        def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
            return plain({n: change(a) if n in names else a for n, a in inputs.items()})

        return call

    return wrap


def in_memory_order(array: Array) -> Array:
    return array.ravel(order="K").reshape(array.shape)


def head_by_stride(array: Array) -> Array:
    """Head i is taken to lie at i · n · d, whatever the strides say: a permuted view has one head.

    In storage [..., n, h, d] seen as [..., h, n, d] every head then starts like the first.
    """
    permuted = array.ndim > 2 and array.size and array.strides[-3] < array.strides[-2]
    return np.broadcast_to(array[..., :1, :, :], array.shape) if permuted else array


def from_buffer_start(array: Array) -> Array:
    """The view's shape and strides at the start of the buffer that it is a part of."""
    buffer = array.base
    if not isinstance(buffer, np.ndarray) or min((*array.strides, 0)) < 0 or not array.size:
        return array
    return np.ndarray(array.shape, array.dtype, buffer, 0, array.strides)


def heads_inside(plain: Function) -> Function:
    """The context is returned as [..., L, h, v]."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        return {**results, "C": results["C"].swapaxes(-2, -3).copy()}

    return call


def no_keys_refused(plain: Function) -> Function:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if not inputs["K"].shape[-2]:
            raise ValueError("no keys")
        return plain(inputs)

    return call


def mask_cleared(plain: Function) -> Function:
    """The mask is used as working memory, and left with nothing that is dropped."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results, mask = plain(inputs), inputs["mask"]
        if mask.flags.writeable:
            mask[...] = mask.dtype == bool
        return results

    return call


OPERANDS: Final = {"query": "Q", "key": "K", "value": "V", "mask": "mask"}

HABITS: Final = (
    *(
        Habit(
            *(f"{word}-strides-ignored", f"ignores the strides of {name} alone"),
            _changing(name, change=in_memory_order),
            ("ROCm/pytorch#3230", "flagos-ai/FlagGems#5896") if name == "V" else (),
            inputs=(name,),
        )
        for word, name in OPERANDS.items()
    ),
    Habit(
        *("head-number-from-strides", "derives the number of a head from strides"),
        _changing("Q", "K", "V", change=head_by_stride),
        ("BobMcDear/attorch#14", "pytorch/pytorch#181133"),
        inputs=("Q", "K", "V"),
    ),
    Habit(
        *("offset-ignored", "reads a part of a buffer from the buffer's start"),
        _changing(*("X", "Q", "K", "V", "Wq", "Wk", "Wv", "E"), change=from_buffer_start),
    ),
    Habit(
        *("context-heads-inside", "returns C with heads behind tokens", heads_inside),
        inputs=("Q",),
    ),
    Habit(
        *("no-keys-refused", "raises where there is no key", no_keys_refused),
        ("pytorch/pytorch#141218",),
        inputs=("K",),
    ),
    Habit(
        *("mask-cleared-in-place", "clears its mask in place", mask_cleared),
        inputs=("mask",),
    ),
)
