"""Families of inputs for attention with heads: one function each.

A family turns a frame into float64 arrays Q[*batch, h, L, d], K[*batch, g, S, d] and
V[*batch, g, S, v] whose entries are numbers of the format. `mask_families` adds masks to them.
The exact families use what `families` states: short sums of whole numbers, and keys that trail by
746 or more. Heads and samples get numbers of their own, so that none can stand for another.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from qkvac.spec.inputs import draws
from qkvac.spec.inputs.draws import Floats, Integers
from qkvac.spec.inputs.families import Frame, Inputs

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


def own_keys(f: Frame) -> Integers:
    """[h]: the key/value head that each query head reads, ⌊head · g / h⌋."""
    return np.arange(f.sizes["h"]) * f.sizes["g"] // max(f.sizes["h"], 1)


def permutations(f: Frame, name: str, heads: str, size: int) -> Integers:
    """[*batch, heads, size]: a permutation of `size` things for each sample and head."""
    lead = (*f.batch, f.sizes[heads])
    orders = [f.permutation(f"{name}/{i}", size) for i in range(int(np.prod(lead)))]
    return np.array(orders).reshape(*lead, size)


# --- generic data ----------------------------------------------------------------------------


def normal(f: Frame, query: int = 0, key: int = 0) -> Inputs:
    """Normal data, queries and keys times a power of two."""
    return {
        "Q": f.normal("Q", query_shape(f), query),
        "K": f.normal("K", key_shape(f), key),
        "V": f.normal("V", value_shape(f)),
    }


def biased(f: Frame, query: Floats | float, key: Floats | float) -> Inputs:
    """Normal data whose raw scores have query · key added, through the last column."""
    inputs = normal(f)
    inputs["Q"][..., -1], inputs["K"][..., -1] = query, key
    return inputs


def shifted_rows(f: Frame) -> Inputs:
    """Each query's scores moved by an amount of its own, up to about ±1500 after scaling."""
    raw = f.integers("row", query_shape(f)[:-1], -15, 15)
    raw[..., 0], raw[..., -1] = 15, -15
    return biased(f, raw, 256.0)


def rising(f: Frame) -> Inputs:
    """Scores that rise from key to key, so that each block brings a new maximum."""
    return biased(f, 2.0, np.arange(f.sizes["S"], dtype=np.float64))


def full_values(f: Frame) -> Inputs:
    """Normal queries and keys, values that use every bit."""
    return {**normal(f), "V": f.full("payload", value_shape(f))}


def opposed(f: Frame) -> Inputs:
    """Queries all 40, keys all −40 but one that is 40 in each head: raw scores of ±1600·d."""
    first = permutations(f, "key", "g", f.sizes["S"]) == 0
    return {
        "Q": np.full(query_shape(f), 40.0),
        "K": np.broadcast_to(np.where(first, 40.0, -40.0)[..., None], key_shape(f)),
        "V": f.normal("V", value_shape(f)),
    }


# --- exact families --------------------------------------------------------------------------


def lookup(
    f: Frame,
    gain: tuple[int, int] = (12, 0),
    offset: tuple[float, float] = (0.0, 0.0),
    causal: bool = False,
    span: int = 1,
) -> Inputs:
    """Each query finds one key, so that C consists of rows of V, with every bit in use.

    Keys carry the ±1 code of a label, other labels in each head, and a query the code of the key
    that it is to find: no key twice if there are enough, or with `causal` one that came before.
    The codes are multiplied by 2**gain, so that others trail by 2 · 2**gain before scaling.
    `offset` adds query · key to every score, through the last column.
    """
    keys, count = f.sizes["S"], f.sizes["L"]
    bits = max(1, (keys - 1).bit_length())
    code = 2.0 * (np.arange(keys)[:, None] >> np.arange(bits) & 1) - 1
    labels = permutations(f, "labels", "g", keys)
    if causal:
        wanted = f.integers("wanted", query_shape(f)[:-1], 0, keys - 1).astype(np.int64)
        wanted %= np.minimum(np.arange(count), keys - 1) + 1
    else:
        wanted = permutations(f, "wanted", "h", keys)[..., np.arange(count) % keys]
    query, key = np.zeros(query_shape(f)), np.zeros(key_shape(f))
    key[..., :bits] = np.ldexp(code[labels], gain[1])
    read = np.take(labels, own_keys(f), axis=len(f.batch))
    found = np.take_along_axis(read, wanted, axis=-1)
    query[..., :bits] = np.ldexp(code[found], gain[0])
    if offset[0]:
        query[..., -1], key[..., -1] = offset
    return {"Q": query, "K": key, "V": f.full("payload", value_shape(f), -span, span)}


def score_cliff(f: Frame) -> Inputs:
    """A lookup on top of a large constant, held by the last bits of each score's sum."""
    return lookup(f, (12, 0), (2.0**12, 2.0 ** (f.form.precision - 2)))


def key_cliff(f: Frame) -> Inputs:
    """Keys that differ in the last bits of one entry only; half the queries want the smallest."""
    query, key = np.zeros(query_shape(f)), np.zeros(key_shape(f))
    query[..., 1] = np.ldexp(1.0 - 2.0 * (np.arange(f.sizes["L"]) % 2), 12)
    key[..., 1] = 2.0 ** (f.form.precision - 2) + 4 * permutations(f, "rank", "g", f.sizes["S"])
    return {"Q": query, "K": key, "V": f.full("payload", value_shape(f))}


def low(f: Frame) -> Inputs:
    """A causal lookup in which the best score that a query may see is −95 000, float16: −17 000."""
    gain, offset = (11, (2.0**12, -13.0)) if f.half else (12, (2.0**9, -(2.0**9)))
    return lookup(f, (gain, 0), offset, causal=True)


def ranked(f: Frame) -> Inputs:
    """Keys in an order of their own in each head; a query wants the largest or the smallest.

    These are the last two keys. Among any others, too, one leads by 2**36 or more before scaling,
    in float16 by 2**12.
    """
    keys, step = f.sizes["S"], 12 if f.half else 36
    rank = permutations(f, "rank", "g", keys - 2) + 1
    ends = np.broadcast_to([keys - 1, 0], (*rank.shape[:-1], 2))
    query, key = np.zeros(query_shape(f)), np.zeros(key_shape(f))
    query[..., 1] = draws.signs(f"{f.seed}/want", query_shape(f)[:-1])
    key[..., 1] = np.ldexp(np.concatenate([rank, ends], -1).astype(np.float64), step)
    return {"Q": query, "K": key, "V": f.full("payload", value_shape(f))}


def head_ids(f: Frame) -> Inputs:
    """A lookup of values that are all the number of their key/value head, from 1."""
    ids = np.arange(1.0, f.sizes["g"] + 1)[:, None, None]
    return {**lookup(f), "V": np.broadcast_to(ids, value_shape(f)).copy()}


def sample_ids(f: Frame) -> Inputs:
    """A lookup of values that are all the number of their sample, from 1."""
    ids = np.arange(1.0, np.prod(f.batch) + 1).reshape(*f.batch, 1, 1, 1)
    return {**lookup(f), "V": np.broadcast_to(ids, value_shape(f)).copy()}


def same_samples(f: Frame) -> Inputs:
    """A lookup in keys and values that all samples share."""
    one = lookup(Frame(f.seed, f.form, f.sizes))
    return {name: np.broadcast_to(one[name], (*f.batch, *one[name].shape)).copy() for name in one}


def uniform(f: Frame) -> Inputs:
    """Queries of 0 over live keys: A is 1/S, C the mean of small whole numbers."""
    return {
        "Q": np.zeros(query_shape(f)),
        "K": f.integers("K", key_shape(f), -3, 3),
        "V": f.integers("V", value_shape(f), -3, 3),
    }


def copied_queries(f: Frame) -> Inputs:
    """Each score is one entry of Q, with every bit in use."""
    key = np.zeros(key_shape(f))
    hot = permutations(f, "hot", "g", f.sizes["S"]) % f.sizes["d"]
    np.put_along_axis(key, hot[..., None], 1.0, axis=-1)
    return {"Q": f.full("Q", query_shape(f)), "K": key, "V": f.normal("V", value_shape(f))}


GROUPS: Final = (4, 2, 1, 1)
"""How many of 8 keys tie."""


def ties(f: Frame) -> Inputs:
    """A lookup in which one, two or four of 8 keys tie: weights 1, 1/2, 1/4 over whole numbers."""
    bits = 2
    code = 2.0 * (np.arange(len(GROUPS))[:, None] >> np.arange(bits) & 1) - 1
    label = np.repeat(np.arange(len(GROUPS)), GROUPS)
    query, key = np.zeros(query_shape(f)), np.zeros(key_shape(f))
    wanted = permutations(f, "wanted", "h", f.sizes["L"]) % len(GROUPS)
    query[..., :bits] = np.ldexp(code[wanted], 12)
    key[..., :bits] = code[label[permutations(f, "labels", "g", f.sizes["S"])]]
    # 1 modulo 8: no sum of one, two or four of them is 0.
    return {"Q": query, "K": key, "V": 8 * f.integers("payload", value_shape(f), -2, 1) + 1}


MINIMUM_MEETS: Final = (-15.0, -16.0, -64.0)
"""Scores beside float16's most negative number: their sum is in range, and twice beyond it."""


def beside_minimum(f: Frame) -> Inputs:
    """Unscaled scores of −15, −16 and −64; those of the middle query are −16 and −64 alone."""
    query, key = np.zeros(query_shape(f)), np.zeros(key_shape(f))
    rows = np.arange(f.sizes["L"])
    query[..., rows, rows % f.sizes["d"]] = 1
    key[...] = np.array(MINIMUM_MEETS)[draws.integers(f"{f.seed}/K", key_shape(f), 0, 2)]
    low = key[..., f.sizes["L"] // 2 % f.sizes["d"]]
    low[low == MINIMUM_MEETS[0]] = MINIMUM_MEETS[1]
    return {"Q": query, "K": key, "V": f.normal("V", value_shape(f))}
