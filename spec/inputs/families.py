"""Families of inputs for self-attention with weights: one function each.

A family turns a frame (sizes, format, seed) into float64 arrays X, Wq, Wk, Wv whose entries are
numbers of the format. It shapes the queries and keys by giving single columns of X a task: a
column may hold a code of the token, a constant, or the payload that the values copy.

The exact families use that a sum of multiples of g whose magnitudes add up to at most 2**p · g is
exact in any order, and that a key which trails the row's largest scaled score by 746 or more has
the weight exp(−746) = 0 in every format up to float64.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any, cast

import numpy as np

from qkvac.spec.formats import FORMATS, Format
from qkvac.spec.inputs import draws
from qkvac.spec.inputs.draws import Floats, Integers

Inputs = dict[str, Floats]


@dataclass(frozen=True)
class Frame:
    """Sizes, format and seed of one set of inputs."""

    seed: str
    form: Format
    sizes: Mapping[str, int]
    """By the names of the axes in the equations."""
    batch: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        return self.sizes["n"]

    @property
    def d(self) -> int:
        return self.sizes["d"]

    @property
    def c(self) -> int:
        return self.sizes["c"]

    @property
    def half(self) -> bool:
        """Whether the exponent range is the narrow one of float16."""
        return self.form.emax < FORMATS["float32"].emax

    def normal(self, name: str, shape: tuple[int, ...], exponent: int = 0) -> Floats:
        return draws.normal(f"{self.seed}/{name}", shape, self.form.name, exponent)

    def weight(self, name: str, exponent: int = 0) -> Floats:
        """A d × c matrix that keeps magnitudes: deviation about 1/√d, times 2**exponent."""
        return self.normal(name, (self.d, self.c), exponent - (self.d.bit_length() - 1) // 2)

    def full(self, name: str, shape: tuple[int, ...], low: int = -1, high: int = 1) -> Floats:
        return draws.full_mantissa(f"{self.seed}/{name}", shape, self.form.name, low, high)

    def integers(self, name: str, shape: tuple[int, ...], low: int, high: int) -> Floats:
        return draws.integers(f"{self.seed}/{name}", shape, low, high).astype(np.float64)

    def permutation(self, name: str, size: int) -> Integers:
        return draws.permutation(f"{self.seed}/{name}", size)

    def selection(self, rows: Integers, values: Floats | float = 1.0) -> Floats:
        """The d × c matrix whose column k picks column rows[k] of X, times values[k]."""
        matrix = np.zeros((self.d, self.c))
        matrix[rows, np.arange(self.c)] = values
        return matrix

    def ternary(self, name: str, nonzeros: int) -> Floats:
        """A d × c matrix with `nonzeros` entries ±1 in each column."""
        matrix = np.zeros((self.d, self.c))
        for column in range(self.c):
            rows = self.permutation(f"{name}/{column}", self.d)[:nonzeros]
            matrix[rows, column] = draws.signs(f"{self.seed}/{name}/{column}", rows.shape)
        return matrix


# --- generic data ----------------------------------------------------------------------------


def normal(f: Frame, embedding: int = 0, query: int = 0, key: int = 0, value: int = 0) -> Inputs:
    """Normal data, each matrix times a power of two; scaled scores of variance about 1."""
    return {
        "X": f.normal("X", (f.n, f.d), embedding),
        "Wq": f.weight("Wq", query),
        "Wk": f.weight("Wk", key),
        "Wv": f.weight("Wv", value),
    }


def ranged_columns(f: Frame) -> Inputs:
    """Columns of X, Q, K and V far apart in magnitude, balanced so that every term counts."""
    span = {"float64": 60, "float16": 2}.get(f.form.name, 12)
    inner = f.integers("inner", (f.d,), -span, span).astype(np.int32)
    outer = f.integers("outer", (2, f.c), -span, span).astype(np.int32)
    inputs = normal(f)
    inputs["X"] = np.ldexp(inputs["X"], inner)
    for name, columns in (("Wq", outer[0]), ("Wk", -outer[0]), ("Wv", outer[1])):
        inputs[name] = np.ldexp(inputs[name], columns - inner[:, None])
    # A number pushed below the smallest normal one would not be stored exactly.
    return {k: np.where(np.abs(v) < f.form.tiny, 0.0, v) for k, v in inputs.items()}


def ranged_values(f: Frame) -> Inputs:
    """One key far ahead, and values of the others so large that both parts of C matter alike.

    The others' weights are about exp(−30); dropped, clamped or flushed, they change C outright.
    """
    lead, height = (20, 8) if f.half else (80, 40)
    inputs = dominated(f, f.n // 2, lead)
    inputs["X"][:, -3] = np.ldexp(f.full("payload", (f.n,), 0, 0), height)
    inputs["X"][f.n // 2, -3] = 1
    inputs["Wq"][-3] = inputs["Wk"][-3] = 0
    return inputs


def biased(f: Frame, query: Floats, key: Floats, heat: int = 0) -> Inputs:
    """Normal data whose score Ω_ij has query_i · key_j added, through a column of their own."""
    inputs = normal(f, query=heat)
    inputs["X"][:, -2], inputs["X"][:, -1] = query, key
    for name in ("Wq", "Wk"):
        inputs[name][:, -1] = 0
        inputs[name][-2:] = 0
    inputs["Wq"][-2, -1] = inputs["Wk"][-1, -1] = 1
    inputs["Wv"][-2:] = 0
    return inputs


def shifted(f: Frame, by: int) -> Inputs:
    """All scaled scores of normal data moved by about `by`, which changes neither A nor C."""
    raw = round(by * f.c**0.5)
    step = 2 ** (abs(raw).bit_length() // 2)
    return biased(f, np.full(f.n, float(step)), np.full(f.n, raw / step))


def shifted_rows(f: Frame) -> Inputs:
    """Each query's scores moved by an amount of its own, up to ±1500 after scaling."""
    raw = f.integers("row", (f.n,), -15, 15)
    raw[:2] = 15, -15
    return biased(f, raw, np.full(f.n, 256.0))


def dominated(f: Frame, key: int, lead: int) -> Inputs:
    """One key whose scores are raised by `lead`, for every query."""
    raised = np.zeros(f.n)
    raised[key] = lead
    return biased(f, np.ones(f.n), raised)


def ramp(f: Frame, step: float) -> Inputs:
    """Scores that rise (or fall) from key to key, so that each block brings a new maximum."""
    return biased(f, np.ones(f.n), np.arange(f.n) * np.float64(step))


def cancelling_projections(f: Frame) -> Inputs:
    """Sums for Q, K and V whose large terms cancel in pairs and leave small ones."""
    part = f.d // 3
    large, small = f.normal("large", (f.n, part), 6), f.normal("small", (f.n, f.d - 2 * part))
    inputs = {"X": np.concatenate([large, small, large], axis=1)}
    for name in ("Wq", "Wk", "Wv"):
        weight = f.weight(name)
        weight[f.d - part :] = -weight[:part]
        inputs[name] = weight
    return inputs


def cancelling_scores(f: Frame) -> Inputs:
    """Scores q·k whose large terms cancel in pairs."""
    inputs = normal(f)
    part = f.c // 3
    for name, sign in (("Wq", 1), ("Wk", -1)):
        inputs[name][:, :part] *= 2**4
        inputs[name][:, part : 2 * part] = sign * inputs[name][:, :part]
    return inputs


def cancelling_values(f: Frame) -> Inputs:
    """Nearly uniform weights over values of alternating sign, so that C is a small difference."""
    inputs = normal(f, query=-3)
    inputs["X"][:, -1] = np.ldexp(1.0 - 2.0 * (np.arange(f.n) % 2), 5)
    inputs["Wq"][-1] = inputs["Wk"][-1] = 0
    return inputs


def equal_rows(f: Frame) -> Inputs:
    """All tokens the same, on generic data: weights 1/n, C equal to V."""
    inputs = normal(f)
    inputs["X"] = np.repeat(inputs["X"][:1], f.n, axis=0)
    return inputs


def low_values(f: Frame) -> Inputs:
    """Values about 2**10 times the smallest normal number, under ordinary scores."""
    inputs = normal(f)
    inputs["Wv"] = f.normal("low", (f.d, f.c), f.form.emin + 10)
    return inputs


def subnormal_values(f: Frame) -> Inputs:
    """A value projection of subnormal numbers."""
    inputs = normal(f)
    steps = 2 ** (f.form.precision - 2)
    drawn = f.integers("low", (f.d, f.c), -steps, steps)
    inputs["Wv"] = drawn * f.form.smallest
    return inputs


# --- exact families --------------------------------------------------------------------------


def ternary(f: Frame) -> Inputs:
    """Entries −1, 0, 1 with few nonzeros: every sum up to Ω is a small whole number."""
    nonzeros = min(f.d, isqrt(2 ** FORMATS["bfloat16"].precision // f.c))
    inputs = {"X": f.integers("X", (f.n, f.d), -1, 1)}
    return inputs | {name: f.ternary(name, nonzeros) for name in ("Wq", "Wk", "Wv")}


def whole_projections(f: Frame) -> Inputs:
    """Projections of whole numbers (over a power of two) that fill the significand."""
    largest = isqrt(2**f.form.precision // f.d)
    inputs = {"X": f.integers("X", (f.n, f.d), -largest, largest)}
    for name in ("Wq", "Wk", "Wv"):
        weight = f.integers(name, (f.d, f.c), -largest, largest)
        inputs[name] = np.ldexp(weight, 2 - f.form.precision)
    return inputs


def whole_scores(f: Frame) -> Inputs:
    """Scores of whole numbers (over a power of two) that fill the significand."""
    largest = isqrt(2**f.form.precision // f.c)
    down = f.form.precision - 2
    picks = f.permutation("picks", f.d)
    return {
        "X": f.integers("X", (f.n, f.d), -largest, largest),
        "Wq": f.selection(picks[: f.c], 2.0 ** -(down // 2)),
        "Wk": f.selection(picks[f.d - f.c :], 2.0 ** -(down - down // 2)),
        "Wv": f.selection(f.permutation("values", f.d)[: f.c]),
    }


def copies(f: Frame, scaled: bool) -> Inputs:
    """Q, K and V are columns of X, whose entries use every bit (times powers of two)."""
    inputs = {"X": f.full("X", (f.n, f.d))}
    for name in ("Wq", "Wk", "Wv"):
        powers = f.integers(f"{name}/power", (f.c,), -3, 0) if scaled else np.zeros(f.c)
        flips = draws.signs(f"{f.seed}/{name}/flip", (f.c,)) if scaled else 1
        picks = f.permutation(name, f.d)[: f.c]
        inputs[name] = f.selection(picks, flips * 2.0**powers)
    return inputs


def copied_scores(f: Frame, from_keys: bool) -> Inputs:
    """Each score is one entry of Q (or of K), with every bit in use."""
    full, hot = np.arange(f.c), f.c + np.arange(f.c)
    x = f.full("X", (f.n, f.d))
    x[:, hot] = np.eye(f.c)[f.permutation("hot", f.n) % f.c]
    query, key = (hot, full) if from_keys else (full, hot)
    return {
        "X": x,
        "Wq": f.selection(query),
        "Wk": f.selection(key),
        "Wv": f.selection(f.permutation("values", f.d)[: f.c]),
    }


def uniform(f: Frame, zero: str) -> Inputs:
    """All scores 0, because the weight `zero` is 0: A is 1/n, C the mean of small whole numbers."""
    inputs = {"X": f.integers("X", (f.n, f.d), -3, 3)}
    inputs |= {name: f.ternary(name, min(f.d, 4)) for name in ("Wq", "Wk", "Wv")}
    inputs[zero] = np.zeros((f.d, f.c))
    return inputs


def equal_whole_rows(f: Frame) -> Inputs:
    """All tokens the same small whole numbers: equal scores that are not 0."""
    inputs = ternary(f)
    inputs["X"] = np.repeat(inputs["X"][:1], f.n, axis=0)
    return inputs


def equal_weight_rows(f: Frame) -> Inputs:
    """A value projection whose rows are all the same, over whole numbers."""
    inputs = ternary(f)
    inputs["Wv"] = np.repeat(f.integers("Wv", (1, f.c), -3, 3), f.d, axis=0)
    return inputs


def single(f: Frame) -> Inputs:
    """Arbitrary scores, values copied from X: the only token's weight is 1 and C is V."""
    inputs = normal(f)
    inputs["X"] = f.full("X", (f.n, f.d))
    inputs["Wv"] = f.selection(f.permutation("values", f.d)[: f.c])
    return inputs


def lookup(
    f: Frame,
    gain: tuple[int, int] = (11, 0),
    offset: tuple[float, float] | None = None,
    rows: bool = False,
    span: int = 1,
) -> Inputs:
    """Each query finds one key, so that C is a permutation of V's rows, with every bit in use.

    Token i asks for the ±1 code of i, token j answers to that of π⁻¹(j): the score is highest, by
    2 · 2**gain, where j = π(i). The factors 2**gain stand in Wq and Wk. `offset` adds
    query · key to every score through one more column; with `rows` the query's part is
    multiplied by a whole number of its own in [−8, 8]. The payload spans 2**±span.
    """
    bits = max(1, (f.n - 1).bit_length())
    code = 2.0 * (np.arange(f.n)[:, None] >> np.arange(bits) & 1) - 1
    x = np.zeros((f.n, f.d))
    x[:, :bits] = code
    order = f.permutation("order", f.n)
    x[order, bits : 2 * bits] = code
    query, key = np.zeros((f.d, f.c)), np.zeros((f.d, f.c))
    index = np.arange(bits)
    query[index, index], key[bits + index, index] = 2.0 ** gain[0], 2.0 ** gain[1]
    used = 2 * bits
    if offset is not None:
        multiple = f.integers("rows", (f.n,), -8, 8) if rows else np.ones(f.n)
        x[:, used], x[:, used + 1] = multiple * offset[0], offset[1]
        query[used, bits] = key[used + 1, bits] = 1
        used += 2
    x[:, used:] = f.full("payload", (f.n, f.d - used), -span, span)
    value = f.selection(used + np.arange(f.c) % (f.d - used))
    return {"X": x, "Wq": query, "Wk": key, "Wv": value}


def score_cliff(f: Frame) -> Inputs:
    """A lookup on top of a large constant, held by the last bits of each score's sum."""
    return lookup(f, (12, 0), (2.0**12, 2.0 ** (f.form.precision - 2)))


def key_cliff(f: Frame, summed: bool) -> Inputs:
    """Keys that differ in the last bits of one entry only; half the queries want the smallest.

    The entry is read from X, or `summed` in the projection from a constant and binary digits.
    """
    base, spread = 2.0 ** (f.form.precision - 2), 4
    rank = f.permutation("rank", f.n)
    bits = max(1, (f.n - 1).bit_length())
    key = np.zeros((f.d, f.c))
    x = np.zeros((f.n, f.d))
    x[:, 0] = np.ldexp(1.0 - 2.0 * (np.arange(f.n) % 2), 12)
    if summed:
        x[:, 1] = 1
        x[:, 2 : 2 + bits] = rank[:, None] >> np.arange(bits) & 1
        key[1 : 2 + bits, 0] = [base, *(spread * 2.0 ** np.arange(bits))]
    else:
        x[:, 1] = base + spread * rank
        key[1, 0] = 1
    used = 2 + bits
    x[:, used:] = f.full("payload", (f.n, f.d - used))
    query = np.zeros((f.d, f.c))
    query[0, 0] = 1
    value = f.selection(used + np.arange(f.c) % (f.d - used))
    return {"X": x, "Wq": query, "Wk": key, "Wv": value}


def ties(f: Frame) -> Inputs:
    """A lookup in which one, two or four keys tie: weights 1, 1/2 and 1/4 over whole numbers."""
    sizes = [4, 4, 2, 2, 2, 1, 1]
    group = np.repeat(np.arange(len(sizes)), sizes)
    bits = 3
    code = 2.0 * (np.arange(len(sizes))[:, None] >> np.arange(bits) & 1) - 1
    # 1 modulo 8: no sum of one, two or four of them is 0.
    x = 8 * f.integers("payload", (f.n, f.d), -2, 1) + 1
    x[:, :bits] = code[np.arange(f.n) % len(sizes)]
    x[f.permutation("order", f.n), bits : 2 * bits] = code[group]
    query, key = np.zeros((f.d, f.c)), np.zeros((f.d, f.c))
    index = np.arange(bits)
    query[index, index], key[bits + index, index] = 2.0**11, 1
    value = f.selection(2 * bits + np.arange(f.c) % (f.d - 2 * bits))
    return {"X": x, "Wq": query, "Wk": key, "Wv": value}


# --- the worked example ----------------------------------------------------------------------


@cache
def worked_example() -> Mapping[str, Any]:
    """The published example: inputs as hexadecimal literals, printed results, and their source."""
    text = Path(__file__).with_name("worked_example.json").read_text(encoding="utf-8")
    return cast(Mapping[str, Any], json.loads(text))


def worked(f: Frame) -> Inputs:
    """Six tokens with d = 3 and c = 2, in float32 numbers."""
    example = worked_example()
    matrices = {"X": example["X"]} | {k: example["attention"][k] for k in ("Wq", "Wk", "Wv")}
    return {
        name: np.array([[float.fromhex(entry) for entry in row] for row in rows])
        for name, rows in matrices.items()
    }
