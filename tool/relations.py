"""Further inputs that the checks of clause M ask about, known before the first answer.

A function is simply called again. For a port that works on files, they are written beside the
case, as if they were cases of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]

FACTORS: Final[Mapping[str, tuple[Mapping[str, float], ...]]] = {
    "repeat": ({},),
    "scaling": (
        {"X": 4.0, "Wq": 0.25, "Wk": 0.25, "Wv": 0.25},
        {"Wq": 2.0, "Wk": 0.5, "Wv": 8.0},
    ),
    "signs": ({"Wq": -1.0, "Wk": -1.0}, {"Wv": -1.0}),
}
"""By check: what each further call multiplies the inputs by."""


def further(check: str, inputs: Inputs) -> tuple[dict[str, Array], ...]:
    """The inputs of the further calls of a check, in order; none if it asks nothing in advance."""
    return tuple(
        {name: times(array, factors.get(name, 1.0)) for name, array in inputs.items()}
        for factors in FACTORS.get(check, ())
    )


def times(array: Array, factor: float) -> Array:
    """The array times a power of two, in its own dtype."""
    return array if factor == 1.0 else array * array.dtype.type(factor)
