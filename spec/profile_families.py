"""Families of inputs for the profiles around `attention`: one function each.

Most of them build on the families of `attention`, whose X, Wq, Wk and Wv they lay out anew: without
weights, as linear layers store them, head by head, or as one of several samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qkvac.spec import families
from qkvac.spec.draws import Floats
from qkvac.spec.families import Frame, Inputs

Recipe = Callable[[Frame], Inputs]


# --- leading axes ----------------------------------------------------------------------------


def batch(f: Frame, of: Recipe, heat: tuple[int, ...] = ()) -> Inputs:
    """Samples of one family under common weights; sample b is times 2**heat[b]."""
    single = replace(f, batch=())
    inputs = of(single)
    carrier = next(iter(inputs))
    count = int(np.prod(f.batch))
    samples = np.array([of(replace(single, seed=f"{f.seed}/{b}"))[carrier] for b in range(count)])
    if heat:
        samples = normalised(f, np.ldexp(samples, np.array(heat)[:, None, None]))
    inputs[carrier] = samples.reshape(*f.batch, *samples.shape[1:])
    return inputs


def sample(f: Frame, of: Recipe, batch: tuple[int, ...], index: tuple[int, ...]) -> Inputs:
    """One sample of what `of` makes with leading axes."""
    inputs = of(replace(f, batch=batch))
    carrier = next(iter(inputs))
    inputs[carrier] = inputs[carrier][index]
    return inputs


def normalised(f: Frame, values: Floats) -> Floats:
    """0 for what lies below the smallest normal number, which may not be stored exactly."""
    return np.where(np.abs(values) < f.form.tiny, 0.0, values)


# --- without weights -------------------------------------------------------------------------


def tokens(f: Frame, exponent: int = -1) -> Inputs:
    """Normal tokens; a token's score with itself is about d · 4**exponent."""
    return {"X": f.normal("X", (f.n, f.d), exponent)}


def whole_tokens(f: Frame, largest: int = 1, exponent: int = 0) -> Inputs:
    """Tokens of small whole numbers times 2**exponent."""
    return {"X": np.ldexp(f.integers("X", (f.n, f.d), -largest, largest), exponent)}


# --- linear layers ---------------------------------------------------------------------------


def linear(f: Frame, of: Recipe = families.normal) -> Inputs:
    """A family of `attention` with its weights stored (c, d)."""
    return {name: v.T if name.startswith("W") else v for name, v in of(f).items()}


def linear_biased(f: Frame, of: Recipe = families.normal, exponent: int = 0) -> Inputs:
    """The same with normal biases."""
    biases = {name: f.normal(name, (f.c,), exponent) for name in ("bq", "bk", "bv")}
    return linear(f, of) | biases


def linear_whole(f: Frame) -> Inputs:
    """Small whole numbers in weights and biases."""
    biases = {name: f.integers(name, (f.c,), -3, 3) for name in ("bq", "bk", "bv")}
    return linear(f, families.ternary) | biases


# --- several heads ---------------------------------------------------------------------------


def heads(f: Frame, of: Recipe = families.normal) -> Inputs:
    """A family of `attention` over all heads' columns, and a normal output projection."""
    down = (f.c.bit_length() - 1) // 2
    return of(f) | {"Wo": f.normal("Wo", (f.c, f.sizes["o"]), -down)}


# --- embeddings ------------------------------------------------------------------------------


def looked_up(f: Frame) -> Inputs:
    """Normal tables and token ids in any order."""
    t, p = f.sizes["t"], f.sizes["p"]
    return {
        "tokens": f.integers("tokens", (f.n,), 0, t - 1).astype(np.int64),
        "E": f.normal("E", (t, f.d)),
        "P": f.normal("P", (p, f.d), -1),
    }


def looked_up_whole(f: Frame) -> Inputs:
    """Tables of whole numbers, so that the sums are exact."""
    inputs = looked_up(f)
    inputs["E"] = f.integers("E", inputs["E"].shape, -64, 63)
    inputs["P"] = f.integers("P", inputs["P"].shape, -64, 63)
    return inputs
