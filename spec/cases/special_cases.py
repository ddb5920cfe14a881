"""Cases that need knowledge of a profile: who makes them registers for it.

A module of this package whose name ends in `_cases` is read when cases are asked for. Profiles that
nobody registers for have the cases that are made from their texts alone, see `derived_cases`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import qkvac.spec.cases
from qkvac.spec.cases.case import Case

Cases = Callable[[], Sequence[Case]]
Sent = Callable[[Sequence[Case]], Sequence[Case]]
"""What makes the cases of a profile's gradients from its own cases."""

_M = TypeVar("_M", bound=Callable[..., Sequence[Case]])

_CASES: Final[dict[str, Cases]] = {}
_GRADIENTS: Final[dict[str, Sent]] = {}


def cases_of(profile: str) -> Callable[[_M], _M]:
    """Registers a function that makes all cases of a profile, in a fixed order."""
    return _registration(_CASES, profile)


def gradients_of(profile: str) -> Callable[[_M], _M]:
    """Registers a function that makes all cases of its gradients, given the profile's own."""
    return _registration(_GRADIENTS, profile)


def _registration(makers: dict[str, Any], profile: str) -> Callable[[_M], _M]:
    def register(function: _M) -> _M:
        if profile in makers:
            raise ValueError(f"cases of {profile} are made twice")
        makers[profile] = function
        return function

    return register


def special_cases(profile: str) -> Cases | None:
    """What makes the cases of a profile, if anything registered for it."""
    _read()
    return _CASES.get(profile)


def special_gradients(profile: str) -> Sent | None:
    """What makes the cases of its gradients."""
    _read()
    return _GRADIENTS.get(profile)


@cache
def _read() -> None:
    for module in pkgutil.iter_modules(qkvac.spec.cases.__path__):
        if module.name.endswith("_cases"):
            importlib.import_module(f"{qkvac.spec.cases.__name__}.{module.name}")
