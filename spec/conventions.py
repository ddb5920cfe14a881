"""How arrays pass to and from a port whose conventions for them differ from the spec's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from qkvac.spec.grammar.adjoint import cotangent
from qkvac.spec.registry import known_profiles

Array = np.ndarray[Any, Any]

OF_VALUES: Final = ("empty_row", "causal_alignment")
"""Conventions that change results; the others say how inputs are stored."""


def of_values(conventions: Mapping[str, str]) -> dict[str, str]:
    """Those of the declared conventions that change results."""
    return {name: conventions[name] for name in OF_VALUES if name in conventions}


def presented(
    profile: str, inputs: Mapping[str, Array], conventions: Mapping[str, str]
) -> dict[str, Array]:
    """The inputs of the spec as a port takes them: masks that say what is dropped, or Wᵀ."""
    drops = conventions.get("mask") == "True drops"
    masks, turned = known_profiles()[profile].masks, _turned(profile, conventions)

    def given(name: str, array: Array) -> Array:
        if drops and name in masks and array.dtype == np.bool_:
            return ~array
        if name in turned:
            return np.ascontiguousarray(np.swapaxes(array, -1, -2))
        return array

    return {name: given(name, array) for name, array in inputs.items()}


def restored(
    profile: str, outputs: Mapping[str, Array], conventions: Mapping[str, str]
) -> Mapping[str, Array]:
    """The outputs of a port as the spec has them: the gradient of Wᵀ is that of W, turned."""
    turned = {cotangent(name) for name in _turned(profile, conventions)}
    if not turned:
        return outputs
    return {
        name: np.swapaxes(array, -1, -2) if name in turned and array.ndim > 1 else array
        for name, array in outputs.items()
    }


def _turned(profile: str, conventions: Mapping[str, str]) -> tuple[str, ...]:
    """The weights that are stored the other way round."""
    turned = conventions.get("weight_layout") == "c×d"
    return known_profiles()[profile].weights if turned else ()
