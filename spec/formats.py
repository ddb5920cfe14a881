"""Floating-point formats: the constants that every bound is made of.

A format is described by its precision and exponent range alone, so that formats without a
NumPy dtype (TF32) can be declared in an arithmetic model like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary format with `precision` significand bits (the hidden bit included)."""

    name: str
    precision: int
    emin: int
    """Exponent of the smallest normal number, 2**emin."""
    emax: int
    """Exponent of the largest binade: every finite value is below 2**(emax + 1)."""

    @property
    def unit(self) -> float:
        """Unit roundoff u = 2**-p, the largest relative error of one rounding to nearest."""
        return 2.0**-self.precision

    @property
    def tiny(self) -> float:
        """The smallest positive normal number."""
        return 2.0**self.emin

    @property
    def smallest(self) -> float:
        """The smallest positive subnormal number."""
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        f.name: f
        for f in (
            Format("float64", 53, -1022, 1023),
            Format("float32", 24, -126, 127),
            Format("tfloat32", 11, -126, 127),
            Format("bfloat16", 8, -126, 127),
            Format("float16", 11, -14, 15),
        )
    }
)

DTYPES: Final = ("float64", "float32", "bfloat16", "float16")
"""The dtypes that cases are offered in, widest first."""


def dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a format; raises ValueError for a format that is only declared."""
    if name == "bfloat16":
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    if name not in DTYPES:
        raise ValueError(f"{name!r} is not a dtype of arrays; choose from {', '.join(DTYPES)}")
    return np.dtype(name)


def widened(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The same numbers as float64; ml_dtypes warns of NaN, which is not wrong in an array."""
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)
