"""Masks for attention with heads: boolean ones, and additive ones that may hold −inf.

A mask is drawn in its own shape, which broadcasts to the scores' [*batch, h, L, S]. A shape is
written as the axes it has, "Bx1xLxS", where B stands for all batch axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvac.spec import draws
from qkvac.spec.draws import Floats
from qkvac.spec.families import Frame, Inputs

Mask = NDArray[Any]
Bools = NDArray[np.bool_]
Shape = tuple[int, ...]


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
    mask: Callable[[Frame, Shape], Mask],
    axes: str,
    expanded: bool = False,
) -> Inputs:
    """Inputs with a mask of the shape `axes`, or the same mask `expanded` to [*batch, h, L, S]."""
    drawn = mask(f, shape_of(f, axes))
    if expanded:
        drawn = np.broadcast_to(drawn, scores_shape(f))
    return {**inputs(f), "mask": drawn}


# --- boolean ---------------------------------------------------------------------------------


def kept(f: Frame, shape: Shape) -> Bools:
    """About three keys in five, at least one and not all of them, other ones for each query.

    Along a last axis of size 1 it is queries that are kept or not.
    """
    chance = draws.integers(f"{f.seed}/mask", shape, 0, 4) < 3
    axis = -1 if shape[-1] > 1 else -2
    size = shape[axis]
    few = tuple(1 if i == len(shape) + axis else n for i, n in enumerate(shape))
    first = draws.integers(f"{f.seed}/mask/kept", few, 0, size - 1)
    other = (first + draws.integers(f"{f.seed}/mask/dropped", few, 1, size - 1)) % size
    np.put_along_axis(chance, first, True, axis)
    np.put_along_axis(chance, other, False, axis)
    return chance


# --- additive --------------------------------------------------------------------------------


def bias(f: Frame, shape: Shape) -> Floats:
    """Finite normal numbers."""
    return f.normal("mask", shape)
