"""The floating-point environment of the calling thread: rounding mode and flushing of subnormals.

Libraries change both for a whole thread and seldom put them back, and everything computed after
that is wrong in its last bits, or in its small numbers. The environment is observed by doing
arithmetic on arrays (scalars might be folded by a compiler), and compared as bits, since a thread
that flushes subnormals also takes them for 0 when it compares them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

_SIZE: Final = 1024
"""Bytes for C's fenv_t, which has at most 32 on the platforms at hand."""

_add = np.add
_divide = np.divide
_multiply = np.multiply


def _array(bits: list[int], integers: str, floats: str) -> np.ndarray[Any, Any]:
    return np.array(bits, integers).view(floats)


_TINY32 = _array([0x00800000], "u4", "f4")
_TINY64 = _array([0x0010000000000000], "u8", "f8")
_SUBNORMAL32 = _array([0x00000007], "u4", "f4")
_SUBNORMAL64 = _array([0x0000000000000007], "u8", "f8")
_FOUR32, _FOUR64 = np.array([4], "f4"), np.array([4], "f8")
_ONE32, _ONE64 = np.array([1], "f4"), np.array([1], "f8")
_ROUNDED32 = np.array([1, 1, -1], "f4"), np.array([2.0**-30, -(2.0**-30), -(2.0**-30)], "f4")
_ROUNDED64 = np.array([1, 1, -1], "f8"), np.array([2.0**-60, -(2.0**-60), -(2.0**-60)], "f8")

_MODES: Final = {
    (False, False, False): "",
    (True, False, False): "rounding upward",
    (False, True, True): "rounding downward",
    (False, True, False): "rounding toward zero",
}


def describe() -> str:
    """What differs from IEEE 754's defaults on this thread; "" where nothing does."""
    found = []
    for sums in (_ROUNDED64, _ROUNDED32):
        moved = _add(*sums).view(f"u{sums[0].itemsize}") != sums[0].view(f"u{sums[0].itemsize}")
        first, second, third = moved.tolist()
        mode = _MODES.get((first, second, third), "unknown rounding")
        if mode and mode not in found:
            found.append(mode)
    flushed = any(
        not operation(x, y).view(f"u{x.itemsize}").any()
        for operation, x, y in (
            (_divide, _TINY32, _FOUR32),
            (_divide, _TINY64, _FOUR64),
            (_multiply, _SUBNORMAL32, _ONE32),
            (_multiply, _SUBNORMAL64, _ONE64),
        )
    )
    if flushed:
        found.append("subnormals flushed")
    return ", ".join(found)


def reset() -> None:
    """Puts IEEE 754's defaults in force on this thread; `describe` says whether that succeeded."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        # C's FE_DFL_ENV, in the C libraries of Linux.
        ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))


def keep() -> Callable[[], None]:
    """Notes the environment of this thread; the returned function puts it back.

    Where the C library has no `fegetenv`, that function does nothing: whoever relies on it
    calls `describe` afterwards.
    """
    try:
        library = ctypes.CDLL(None)
        get, put = library.fegetenv, library.fesetenv
    except (OSError, AttributeError, TypeError):
        return lambda: None
    state = ctypes.create_string_buffer(_SIZE)
    get(state)

    def restore() -> None:
        put(state)

    return restore
