"""Equations of somebody's own: profiles of files, and those that installed packages register."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from qkvac.spec import registry, validation
from qkvac.spec.grammar.syntax import SpecError
from qkvac.spec.profile import Profile
from qkvac.usage import UsageError

ROLES: Final = ("takes", "returns", "reports", "shared")
"""Names of a declaration that a record holds."""


def use(files: Iterable[str | Path] = ()) -> None:
    """Adds the profiles of files, and of installed packages, to the suite's own.

    Raises UsageError, with the place, for what cannot be run or makes no sense.
    """
    named = [str(file) for file in files]
    for file in named:
        if not file.endswith(".py"):
            raise UsageError(f"{file} is no Python file; equations are declared in FILE.py")
    modules = (entry.value for entry in metadata.entry_points(group=registry.GROUP))
    try:
        for source in registry.choose((*sorted(set(modules)), *named)).sources:
            validation.check(source)
    except SpecError as error:
        raise UsageError(str(error)) from error


def told() -> list[dict[str, Any]]:
    """What a record says of profiles that are not the suite's own."""
    return [
        {
            "source": Path(source.name).name,
            "sha256": source.digest,
            "profiles": [_plain(profile) for profile in source.profiles],
        }
        for source in registry.chosen().sources
    ]


def _plain(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "about": profile.about,
        "texts": dict(profile.texts),
        **{role: list(getattr(profile, role)) for role in ROLES},
    }


def recall(equations: Iterable[Mapping[str, Any]]) -> None:
    """Makes known what a record says of profiles; nothing of it is run.

    Raises UsageError for equations that cannot be read.
    """
    for source in equations:
        try:
            profiles = [
                Profile(
                    *(told["name"], told["about"], dict(told["texts"])),
                    **{role: told[role] for role in ROLES},
                )
                for told in source["profiles"]
            ]
            for profile in profiles:
                _ = profile.quantities, profile.gradients.quantities
            registry.recall(registry.Source(source["source"], source["sha256"], tuple(profiles)))
        except (SpecError, LookupError, RecursionError, MemoryError, AssertionError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UsageError(f"the equations of {source['source']}: {reason}") from error
