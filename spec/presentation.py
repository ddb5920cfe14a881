"""How inputs are handed over to a port whose conventions for them differ from the spec's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

OF_VALUES: Final = ("empty_row", "causal_alignment")
"""Conventions that change results; the others say how inputs are stored."""

STORED_LINEAR: Final = ("attention_linear_layers", "attention_linear_layers_gradients")
"""Profiles whose weights are (c, d) by their own definition."""


def of_values(conventions: Mapping[str, str]) -> dict[str, str]:
    """Those of the declared conventions that change results."""
    return {name: conventions[name] for name in OF_VALUES if name in conventions}


def presented(
    profile: str, inputs: Mapping[str, Array], conventions: Mapping[str, str]
) -> dict[str, Array]:
    """The inputs of the spec as a port takes them: masks that say what is dropped, or Wᵀ."""
    drops = conventions.get("mask") == "True drops"
    turned = conventions.get("weight_layout") == "c×d" and profile not in STORED_LINEAR

    def given(name: str, array: Array) -> Array:
        if drops and name == "mask" and array.dtype == np.bool_:
            return ~array
        if turned and name.startswith("W"):
            return np.ascontiguousarray(np.swapaxes(array, -1, -2))
        return array

    return {name: given(name, array) for name, array in inputs.items()}
