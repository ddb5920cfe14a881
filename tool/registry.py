"""The adapters that ship with the suite, and whether this machine can run them.

Only static facts are read: an adapter module states its declaration without importing its
framework, so that listing the backends costs nothing and starts nothing.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from typing import Any, Final

from qkvac.declaration import Declaration, parse
from qkvac.usage import unknown

BACKENDS: Final = ("numpy", "torch", "jax", "tensorflow")
"""Adapters by the name of the package that they import, the embedded default first."""

ACCELERATORS: Final = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/accel*")
"""Device nodes without which there is nothing but the CPU; asking a framework takes seconds."""


@dataclass(frozen=True)
class Backend:
    """An adapter: its name, what it declares and what is installed for it."""

    name: str
    raw: dict[str, Any]
    unavailable: Callable[[str], str | None]
    """Why a mode cannot run here, as far as that is known without importing the framework."""

    @cached_property
    def declaration(self) -> Declaration:
        return parse(self.raw, source=f"qkvac.backends.{self.name}")

    @property
    def modes(self) -> tuple[str, ...]:
        return self.declaration.modes

    @cached_property
    def installed(self) -> bool:
        """Whether the framework is there; it is looked for, not imported."""
        return importlib.util.find_spec(self.name) is not None

    @cached_property
    def version(self) -> str:
        """Version of the framework's distribution, "" where there is none."""
        for name in (self.declaration.requires, self.name, f"{self.name}-cpu"):
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return ""

    def obstacle(self, mode: str) -> str:
        """Why a mode cannot run on this machine; "" if it can."""
        if not self.installed:
            return f"{self.name} is not installed"
        return self.unavailable(mode) or ""


def accelerators() -> bool:
    """Whether the machine may have a device besides its CPU that a framework can use."""
    if sys.platform == "darwin":
        return True
    return any(glob.glob(pattern) for pattern in ACCELERATORS)


@cache
def backend(name: str) -> Backend:
    """The adapter of that name; raises UsageError with the nearest name if there is none."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    module = importlib.import_module(f"qkvac.backends.{name}")
    # The same plain values that a port's declaration arrives in.
    declared: dict[str, Any] = json.loads(json.dumps(module.QKVAC))
    return Backend(name, declared, module.unavailable)


def backends() -> tuple[Backend, ...]:
    """All adapters, whether installed or not."""
    return tuple(backend(name) for name in BACKENDS)
