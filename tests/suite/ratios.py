"""Errors over bounds: what the tests of the rounding and spread interpretations share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS
from qkvac.spec.registry import forward_profiles
from qkvac.tests.suite.evaluators import Array, Truth, Variant

PLAIN = forward_profiles()["attention"].program()
CAUSAL = forward_profiles()["causal_attention"].program()
SHIFTED = {"softmax": "shifted, divided"}
SINGLE = Arithmetic.for_dtype("float32", SHIFTED)
UNIT = FORMATS["float32"].unit


def sizes(given: Mapping[str, Array]) -> dict[str, int]:
    (n, d), c = given["X"].shape, given["Wq"].shape[1]
    return {"n": n, "d": d, "c": c}


def model(name: str, variant: Variant, **declared: Any) -> Arithmetic:
    form = "logsumexp" if variant.form == "logsumexp" else "shifted, divided"
    return Arithmetic.for_dtype(name, {"softmax": form, "blocks": variant.block, **declared})


def ratio(error: Array, bound: Array) -> float:
    """The largest error over bound; 0 where nothing is wrong, inf where a bound of 0 is missed."""
    with np.errstate(all="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / bound), initial=0.0))


def ratios(
    truth: Mapping[str, Truth], outputs: Mapping[str, Array], limits: Mapping[str, Array]
) -> dict[str, float]:
    return {
        name: ratio(true.error(outputs[name]), limits[name])
        for name, true in truth.items()
        if name in outputs
    }


def accumulated(terms: Array) -> np.float32:
    """float32 sum in the order given."""
    total = np.float32(0)
    for term in terms.astype(np.float32):
        total = np.float32(total + term)
    return total
