"""Digests of outputs, so that runs can be compared bit for bit without keeping arrays.

The canonical form of an output has +0 for −0 and one NaN for all NaNs: implementations differ in
those without computing anything else.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def canonical(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in C order and little-endian, with −0 and NaN payloads normalised."""
    plain = np.ascontiguousarray(array)
    if plain.dtype.kind in "fV":
        plain = np.where(plain == 0, plain.dtype.type(0), plain)
        plain = np.where(plain != plain, plain.dtype.type(np.nan), plain)
    return plain.astype(plain.dtype.newbyteorder("<"), copy=False).reshape(array.shape)


def same_bits(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    """Whether two outputs are equal in dtype, shape and canonical bits."""
    alike = x.dtype == y.dtype and x.shape == y.shape
    return alike and canonical(x).tobytes() == canonical(y).tobytes()


def digest(array: np.ndarray[Any, Any]) -> str:
    """SHA-256 over dtype, shape and canonical bytes, in hexadecimal."""
    head = f"{array.dtype.name}{list(array.shape)}"
    return hashlib.sha256(head.encode() + canonical(array).tobytes()).hexdigest()
