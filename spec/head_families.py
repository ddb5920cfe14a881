"""Families of inputs for attention with heads: one function each.

A family turns a frame into float64 arrays Q[*batch, h, L, d], K[*batch, g, S, d] and
V[*batch, g, S, v] whose entries are numbers of the format. What a mask adds stands in
`mask_families`. The exact families use what `families` states: short sums of whole numbers, and
keys that trail by 746 or more.
"""

from __future__ import annotations

from qkvac.spec.families import Frame, Inputs

Shape = tuple[int, ...]


def query_shape(f: Frame) -> Shape:
    """[*batch, h, L, d]."""
    return (*f.batch, f.sizes["h"], f.sizes["L"], f.sizes["d"])


def key_shape(f: Frame) -> Shape:
    """[*batch, g, S, d]."""
    return (*f.batch, f.sizes["g"], f.sizes["S"], f.sizes["d"])


def value_shape(f: Frame) -> Shape:
    """[*batch, g, S, v]."""
    return (*f.batch, f.sizes["g"], f.sizes["S"], f.sizes["v"])


# --- generic data ----------------------------------------------------------------------------


def normal(f: Frame, query: int = 0, key: int = 0) -> Inputs:
    """Normal data, queries and keys times a power of two."""
    return {
        "Q": f.normal("Q", query_shape(f), query),
        "K": f.normal("K", key_shape(f), key),
        "V": f.normal("V", value_shape(f)),
    }
