"""Backends that other packages bring: modules under the entry-point group `qkvac.backends`.

Such a module is an adapter like ours, with `QKVAC` and `open(mode, device)`. It is somebody
else's code, so it is imported in a tested process only, and whatever is wrong with it is a reason
why this one backend cannot run.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Final

import qkvac.backends.libraries

GROUP: Final = "qkvac.backends"

FRAMEWORKS: Final = ("numpy", "torch", "jax", "tensorflow")
"""Adapters that ship with the suite, by the package that they import; the default first."""

LIBRARIES: Final = tuple(
    sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(qkvac.backends.libraries.__path__)
    )
)
"""Adapters of attention as libraries offer it, which ship with the suite, too."""

OWN: Final = (*FRAMEWORKS, *LIBRARIES)


@dataclass(frozen=True)
class Registered:
    """An entry point of the group."""

    name: str
    module: str
    distribution: str
    version: str
    trouble: str = ""
    """Why it cannot be used, as far as that can be seen without importing it."""


@cache
def registered() -> tuple[Registered, ...]:
    """What the installed packages register, in the order of the names."""
    found = dict[str, Registered]()
    for entry in sorted(metadata.entry_points(group=GROUP), key=_order):
        name, version = _distribution(entry)
        trouble = _trouble(entry, found.values())
        # A name that is taken is shown beside the one that has it, and cannot be asked for.
        key = entry.name if not trouble else f"{entry.name} ({name})"
        found.setdefault(key, Registered(key, entry.value.strip(), name, version, trouble))
    return tuple(found.values())


def adapter(name: str) -> ModuleType:
    """Imports the module of a backend: one of ours, or one that a package registers."""
    if name in FRAMEWORKS:
        return importlib.import_module(f"qkvac.backends.{name}.adapter")
    if name in LIBRARIES:
        return importlib.import_module(f"qkvac.backends.libraries.{name.replace('-', '_')}")
    module = next((r.module for r in registered() if r.name == name), f"qkvac.backends.{name}")
    return importlib.import_module(module)


def _order(entry: metadata.EntryPoint) -> tuple[str, ...]:
    return entry.name, *_distribution(entry), entry.value


def _distribution(entry: metadata.EntryPoint) -> tuple[str, str]:
    package = entry.dist
    return (package.name, package.version) if package is not None else ("", "")


def _trouble(entry: metadata.EntryPoint, others: Iterable[Registered]) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,59}", entry.name):
        return "its name may hold letters, digits, and _ . + -"
    if entry.name in OWN:
        return "its name is that of a backend of qkvac"
    holder = next((r for r in others if r.name == entry.name), None)
    if holder is not None:
        return f"its name is taken by {holder.distribution}"
    if not all(part.isidentifier() for part in entry.value.strip().split(".")):
        return f"{entry.value!r} is not the name of a module"
    return ""
