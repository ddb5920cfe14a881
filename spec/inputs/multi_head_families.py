"""Families of inputs for several heads: one function each.

Head k has the columns k·e to (k + 1)·e of Q, K, V and C, where e = c/h. Data whose heads differ in
temperature, magnitude or in the key that they look for show where heads are mixed up; equal ones
do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkvac.spec.inputs import draws, families
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.inputs.profile_families import above_tiny

Recipe = Callable[[Frame], Inputs]


def width(f: Frame) -> int:
    """Columns of a head."""
    return f.c // f.sizes["h"]


def blocks(f: Frame) -> list[slice]:
    """The columns of each head."""
    return [slice(k * width(f), (k + 1) * width(f)) for k in range(f.sizes["h"])]


def output(f: Frame, exponent: int = 0) -> Floats:
    """A normal c × o matrix that keeps magnitudes, times 2**exponent."""
    down = (f.c.bit_length() - 1) // 2
    return f.normal("Wo", (f.c, f.sizes["o"]), exponent - down)


def picks(f: Frame) -> Floats:
    """A c × o matrix whose columns pick columns of C from all heads, times ± powers of two."""
    columns = np.arange(f.sizes["o"])
    rows = f.permutation("Wo", f.c)[columns % f.c]
    powers = f.integers("Wo/power", columns.shape, -2, 1)
    matrix = np.zeros((f.c, f.sizes["o"]))
    matrix[rows, columns] = draws.signs(f"{f.seed}/Wo/sign", columns.shape) * 2.0**powers
    return matrix


def projected(f: Frame, of: Recipe = families.normal, exact: bool = False) -> Inputs:
    """A family of `attention` over the columns of all heads, and an output projection."""
    return of(f) | {"Wo": picks(f) if exact else output(f)}


# --- judged by bounds ------------------------------------------------------------------------


def scaled_heads(f: Frame) -> Inputs:
    """From head to head hotter by 8 and larger by 64; the output projection evens that out."""
    inputs = projected(f)
    for k, columns in enumerate(blocks(f)):
        inputs["Wq"][:, columns] *= 2.0 ** (3 * k - 3)
        inputs["Wv"][:, columns] *= 2.0 ** (6 * k - 6)
        inputs["Wo"][columns] *= 2.0 ** (6 - 6 * k)
    return {name: above_tiny(f, array) for name, array in inputs.items()}


def shifted_heads(f: Frame) -> Inputs:
    """The scores of each head moved by another amount: by about 1000, −1000, 3000, −3000, …"""
    inputs = projected(f)
    inputs["X"][:, -1] = 1
    for name in ("Wq", "Wk", "Wv"):
        inputs[name][-1] = 0
    for k, columns in enumerate(blocks(f)):
        last, by = columns.stop - 1, (1 - 2 * (k % 2)) * (1000 + 2000 * (k // 2))
        inputs["Wq"][:, last] = inputs["Wk"][:, last] = 0
        inputs["Wq"][-1, last] = 32
        inputs["Wk"][-1, last] = round(by * width(f) ** 0.5 / 32)
    return inputs


def cancelling_heads(f: Frame) -> Inputs:
    """The second head repeats the first, and the output projection subtracts it again."""
    inputs = projected(f)
    first, second = blocks(f)[:2]
    for name in ("Wq", "Wk", "Wv"):
        inputs[name][:, second] = inputs[name][:, first]
    inputs["Wo"][first] *= 2.0**5
    inputs["Wo"][second] = -inputs["Wo"][first]
    return inputs


# --- exact -----------------------------------------------------------------------------------


def whole_heads(f: Frame) -> Inputs:
    """All scores 0, since Wq is 0: C is a mean of whole numbers, from head to head doubled."""
    inputs = families.uniform(f, "Wq")
    for k, columns in enumerate(blocks(f)):
        inputs["Wv"][:, columns] *= 2.0**k
    return inputs | {"Wo": picks(f)}


def lookups(f: Frame) -> Inputs:
    """Each head looks for another key: C holds permuted rows of V, with every bit in use.

    Token i asks for the ±1 code of i in all heads; what token j answers to is held by columns of
    X of each head's own, in the order of another permutation.
    """
    bits = max(1, (f.n - 1).bit_length())
    code = _codes(f.n, bits)
    x = np.zeros((f.n, f.d))
    x[:, :bits] = code
    query, key = np.zeros((f.d, f.c)), np.zeros((f.d, f.c))
    index = np.arange(bits)
    used = bits
    for k, columns in enumerate(blocks(f)):
        x[f.permutation(f"order/{k}", f.n), used : used + bits] = code
        query[index, columns.start + index] = 2.0**11
        key[used + index, columns.start + index] = 1
        used += bits
    x[:, used:] = f.full("payload", (f.n, f.d - used))
    return {"X": x, "Wq": query, "Wk": key, "Wv": _copied(f, used), "Wo": picks(f)}


def ranked_heads(f: Frame) -> Inputs:
    """Each head attends the key that ranks highest in its own order among those it may see.

    The score is 2**36 · rank, or 2**11 · rank in float16, with ranks around 0.
    """
    x = f.full("X", (f.n, f.d))
    x[:, 0] = 1
    query, key = np.zeros((f.d, f.c)), np.zeros((f.d, f.c))
    for k, columns in enumerate(blocks(f)):
        x[:, 1 + k] = f.permutation(f"rank/{k}", f.n) - f.n // 2
        query[0, columns.start] = 2.0 ** (11 if f.half else 36)
        key[1 + k, columns.start] = 1
    return {"X": x, "Wq": query, "Wk": key, "Wv": _copied(f, 1 + f.sizes["h"]), "Wo": picks(f)}


def single(f: Frame) -> Inputs:
    """Arbitrary scores, values copied from X: the only token's weights are 1, and C is V."""
    return families.single(f) | {"Wo": picks(f)}


def _codes(n: int, bits: int) -> Floats:
    """The binary digits of each number below n, as ±1."""
    return np.where(np.arange(n)[:, None] >> np.arange(bits) & 1, 1.0, -1.0)


def _copied(f: Frame, used: int) -> Floats:
    """Values copied from the columns of X behind the first `used`, other ones for each head."""
    free = f.d - used
    start = np.arange(f.c) // width(f)
    powers = np.ldexp(1.0, -(start % 3))
    return f.selection(used + (np.arange(f.c) + start) % free, powers)
