"""Reproductions: a failing entry as a few lines that need NumPy alone.

An entry of a quantity depends, by its equation, on a row of one operand and the column of another.
These are short, whatever the size of the case, and are written as hexadecimal floats, so that
nothing is lost. The lines print what the entry should be, what the port returned, and what
rounding allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from qkvac.diagnosis.samples import Sample
from qkvac.diagnosis.slices import Slices
from qkvac.spec.grammar.syntax import SpecError

Array = np.ndarray[Any, Any]

READ: Final = "read = lambda text: np.array([float.fromhex(x) for x in text.split()])"
MOST: Final = 160
"""Numbers that a snippet may hold."""


def snippet(
    sample: Sample, quantity: str, worst: Mapping[str, Any], whole: bool = False
) -> str | None:
    """Lines that reproduce the worst entry; None where its operands were not reported, or are long.

    `whole` starts from the inputs: of a value that is wrong although its own equation holds.
    """
    index = tuple(int(i) for i in worst["index"])
    slices = Slices(sample, whole)
    try:
        value = slices.entry(quantity, index)
    except (LookupError, SpecError):
        return None
    if sum(part.size for part in slices.parts.values()) > MOST:
        return None
    lines = [*slices.lines, f"value = {value}"]
    return "\n".join(_lines(slices.parts, lines, sample, quantity, index, float(worst["bound"])))


def _lines(
    parts: Mapping[str, Array],
    equations: list[str],
    sample: Sample,
    quantity: str,
    index: tuple[int, ...],
    bound: float,
) -> Iterator[str]:
    yield "import numpy as np"
    if any(part.ndim for part in parts.values()):
        yield READ
    for name, part in parts.items():
        yield f"{name} = {_read(part)}"
    yield from equations
    returned = float(np.asarray(sample.outputs[quantity])[index]).hex()
    place = ", ".join(map(str, index))
    yield f'print("{quantity}[{place}] should be", value, "within {bound:.2g}; the port",'
    yield f'    "returned", float.fromhex("{returned}"))'


def _read(part: Array) -> str:
    if part.ndim == 0:
        return f'float.fromhex("{float(part).hex()}")'
    numbers = " ".join(float(x).hex() for x in part.ravel())
    shape = f".reshape({', '.join(map(str, part.shape))})" if part.ndim > 1 else ""
    return f'read("{numbers}"){shape}'
