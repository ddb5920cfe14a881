"""Families of cotangents, and of inputs whose gradients are exact.

A gradient is asked for on the inputs of the profile itself, to which a family adds the cotangent
of the last quantity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.bounds.rounding import Array
from qkvac.spec.inputs.draws import Floats
from qkvac.spec.inputs.families import Frame
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic.shapes import contract

Arrays = dict[str, NDArray[Any]]


def shape_of_last(f: Frame, profile: str, variant: str, inputs: Arrays) -> tuple[int, ...]:
    """The shape of the profile's last quantity for these inputs."""
    declared = forward_profiles()[profile]
    program = declared.program(variant or None)
    sizes = {**dict.fromkeys(program.parameters, 1), **f.sizes}
    given = {name: array.shape for name, array in inputs.items()}
    return contract(program, sizes, given=given)[declared.last]


def normal(f: Frame, shape: tuple[int, ...], exponent: int = 0) -> Floats:
    """As a loss would send it back: no two entries alike."""
    return f.normal("cotangent", shape, exponent)


def of_mean(f: Frame, shape: tuple[int, ...]) -> Floats:
    """As the mean over some thousand entries of a batch sends it back."""
    return normal(f, shape, -12)


def faint(f: Frame, shape: tuple[int, ...]) -> Floats:
    """As it comes through many layers: below 1e-30, yet far above the smallest normal number."""
    return normal(f, shape, -104)


def single(f: Frame, shape: tuple[int, ...]) -> Floats:
    """The gradient of one entry of the last quantity alone."""
    result = np.zeros(shape)
    result.flat[result.size // 2] = 1
    return result


def rows_alike(f: Frame, shape: tuple[int, ...]) -> Floats:
    """The gradient of a sum over tokens: every row of the cotangent is the same."""
    return np.broadcast_to(f.normal("cotangent", shape[-1:]), shape).copy()


def zero(f: Frame, shape: tuple[int, ...]) -> Floats:
    """No gradient comes back, so that none goes on."""
    return np.zeros(shape)


def fresh(f: Frame) -> Arrays:
    """As a layer is initialised: weights of deviation 1/64, so that all keys weigh alike."""
    inputs: Arrays = {"X": f.normal("X", (*f.batch, f.n, f.d))}
    for name in ("Wq", "Wk", "Wv"):
        inputs[name] = f.normal(name, (f.d, f.c), -6)
    return inputs


# --- exact gradients -------------------------------------------------------------------------


def tokens(f: Frame) -> Floats:
    """Small whole numbers; the first column is 1 for every token, and the last one 0."""
    X = f.integers("X", (*f.batch, f.n, f.d), -1, 1)
    X[..., 0], X[..., -1] = 1, 0
    return X


def balanced(f: Frame) -> Arrays:
    """Scores that are alike for all keys of a query, although queries and keys differ.

    Q = [a, 0] and K = [constant, b]: Ω_ij = a_i · constant does not depend on j, so every weight
    is 1/n; but b moves the scores to first order, so no gradient is 0. With n and √c powers of two
    and small whole numbers all gradients are dyadic.
    """
    half = f.c // 2
    matrices = {name: _sparse(f, name, f.d, f.c) for name in ("Wq", "Wk", "Wv")}
    matrices["Wq"][:, half:] = 0
    # Weights of the column of zeros add nothing to Q, and hand its gradient on to X.
    matrices["Wq"][-1, half:] = 1
    matrices["Wk"][:, :half] = 0
    matrices["Wk"][0, :half] = f.integers("constant", (half,), 1, 2)
    return {"X": tokens(f), **matrices}


def balanced_linear(f: Frame, biased: bool = False) -> Arrays:
    """`balanced` in the layout of linear layers; what bk adds to each key moves no weight."""
    inputs = balanced(f)
    for name in ("Wq", "Wk", "Wv"):
        inputs[name] = np.ascontiguousarray(inputs[name].T)
    if biased:
        half = f.c // 2
        bq, bk, bv = (f.integers(name, (f.c,), -1, 1) for name in ("bq", "bk", "bv"))
        bq[half:] = 0
        inputs |= {"bq": bq, "bk": bk, "bv": bv}
    return inputs


def balanced_heads(f: Frame) -> Arrays:
    """`balanced` for each head; Wo passes on few columns of C."""
    heads = f.sizes["h"]
    width = f.c // heads
    parts = [
        balanced(Frame(f"{f.seed}/{h}", f.form, {"n": f.n, "d": f.d, "c": width}, f.batch))
        for h in range(heads)
    ]
    weights = {
        name: np.concatenate([part[name] for part in parts], axis=1) for name in ("Wq", "Wk", "Wv")
    }
    Wo = np.zeros((f.c, f.sizes["o"]))
    places = f.permutation("Wo", f.c)[: f.sizes["o"]]
    Wo[places, np.arange(f.sizes["o"])] = 1
    return {"X": parts[0]["X"], **weights, "Wo": Wo}


def balanced_queries(f: Frame) -> Arrays:
    """Queries, keys and values like those of `balanced`."""
    s, half = f.sizes, f.sizes["d"] // 2
    Q = f.integers("Q", (*f.batch, s["h"], s["L"], s["d"]), -1, 1)
    K = f.integers("K", (*f.batch, s["g"], s["S"], s["d"]), -1, 1)
    Q[..., half:] = 0
    K[..., :half] = f.integers("constant", (half,), 1, 2)
    return {"Q": Q, "K": K, "V": f.integers("V", (*f.batch, s["g"], s["S"], s["v"]), -1, 1)}


def balanced_tokens(f: Frame) -> Arrays:
    """Tokens whose scores with each other are all alike: columns of equal entries, or of one ±1."""
    X = np.zeros((*f.batch, f.n, f.d))
    X[..., :2] = f.integers("X", (2,), 1, 2)
    return {"X": X}


def cool_tokens(f: Frame) -> Arrays:
    """Tokens of deviation 1/2."""
    return {"X": f.normal("X", (*f.batch, f.n, f.d), -1)}


def few(f: Frame, shape: tuple[int, ...]) -> Floats:
    """A cotangent of two entries ±1 a row."""
    result = np.zeros(shape)
    for row in np.ndindex(shape[:-1]):
        places = f.permutation(f"cotangent/{row}", shape[-1])[:2]
        result[(*row, places)] = f.integers(f"cotangent/sign/{row}", (len(places),), 0, 1) * 2 - 1
    return result


def _sparse(f: Frame, name: str, rows: int, columns: int) -> Array:
    """One entry ±1 in each column, never in the first row or the last."""
    matrix = np.zeros((rows, columns))
    for column in range(columns):
        row = 1 + f.permutation(f"{name}/{column}", rows - 2)[0]
        matrix[row, column] = f.integers(f"{name}/sign/{column}", (1,), 0, 1)[0] * 2 - 1
    return matrix
