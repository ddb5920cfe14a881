"""What two environments have in common: what moved, and whether bits may be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qkvac import jsons
from qkvac.cells import Subject
from qkvac.publication.archive import Environment
from qkvac.texts import line as line_of

HARDWARE: Final = ("platform", "cpu", "cpu_features", "threads", "settings")
"""What frameworks choose their code by: with other code come other roundings."""
FEATURES: Final = "processor features"
"""Too many to be told one by one."""
NAMES: Final[Mapping[str, str]] = {
    "cpu": "processor",
    "cpu_features": FEATURES,
    "accelerators": "accelerator",
}

DIGITS: Final = 12
"""Hexadecimal digits of a digest that are told."""


@dataclass(frozen=True)
class Move:
    """Something that is not what it was; "" for what is absent."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name} {self.old or 'absent'} → {self.new or 'absent'}"


def facts(environment: Environment) -> dict[str, str]:
    """Everything that two environments may differ in, by name; the rosters aside."""
    known, header, run = environment.surroundings, environment.header, environment.run
    found = {
        "qkvac": header["qkvac_version"],
        "spec": header["spec_version"],
        "Python": known["python"],
        **known["versions"],
        "platform": known["platform"],
        "system": known["system"],
        "processor": known["cpu"],
        FEATURES: " ".join(known["cpu_features"]),
        "threads": known["threads"],
        "devices": ", ".join(known["devices"]),
        "accelerators": ", ".join(known["accelerators"]),
        **known["settings"],
        "tier": run["tier"],
        "seeds": run["seeds"],
        "entropy": run.get("entropy", ""),
        "strict": "yes" if run["strict"] else "",
    }
    for name in ("backends", "profiles", "dtypes", "cases"):
        found[f"selected {name}"] = ", ".join(run.get(name, ()))
    return {name: str(value) for name, value in found.items() if value not in ("", None)}


def moves(old: Environment, new: Environment) -> tuple[Move, ...]:
    """What moved from one environment to the other."""
    before, after = facts(old), facts(new)
    found = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name, ""), after.get(name, "")
        if name == FEATURES:
            # Of forty of them, those that came and went.
            one, other = _only(one, other), _only(other, one)
        if one != other:
            found.append(Move(name, one, other))
    return tuple(found)


def edits(subject: str, old: Environment, new: Environment) -> tuple[Move, ...]:
    """What moved in a subject itself: the file that a port is, and what it declares."""
    before, after = (
        next(line for line in environment.run["subjects"] if line["id"] == subject)
        for environment in (old, new)
    )
    found = []
    one, other = (line.get("source", "")[:DIGITS] for line in (before, after))
    # A record that was made before sources were kept says nothing.
    if one and other and one != other:
        found.append(Move(f"source of {subject}", one, other))
    one, other = (jsons.dumps(line["declaration"], sort_keys=True) for line in (before, after))
    if one != other:
        found.append(Move(f"declaration of {subject}", line_of(one), line_of(other)))
    return tuple(found)


def incomparable(subject: Subject, old: Environment, new: Environment) -> str:
    """Why other bits would be no news; "" where they are.

    Processor, threads and settings have to be the same, and off the CPU the accelerators.
    """
    names = HARDWARE if subject.device == "cpu" else (*HARDWARE, "accelerators")
    before, after = old.surroundings, new.surroundings
    other = [NAMES.get(name, name) for name in names if before[name] != after[name]]
    return f"other {' and '.join(other)}" if other else ""


def _only(these: str, those: str) -> str:
    return " ".join(word for word in these.split() if word not in those.split())
