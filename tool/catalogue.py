"""The command that lists the fault catalogue."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from qkvac.spec.attention import PROFILES
from qkvac.spec.cases import cases
from qkvac.spec.faults import FAULTS, Fault
from qkvac.usage import UsageError

TITLES = {
    "formula": "Wrong formulas",
    "arithmetic": "The right formulas in poor arithmetic",
    "behaviour": "Functions that misbehave",
}


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
        for kind, title in TITLES.items():
            click.echo(f"{title}\n")
            for fault in chosen:
                if fault.kind == kind:
                    click.echo(f"  {fault.name:<31} {fault.what}")
            click.echo()
        counts = Counter[str](fault.kind for fault in chosen)
        parts = ", ".join(f"{counts[kind]} {title.lower()}" for kind, title in TITLES.items())
        click.echo(f"{len(chosen)} faults: {parts}. `qkvac faults NAME` says more.")


def entry(fault: Fault) -> dict[str, Any]:
    """A fault as plain values."""
    fits = {name: fault.fit(name) for name in PROFILES}
    return {
        "name": fault.name,
        "kind": fault.kind,
        "about": fault.about,
        "dtype": fault.dtype,
        "caught_by": list(fault.caught_by),
        "also_known_as": list(fault.also_known_as),
        "profiles": {name: fit for name, fit in fits.items() if fit != "never"},
    }


def _one(fault: Fault) -> str:
    lines = [f"{fault.name}: {fault.about}"]
    for profile in PROFILES.values():
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
    elif all(fault.fit(name) == "never" for name in PROFILES if cases(name)):
        lines.append("not demonstrated: no profile that it applies to has cases yet")
    if fault.also_known_as:
        lines.append(f"seen in {', '.join(fault.also_known_as)}")
    return "\n".join(lines)
