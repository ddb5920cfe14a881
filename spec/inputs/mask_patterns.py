"""Which keys a mask keeps: patterns of the shapes that a mask may have."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.inputs import draws
from qkvac.spec.inputs.families import Frame

Array = NDArray[Any]

TILE: Final = 16
"""Keys of a tile that is left out as a whole."""
FAR: Final = 8192.0
"""How far a mask moves scores up and down; a number of every format."""


def patterned(f: Frame, name: str, shape: tuple[int, ...], pattern: str, additive: bool) -> Array:
    """A mask of a shape whose last two axes are queries and keys, or of fewer axes.

    A boolean one keeps what is True. An additive one is −∞ where nothing is kept and moves the
    other scores: by nothing if it is `open`, by `FAR` up, down, or not at all if it is `large`.
    """
    kept = _kept(f, name, shape, pattern)
    if not additive:
        return kept
    if pattern == "open":
        moves = np.zeros(shape)
    elif pattern == "large":
        moves = FAR * f.integers(f"{name}/far", shape, -1, 1)
    else:
        moves = f.normal(name, shape)
    return np.where(kept, moves, -np.inf)


def _kept(f: Frame, name: str, shape: tuple[int, ...], pattern: str) -> Array:
    keys = shape[-1]
    if pattern in ("open", "large") or not keys:
        return np.ones(shape, dtype=bool)
    if pattern == "single-key":
        chosen = np.asarray(draws.integers(f"{f.seed}/{name}/key", (*shape[:-1], 1), 0, keys - 1))
        return np.asarray(np.arange(keys) == chosen)
    kept = np.asarray(draws.integers(f"{f.seed}/{name}", shape, 0, 3) < 3)
    first = {"first-tile": 0, "middle-tile": keys // TILE // 2 * TILE, "last-tile": keys - TILE}
    if pattern in first:
        kept[..., first[pattern] : first[pattern] + TILE] = False
        kept[..., (first[pattern] + TILE) % max(keys, 1)] = True
    elif pattern == "empty-rows":
        kept[..., ::3, :] = False
    else:
        kept[..., :1] = True
    return kept
