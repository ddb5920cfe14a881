"""How large an answer may be to be taken over: as large as is declared, or small."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from qkvac.spec.cases.catalogue import Case
from qkvac.spec.symbolic import shapes

SMALL: Final = 1 << 16
"""Entries that a quantity may have whatever is declared: a diagnosis looks into wrong shapes."""


def limits(case: Case, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, int]:
    """The most entries of each quantity of a call with these inputs."""
    return _limits(case, tuple((name, array.shape) for name, array in inputs.items()))


@lru_cache(maxsize=64)
def _limits(case: Case, given: tuple[tuple[str, tuple[int, ...]], ...]) -> Mapping[str, int]:
    declared = shapes.contract(case.program, dict(case.bindings), given=dict(given))
    return MappingProxyType({name: max(prod(shape), SMALL) for name, shape in declared.items()})
