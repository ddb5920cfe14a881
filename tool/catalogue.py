"""The command that lists the fault catalogue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from textwrap import fill
from typing import Any, Final

import click

from qkvac.spec.cases import cases
from qkvac.spec.faults import FAULTS, Fault, Kind
from qkvac.spec.profile import Profile
from qkvac.spec.registry import forward_profiles, gradient_profiles, known_profiles
from qkvac.usage import UsageError

Key = tuple[bool, Kind]
"""Whether a fault is about gradients, and its kind."""

TITLES: Final[Mapping[Key, str]] = {
    (False, "formula"): "Wrong formulas",
    (False, "arithmetic"): "The right formulas in poor arithmetic",
    (False, "behaviour"): "Functions that misbehave",
    (True, "formula"): "Wrong gradients",
    (True, "arithmetic"): "The right gradients in poor arithmetic",
    (True, "behaviour"): "Gradient functions that misbehave",
}


def _key(fault: Fault) -> Key:
    return fault.of_gradients, fault.kind


def _profiles(fault: Fault) -> Mapping[str, Profile]:
    """The profiles that a fault is meant for."""
    return gradient_profiles() if fault.of_gradients else forward_profiles()


def show_faults(name: str | None, form: str) -> None:
    """Lists the catalogue, or shows one fault; raises UsageError for an unknown one."""
    if name is not None and name not in FAULTS:
        raise UsageError(f"there is no fault {name!r}; `qkvac faults` lists them")
    chosen = list(FAULTS.values()) if name is None else [FAULTS[name]]
    if form == "json":
        click.echo(json.dumps([entry(fault) for fault in chosen], ensure_ascii=False, indent=1))
    elif name is not None:
        click.echo(_one(chosen[0]))
    else:
        for key, title in TITLES.items():
            click.echo(f"{title}\n")
            for fault in chosen:
                if _key(fault) == key:
                    click.echo(f"  {fault.name:<31} {fault.what}")
            click.echo()
        counts = Counter(map(_key, chosen))
        parts = ", ".join(f"{counts[key]} {title.lower()}" for key, title in TITLES.items())
        click.echo(fill(f"{len(chosen)} faults: {parts}. `qkvac faults NAME` says more.", 80))


def entry(fault: Fault) -> dict[str, Any]:
    """A fault as plain values."""
    fits = {name: fault.fit(name) for name in _profiles(fault)}
    return {
        "name": fault.name,
        "kind": fault.kind,
        "of_gradients": fault.of_gradients,
        "about": fault.about,
        "dtype": fault.dtype,
        "caught_by": list(fault.caught_by),
        "also_known_as": list(fault.also_known_as),
        "profiles": {name: fit for name, fit in fits.items() if fit != "never"},
    }


def _one(fault: Fault) -> str:
    lines = [f"{fault.name}: {fault.about}"]
    for profile in _profiles(fault).values():
        for variant in profile.texts:
            declared = profile.program(variant)
            program, fit = fault.program(declared), fault.fit(profile.name, variant)
            if fit == "never" or program is None:
                continue
            label = profile.name if len(profile.texts) == 1 else f"{profile.name}, {variant}"
            lines.append(f"{label}{' (where all axes are equal)' if fit == 'square' else ''}")
            pairs = zip(program.equations, declared.equations, strict=True)
            lines += [f"    {new.text}" for new, old in pairs if new.expression != old.expression]
    demanded = ", ".join(fault.caught_by)
    if demanded:
        lines.append(f"caught by {demanded} in {fault.dtype}")
    elif all(fault.fit(name) == "never" for name in known_profiles() if cases(name)):
        lines.append("not demonstrated: no profile that it applies to has cases yet")
    if fault.also_known_as:
        lines.append(f"seen in {', '.join(fault.also_known_as)}")
    return "\n".join(lines)
