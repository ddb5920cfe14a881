"""What carries certified values, and inputs that make trouble for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkvac.spec.enclosures.arb_balls import BallAlgebra, working_precision
from qkvac.spec.enclosures.double_double import DoubleDoubleAlgebra
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.enclosures.midpoint_radius import IntervalAlgebra
from qkvac.spec.grammar import equations
from qkvac.spec.grammar.rearrangements import Array
from qkvac.spec.registry import forward_profiles

ATTENTION = forward_profiles()["attention"].program()
CARRIERS: dict[str, Any] = {
    "interval": IntervalAlgebra,
    "double-double": DoubleDoubleAlgebra,
    "double-double, 4 slices": lambda conventions=None: DoubleDoubleAlgebra(conventions, slices=4),
    "balls": BallAlgebra,
}
FAMILIES = (
    *("normal", "wide", "hot", "scalding", "huge", "tiny", "subnormal"),
    *("cancelling", "whole", "sparse"),
)

everyone = pytest.mark.parametrize("carrier", CARRIERS)


def draw(rng: np.random.Generator, shape: Any, family: str) -> Any:
    """Doubles of one family; every one is the start of a different kind of trouble."""
    x = rng.standard_normal(shape)
    if family == "wide":
        return x * 2.0 ** rng.integers(-40, 41, shape)
    if family == "hot":
        return x * 30.0
    if family == "scalding":
        return x * 2.0 ** rng.integers(20, 40)
    if family == "tiny":
        return x * 2.0**-530
    if family == "subnormal":
        return np.ldexp(
            rng.integers(-9, 10, shape).astype(float), rng.choice([-1074, -40, 0], shape)
        )
    if family == "cancelling":
        pattern = np.where(np.arange(x.size).reshape(shape) % 2 == 0, 1.0, -1.0)
        return pattern * (1.0 + rng.integers(-2, 3, shape) * 2.0**-50) * 3.0
    if family == "whole":
        return rng.integers(-8, 9, shape).astype(float)
    if family == "sparse":
        return x * (rng.random(shape) < 0.4)
    if family == "huge":
        return x * 2.0 ** rng.integers(60, 120, shape)
    return x


def run(
    carrier: str, program: Any, inputs: Any, sizes: Any, bits: int = 128, conventions: Any = None
) -> dict[str, Enclosure]:
    algebra = CARRIERS[carrier](conventions)
    kinds = {tensor.name: tensor.kind for tensor in program.inputs}
    with working_precision(bits), np.errstate(all="ignore"):
        values = {
            name: algebra.constant(array) if kinds[name] == "real" else array
            for name, array in inputs.items()
        }
        results = equations.evaluate(program, algebra, values, sizes)
        return {name: Enclosure.of(value) for name, value in results.items()}


def attention_case(
    seed: int, family: str, n: int, d: int, c: int, batch: Any = ()
) -> tuple[dict[str, Array], dict[str, int]]:
    rng = np.random.default_rng(seed)
    families = rng.choice(FAMILIES, 4) if family == "mixed" else [family] * 4
    shapes = [(*batch, n, d), (d, c), (d, c), (d, c)]
    names = ("X", "Wq", "Wk", "Wv")
    inputs = {k: draw(rng, s, f) for k, s, f in zip(names, shapes, families, strict=True)}
    return inputs, {"n": n, "d": d, "c": c}
