"""The backends: the suite's own adapters and those of other packages, and what can run here.

Of our own only static facts are read: an adapter module states its declaration without importing
its framework, so that listing them costs nothing and starts nothing. What another package brings
is described by a process of its own.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from typing import Any, Final

from qkvac.isolation.child import Child, WorkerError
from qkvac.isolation.process import surroundings
from qkvac.isolation.protocol import Message
from qkvac.targets.declaration import Declaration, DeclarationError, parse
from qkvac.targets.packages import OWN, Registered, adapter, registered
from qkvac.usage import unknown

ACCELERATORS: Final = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/accel*")
"""Device nodes without which there is nothing but the CPU; asking a framework takes seconds."""

LOADING: Final = 60.0
"""Seconds that the module of another package may take to be imported."""


@dataclass(frozen=True)
class Backend:
    """An adapter: its name, what it declares and what is installed for it."""

    name: str
    raw: dict[str, Any]
    unavailable: Callable[[str], str | None]
    """Why a mode cannot run here, as far as that is known without importing the framework."""
    package: Registered | None = None
    """The package that brings it; None for our own."""
    broken: str = ""
    """Why nothing of it can be used."""

    @cached_property
    def declaration(self) -> Declaration:
        return parse(self.raw, source=f"qkvac.backends.{self.name}")

    @property
    def modes(self) -> tuple[str, ...]:
        return self.declaration.modes

    @cached_property
    def installed(self) -> bool:
        """Whether the framework is there; it is looked for, not imported."""
        return not self.broken and not self.lacking

    @cached_property
    def lacking(self) -> tuple[str, ...]:
        """Distributions that it needs and that are not installed; they are not imported.

        Those of our own adapters are looked for by the module that bears their name, because
        another distribution may bring it.
        """
        found = _has_module if self.package is None else _version
        return tuple(name for name in self.declaration.requires if not found(name))

    @cached_property
    def version(self) -> str:
        """Version of what is tested, a framework's or a package's; "" where there is none."""
        if self.package is not None:
            return self.package.version
        return next(filter(None, map(_version, self.declaration.requires)), "")

    def obstacle(self, mode: str) -> str:
        """Why a mode cannot run on this machine; "" if it can."""
        if obstacle := self.absence or self.unavailable(mode):
            return obstacle
        kinds = self.declaration.mode_devices.get(mode, ("cpu",))
        return "" if "cpu" in kinds or accelerators() else f"there is no {' or '.join(kinds)} here"

    @property
    def absence(self) -> str:
        """Why no mode can run on this machine, and what would help; "" if nothing is known."""
        if self.broken:
            assert self.package is not None
            return f"{self.name} of {self.package.distribution} cannot be used: {self.broken}"
        if self.installed:
            return ""
        verb = "is" if len(self.lacking) == 1 else "are"
        return f"{' and '.join(self.lacking)} {verb} not installed"

    @property
    def remedy(self) -> str:
        """How to install what is absent, to be added to its absence."""
        if self.package is not None or self.installed:
            return ""
        extra = self.name.partition("-")[0]
        known = metadata.metadata("qkvac").get_all("Provides-Extra") or ()
        wanted = f"'qkvac[{extra}]'" if extra in known else " ".join(self.lacking)
        return f"; pip install {wanted} installs it"


def accelerators() -> bool:
    """Whether the machine may have a device besides its CPU that a framework can use."""
    if sys.platform == "darwin":
        return True
    return any(glob.glob(pattern) for pattern in ACCELERATORS)


@cache
def backend(name: str) -> Backend:
    """The backend of that name; raises UsageError with the nearest name if there is none."""
    if name in OWN:
        module = adapter(name)
        # The same plain values that a port's declaration arrives in.
        declared: dict[str, Any] = json.loads(json.dumps(module.QKVAC))
        return Backend(name, declared, module.unavailable)
    for package in registered():
        if package.name == name:
            return _described(package)
    raise unknown("backend", name, names())


def names() -> tuple[str, ...]:
    """All backends, whether they can run or not, our own first."""
    return (*OWN, *(package.name for package in registered()))


def backends() -> tuple[Backend, ...]:
    """All backends, whether they can run or not."""
    return tuple(map(backend, names()))


def _has_module(distribution: str) -> bool:
    return importlib.util.find_spec(distribution.replace("-", "_")) is not None


def _version(distribution: str) -> str:
    """The version of a distribution, or of its build for CPUs alone; "" where there is none."""
    for name in (distribution, f"{distribution}-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _described(package: Registered) -> Backend:
    """A backend of another package, as a process that imports it describes it."""

    def unusable(reason: str) -> Backend:
        return Backend(package.name, {}, lambda mode: reason, package, reason)

    if package.trouble:
        return unusable(package.trouble)
    try:
        child = Child(surroundings("default", "cpu", 1), None)
        try:
            message = Message({"op": "describe", "backend": package.name})
            header = child.exchange(message, LOADING).header
        finally:
            child.end()
    except (WorkerError, OSError) as error:
        return unusable(str(error))
    if header.get("ok") is not True:
        return unusable(str(header.get("reason")))
    try:
        found = dict(header["declaration"])
        obstacles = dict(header["obstacles"])
        modes = parse(found, source="QKVAC").modes
    except (DeclarationError, KeyError, TypeError, ValueError) as error:
        return unusable(str(error))
    texts = {mode: str(obstacles[mode]) for mode in modes if obstacles.get(mode)}
    return Backend(package.name, found, texts.get, package)
