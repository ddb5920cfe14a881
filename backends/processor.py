"""The processor that this process runs on, as far as kernels are chosen by it."""

from __future__ import annotations

import platform
from functools import cache
from typing import Final

ARCHITECTURES: Final = {"AMD64": "X86_64", "ARM64": "AARCH64"}
"""Other names of architectures, on Windows and macOS."""


@cache
def cpu_features() -> frozenset[str]:
    """Features of the CPU that NumPy knows of, in its spelling: AVX2, AVX512F, …"""
    try:
        from numpy._core._multiarray_umath import __cpu_features__ as features
    except ImportError:  # NumPy 1
        from numpy.core._multiarray_umath import (  # type: ignore[no-redef]
            __cpu_features__ as features,
        )
    return frozenset(name for name, present in features.items() if present)


def architecture() -> str:
    """X86_64, AARCH64, …"""
    machine = platform.machine().upper()
    return ARCHITECTURES.get(machine, machine)
