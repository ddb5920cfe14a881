"""The command that lists the fault catalogue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, Final

import click

from qkvac.spec.cases.catalogue import cases
from qkvac.spec.faults.catalogue import FAULTS, Fault, Kind
from qkvac.spec.faults.mutants import Mutant, mutants_of
from qkvac.spec.profile import Profile
from qkvac.spec.registry import forward_profiles, gradient_profiles, known_profiles
from qkvac.usage import UsageError, unknown

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


def show_faults(name: str | None, form: str, profile: str | None = None) -> None:
    """Lists the catalogue, or shows one fault; raises UsageError for an unknown one.

    Of a profile it lists the faults that have a place there, and its mutants.
    """
    if name is not None and profile is not None:
        raise UsageError("a NAME or --profile: one fault, or those of a profile")
    if name is not None and name not in FAULTS:
        raise UsageError(f"there is no fault {name!r}; `qkvac faults` lists them")
    if profile is not None:
        _show_profile(profile, form)
        return
    chosen = list(FAULTS.values()) if name is None else [FAULTS[name]]
    if form == "json":
        click.echo(json.dumps([entry(fault) for fault in chosen], ensure_ascii=False, indent=1))
    elif name is not None:
        click.echo(_one(chosen[0]))
    else:
        _list(chosen)
        click.echo(fill(f"{_counted(chosen)}. `qkvac faults NAME` says more.", 80))


def _show_profile(profile: str, form: str) -> None:
    """The faults that have a place in a profile's equations, and its mutants."""
    known = known_profiles()
    if profile not in known:
        raise unknown("profile", profile, known)
    declared = known[profile]
    chosen = [fault for fault in FAULTS.values() if _concerns(fault, declared)]
    changed = mutants_of(declared)
    if form == "json":
        entries = [entry(fault) for fault in chosen]
        entries += [_changed(mutant, declared, variant) for mutant, variant in changed.items()]
        click.echo(json.dumps(entries, ensure_ascii=False, indent=1))
        return
    _list(chosen)
    for of_gradients, title in CHANGED.items():
        lines = [mutant.what for mutant in changed if mutant.of_gradients == of_gradients]
        if lines:
            click.echo(f"{title}\n")
            click.echo("\n".join(f"  {line}" for line in lines) + "\n")
    words = f"{_counted(chosen)}; and {len(changed)} first-order changes of its equations."
    click.echo(fill(words, 80))


CHANGED: Final[Mapping[bool, str]] = {
    False: "First-order changes of its equations",
    True: "First-order changes of what computes its gradients",
}


def _concerns(fault: Fault, profile: Profile) -> bool:
    """Whether a fault has a place in some text of a profile."""
    if fault.of_gradients and not profile.base:
        return False
    if fault.kind == "behaviour":
        return bool(profile.base) == fault.of_gradients and set(fault.inputs) <= set(profile.inputs)
    return any(fault.fit(profile.name, variant) != "never" for variant in profile.texts)


def _changed(mutant: Mutant, profile: Profile, variant: str) -> dict[str, Any]:
    """A mutant as plain values; `variant` is the first text that it has a place in."""
    return {
        "name": mutant.name,
        "kind": "change",
        "of_gradients": mutant.of_gradients,
        "about": mutant.about,
        "equation": mutant.what,
        "profiles": {profile.name: mutant.fit(profile.name, variant)},
    }


def _list(chosen: Sequence[Fault]) -> None:
    for key, title in TITLES.items():
        lines = [f"  {f.name:<31} {f.what}" for f in chosen if _key(f) == key]
        if lines:
            click.echo("\n".join((f"{title}\n", *lines)) + "\n")


def _counted(chosen: Sequence[Fault]) -> str:
    counts = Counter(map(_key, chosen))
    parts = (f"{counts[key]} {title.lower()}" for key, title in TITLES.items() if counts[key])
    return f"{len(chosen)} faults: {', '.join(parts)}"


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
