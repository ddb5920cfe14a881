"""Reproductions: a failing entry as a few lines that need NumPy alone.

An entry of a quantity depends, by its equation, on a row of one operand and a column or row of
the other. These are short, whatever the size of the case, and are written as hexadecimal floats,
so that nothing is lost. The lines print what the entry should be, what the port returned, and
what rounding allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from qkvac.diagnosis import Sample

Array = np.ndarray[Any, Any]

READ: Final = "read = lambda text: np.array([float.fromhex(x) for x in text.split()])"
MOST: Final = 160
"""Numbers that a snippet may hold."""


def snippet(
    sample: Sample, quantity: str, worst: Mapping[str, Any], whole: bool = False
) -> str | None:
    """Lines that reproduce the worst entry; None where its operands were not reported, or are long.

    `whole` starts from the inputs: of a value that is wrong although its own equation holds. The
    profile's parts are known here: projections, scores, weights and context of attention.
    """
    index = tuple(int(i) for i in worst["index"])
    known = {**sample.case.inputs(sample.dtype), **sample.outputs}
    if sample.case.profile != "attention" or len(index) != 2 or quantity not in _MADE:
        return None
    if whole and quantity in _WHOLE:
        operands, lines = _WHOLE[quantity]
        parts = {name: np.asarray(known[name]).astype(np.float64) for name in operands}
        if quantity == "C":
            parts["Wv"] = parts["Wv"][:, index[1]]
    else:
        operands, lines = _MADE[quantity]
        if not {*operands} <= known.keys():
            return None
        parts = {
            name: _vector(known[name], quantity, place, index)
            for place, name in enumerate(operands)
        }
    if sum(part.size for part in parts.values()) > MOST:
        return None
    return "\n".join(_lines(parts, lines, sample, quantity, worst))


def _lines(
    parts: Mapping[str, Array],
    equations: str,
    sample: Sample,
    quantity: str,
    worst: Mapping[str, Any],
) -> Iterator[str]:
    i, j = (int(place) for place in worst["index"])
    yield "import numpy as np"
    yield READ
    for name, part in parts.items():
        numbers = " ".join(float(x).hex() for x in part.ravel())
        shape = f".reshape({part.shape[0]}, {part.shape[1]})" if part.ndim == 2 else ""
        yield f'{_spelt(name)} = read("{numbers}"){shape}'
    yield from equations.format(c=sample.case.sizes["c"], i=i, j=j).split("\n")
    returned = float(np.asarray(sample.outputs[quantity])[i, j]).hex()
    within = f"within {float(worst['bound']):.2g}; the port returned"
    yield f'print("{quantity}[{i}, {j}] should be", value, "{within}",'
    yield f'    float.fromhex("{returned}"))'


def _vector(array: Array, quantity: str, place: int, index: tuple[int, int]) -> Array:
    """The part of an operand that an entry depends on."""
    plain = np.asarray(array).astype(np.float64)
    i, j = index
    if place == 0:
        return np.asarray(plain[i])
    return np.asarray(plain[j] if quantity == "Ω" else plain[:, j])


def _spelt(name: str) -> str:
    return {"Ω": "scores"}.get(name, name)


_MADE: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "Q": (("X", "Wq"), "value = X @ Wq"),
    "K": (("X", "Wk"), "value = X @ Wk"),
    "V": (("X", "Wv"), "value = X @ Wv"),
    "Ω": (("Q", "K"), "value = Q @ K"),
    "A": (
        ("Ω",),
        "e = np.exp((scores - scores.max()) / np.sqrt({c}))\nvalue = (e / e.sum())[{j}]",
    ),
    "C": (("A", "V"), "value = A @ V"),
}
"""Operands of an entry, and the lines that compute it."""

_WEIGHTS: Final = """scores = (X @ Wq) @ (X @ Wk).T
e = np.exp((scores[{i}] - scores[{i}].max()) / np.sqrt({c}))"""

_WHOLE: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "Ω": (("X", "Wq", "Wk"), "value = (X[{i}] @ Wq) @ (X[{j}] @ Wk)"),
    "A": (("X", "Wq", "Wk"), _WEIGHTS + "\nvalue = (e / e.sum())[{j}]"),
    "C": (("X", "Wq", "Wk", "Wv"), _WEIGHTS + "\nvalue = e / e.sum() @ (X @ Wv)"),
}
"""The same from the inputs; of Wv the column of the entry."""
