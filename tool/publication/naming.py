"""What environments are called: by what was tested in them, and by what else tells them apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from qkvac.publication.archive import Environment
from qkvac.publication.surroundings import FEATURES, facts
from qkvac.texts import short

NAMED: Final = 3
"""Versions that a name tells."""

Facts = Mapping[str, str]


def names(environments: Sequence[Environment]) -> Mapping[str, str]:
    """A name of its own for every environment, by id: `torch 2.4.1`, `torch 2.4.1, threads 2`."""
    known = {e.id: {**facts(e), **_tested(e)} for e in environments}
    other = differing(known.values())
    found = dict[str, str]()
    for environment in environments:
        told = [name for name in _tested(environment) if name in other]
        found[environment.id] = _told(known[environment.id], told[:NAMED])
    alike = defaultdict[str, list[str]](list)
    for id, name in found.items():
        alike[name].append(id)
    for ids in alike.values():
        if len(ids) > 1:
            found |= _apart({id: found[id] for id in ids}, known)
    return {id: name or "environment" for id, name in found.items()}


def differing(known: Iterable[Facts]) -> tuple[str, ...]:
    """Names of the facts that are not the same everywhere."""
    every = list(known)
    found = dict.fromkeys(name for own in every for name in own)
    return tuple(name for name in found if len({own.get(name) for own in every}) > 1)


def place(environment: Environment) -> tuple[Any, ...]:
    """Where an environment stands among others: by what was tested, and its version."""
    return tuple((name, version_place(v)) for name, v in sorted(_tested(environment).items()))


def version_place(version: str) -> tuple[bool, Version, str]:
    """Where a version stands among others; what is no version comes first."""
    try:
        return True, Version(version), version
    except InvalidVersion:
        return False, Version("0"), version


def _tested(environment: Environment) -> dict[str, str]:
    """Versions of what was tested."""
    return {name: v for entry in environment.entries for name, v in entry.versions.items()}


def _apart(found: Mapping[str, str], known: Mapping[str, Facts]) -> dict[str, str]:
    """Equal names with facts that tell them apart, as few as do; else with a number."""
    texts = dict(found)
    for name in differing(known[id] for id in found):
        if len(set(texts.values())) == len(texts):
            break
        if name != FEATURES:
            own = {id: _told(known[id], [name] if name in known[id] else []) for id in found}
            texts = {id: ", ".join(filter(None, (text, own[id]))) for id, text in texts.items()}
    same = defaultdict[str, list[str]](list)
    for id, text in texts.items():
        same[text].append(id)
    for text, ids in same.items():
        if len(ids) > 1:
            texts |= {id: f"{text or 'environment'} {n}" for n, id in enumerate(ids, 1)}
    return texts


def _told(own: Facts, which: Iterable[str]) -> str:
    return ", ".join(f"{name} {short(own[name])}" for name in which)
