"""Families of inputs for the profiles around `attention`: one function each.

Most of them build on the families of `attention`, whose X, Wq, Wk and Wv they lay out anew: as one
of several samples, under a causal mask, without weights, or as linear layers store them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.inputs import draws, families
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame, Inputs

Recipe = Callable[[Frame], Inputs]

BIASES = ("bq", "bk", "bv")


def above_tiny(f: Frame, values: Floats) -> Floats:
    """0 for what lies below the smallest normal number, which may not be stored exactly."""
    return np.where(np.abs(values) < f.form.tiny, 0.0, values)


# --- leading axes ----------------------------------------------------------------------------


def batch(f: Frame, of: Recipe, heat: tuple[int, ...] = ()) -> Inputs:
    """Samples of one family under the same weights; sample b is times 2**heat[b].

    The samples are the first array that the family makes: X, or tokens.
    """
    single = replace(f, batch=())
    inputs = of(single)
    name = next(iter(inputs))
    count = int(np.prod(f.batch))
    samples = np.array([of(replace(single, seed=f"{f.seed}/{b}"))[name] for b in range(count)])
    if heat:
        samples = above_tiny(f, np.ldexp(samples, np.array(heat)[:, None, None]))
    return inputs | {name: samples.reshape(*f.batch, *inputs[name].shape)}


def sample(f: Frame, of: Recipe, batch: tuple[int, ...], index: tuple[int, ...]) -> Inputs:
    """One sample of what `of` makes with leading axes."""
    inputs = of(replace(f, batch=batch))
    name = next(iter(inputs))
    return inputs | {name: inputs[name][index]}


# --- causal ----------------------------------------------------------------------------------


def ranked(f: Frame, below: bool = False) -> Inputs:
    """Scores 2**36 · rank of the key; the ranks are a permutation, from 0 or, `below`, to −33.

    Every query attends the key of the highest rank alone that it is allowed to see, while later
    keys are ahead of it by far. Values use every bit. In float16 scores are 2**11 · rank, with
    ranks around 0.
    """
    unit, lowest = (11, -(f.n // 2)) if f.half else (36, -f.n - 32 if below else 0)
    x = f.full("X", (f.n, f.d))
    x[:, 0], x[:, 1] = 1, lowest + f.permutation("rank", f.n)
    query, key = np.zeros((f.d, f.c)), np.zeros((f.d, f.c))
    query[0, 0], key[1, 0] = 2.0**unit, 1
    value = f.selection(2 + f.permutation("values", f.d - 2)[np.arange(f.c) % (f.d - 2)])
    return {"X": x, "Wq": query, "Wk": key, "Wv": value}


def recent_lookup(f: Frame, code: int, step: int) -> Inputs:
    """A lookup among the keys seen so far: of those that fit the query best, the latest.

    Many queries fit a later key better still. A bit of the code that fits raises the score by
    2 · 2**code, being one token later by 2**step; n of these are less than one of those.
    """
    inputs = families.lookup(f, gain=(code, 0), offset=(2.0**step, 1.0))
    bits = max(1, (f.n - 1).bit_length())
    inputs["X"][:, 2 * bits + 1] = np.arange(f.n)
    return inputs


def pairs(f: Frame) -> Inputs:
    """Scores that rise by 2**12 every second token: weights 1, or 1/2 on the last two."""
    x = f.integers("X", (f.n, f.d), -3, 3)
    x[:, 0], x[:, 1] = 1, np.arange(f.n) // 2 + 1
    query, key = np.zeros((f.d, f.c)), np.zeros((f.d, f.c))
    query[0, 0], key[1, 0] = 2.0**12, 1
    return {"X": x, "Wq": query, "Wk": key, "Wv": f.ternary("Wv", 4)}


# --- without weights -------------------------------------------------------------------------


def tokens(f: Frame, exponent: int = -1) -> Inputs:
    """Normal tokens; a token's score with itself is about d · 4**exponent."""
    return {"X": f.normal("X", (f.n, f.d), exponent)}


def raised_tokens(f: Frame) -> Inputs:
    """Normal tokens whose scores are all raised by 1024."""
    inputs = tokens(f)
    inputs["X"][:, -1] = 32
    return inputs


def whole_tokens(f: Frame) -> Inputs:
    """Tokens of the numbers −1, 0 and 1."""
    return {"X": f.integers("X", (f.n, f.d), -1, 1)}


def wide_tokens(f: Frame) -> Inputs:
    """Tokens of whole numbers whose scores fill the significand."""
    largest = isqrt(2**f.form.precision // f.d)
    return {"X": np.ldexp(f.integers("X", (f.n, f.d), -largest, largest), 3 - f.form.precision)}


def leaders(f: Frame) -> Inputs:
    """Tokens in groups of five along one axis each, which find the leader of their direction.

    All is whole numbers times 32, so that scores differ by multiples of 1024. A group's tokens
    lie at 6, 2, 1 and at −5, −3: all on a side attend the outermost, most of them not themselves.
    Two more entries ±1 tell tokens apart; they change a score by 2 at most.
    """
    places = np.array([6, -5, 2, -3, 1])
    groups = -(-f.n // len(places))
    member = f.permutation("member", f.n)
    each = np.arange(f.n)
    x = np.zeros((f.n, f.d))
    x[each, member % groups] = places[member // groups]
    middle = (groups + f.d) // 2
    for name, low, high in (("first", groups, middle), ("second", middle, f.d)):
        column = f.integers(name, (f.n,), low, high - 1).astype(np.int64)
        x[each, column] = draws.signs(f"{f.seed}/{name}/sign", (f.n,))
    return {"X": 32 * x}


def equal_tokens(f: Frame) -> Inputs:
    """All tokens the same small whole numbers: equal scores that are not 0, C equal to X."""
    inputs = whole_tokens(f)
    return {"X": np.repeat(inputs["X"][:1], f.n, axis=0)}


def lone_token(f: Frame) -> Inputs:
    """Tokens that use every bit."""
    return {"X": f.full("X", (f.n, f.d))}


def worked_tokens(f: Frame) -> Inputs:
    """The six tokens of the worked example."""
    return {"X": families.worked(f)["X"]}


# --- linear layers ---------------------------------------------------------------------------


def linear(f: Frame, of: Recipe = families.normal) -> Inputs:
    """A family of `attention` with its weights stored (c, d)."""
    return {name: v.T if name.startswith("W") else v for name, v in of(f).items()}


def linear_biased(f: Frame, exponents: tuple[int, int, int] = (0, 0, 0)) -> Inputs:
    """Normal data with normal biases, each times a power of two."""
    pairs = zip(BIASES, exponents, strict=True)
    return linear(f) | {name: f.normal(name, (f.c,), exponent) for name, exponent in pairs}


def linear_whole(f: Frame, largest: int = 3) -> Inputs:
    """Weights −1, 0, 1 and biases of small whole numbers, or all 0."""
    biases = {name: f.integers(name, (f.c,), -largest, largest) for name in BIASES}
    return linear(f, families.ternary) | biases


def linear_cancelling(f: Frame) -> Inputs:
    """Biases that take away what a constant column of X puts in, and leave ordinary numbers."""
    inputs = linear_biased(f)
    inputs["X"][:, 0] = 64
    for name, bias in zip(("Wq", "Wk", "Wv"), BIASES, strict=True):
        inputs[bias] = -64 * inputs[name][:, 0]
    return inputs


def linear_steered(f: Frame) -> Inputs:
    """A lookup in which the biases decide: their codes choose the key, values are theirs in part.

    All queries are the same, the bias; keys and values have a bias too. Without the query's
    bias, the weights are equal; a bias of the keys moves all scores of a query alike.
    """
    inputs = families.lookup(f)
    bits = max(1, (f.n - 1).bit_length())
    chosen = inputs["X"][f.n // 2, bits : 2 * bits]
    query, key, value = (np.zeros(f.c) for _ in BIASES)
    query[:bits], query[bits] = 2.0**11 * chosen, 2.0**8
    key[bits] = 2.0**7
    own = f.c // 2
    value[:own] = f.full("bv", (own,))
    inputs["Wv"][:, :own] = 0
    inputs["Wq"] = np.zeros((f.d, f.c))
    biases = {"bq": query, "bk": key, "bv": value}
    return {name: v.T if name.startswith("W") else v for name, v in inputs.items()} | biases


def worked_linear(f: Frame) -> Inputs:
    """The worked example with linear layers, in float32 numbers."""
    matrices = families.worked_example()["attention_linear_layers"]
    return worked_tokens(f) | {
        name: np.array([[float.fromhex(entry) for entry in row] for row in matrices[name]])
        for name in ("Wq", "Wk", "Wv")
    }


# --- embeddings ------------------------------------------------------------------------------


def _tables(f: Frame, ids: NDArray[np.int64], tokens: Floats, positions: Floats) -> dict[str, Any]:
    return {"tokens": ids, "E": tokens, "P": positions}


def ids(f: Frame) -> NDArray[np.int64]:
    """Token ids in any order, some more than once."""
    return f.integers("tokens", (f.n,), 0, f.sizes["t"] - 1).astype(np.int64)


def high_ids(f: Frame) -> NDArray[np.int64]:
    """The odd ids at the end of the table, which few bits cannot hold, and the first."""
    last = f.sizes["t"] - 1
    found = last - 2 * f.permutation("tokens", f.n)
    found[f.n // 2] = 0
    return found


def end_ids(f: Frame) -> NDArray[np.int64]:
    """The last id and the first, over and over."""
    found = f.integers("tokens", (f.n,), 0, 1).astype(np.int64)
    found[0] = 1
    return found * (f.sizes["t"] - 1)


def shuffled_ids(f: Frame) -> NDArray[np.int64]:
    """Every id once, in an order that is not its own inverse."""
    return f.permutation("tokens", f.n)


Ids = Callable[[Frame], NDArray[np.int64]]


def embedded(f: Frame, choose: Ids = ids) -> Inputs:
    """Normal tables; positions weigh half as much as tokens."""
    table = f.normal("E", (f.sizes["t"], f.d))
    return _tables(f, choose(f), table, f.normal("P", (f.sizes["p"], f.d), -1))


def embedded_whole(f: Frame, choose: Ids = ids) -> Inputs:
    """Tables of whole numbers, so that the sums are exact."""
    table = f.integers("E", (f.sizes["t"], f.d), -64, 63)
    return _tables(f, choose(f), table, f.integers("P", (f.sizes["p"], f.d), -64, 63))


def embedded_copies(f: Frame, of_tokens: bool) -> Inputs:
    """One table uses every bit, the other is 0: X holds copies of its rows."""
    table, places = (f.sizes["t"], f.d), (f.sizes["p"], f.d)
    if of_tokens:
        return _tables(f, ids(f), f.full("E", table), np.zeros(places))
    return _tables(f, ids(f), np.zeros(table), f.full("P", places))
