"""Which environment of one archive is which of another, for every subject.

Where both archives hold a subject once, that is the pair. Of several, those are paired that are
the same environment, then those that are the only ones on both sides to have the same version on
the same hardware, the same version, or the same hardware; then what is left over, if that is one
on each side. Whatever could be two things is not paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from qkvac.cells import Result, Subject
from qkvac.publication.archive import Archive, Environment, Line
from qkvac.publication.surroundings import HARDWARE
from qkvac.texts import short
from qkvac.usage import UsageError

Key: TypeAlias = Callable[[Environment], Hashable]


@dataclass(frozen=True)
class Pair:
    """A subject in an old and a new environment; one of these may be lacking."""

    subject: str
    old: Environment | None
    new: Environment | None


def pairs(old: Archive, new: Archive) -> tuple[Pair, ...]:
    """All subjects of two archives, each with its environments."""
    before, after = _subjects(old), _subjects(new)
    return tuple(
        pair
        for subject in dict.fromkeys((*before, *after))
        for pair in _paired(subject, before.get(subject, []), after.get(subject, []))
    )


def renamed(old: Archive, new: Archive, called: Mapping[str, str]) -> Archive:
    """The old archive, its subjects called as those of the new one that they are compared with.

    Names are of backends or ports, or ids of subjects: `mine`, `mine@cpu`. Raises UsageError for
    one that is not there, and where a name would be of two subjects.
    """
    ids = dict[str, Subject]()
    for name, other in called.items():
        before, after = _named(old, name), _named(new, other)
        if not before or not after:
            side, which = ("old", name) if not before else ("new", other)
            known = sorted(
                {
                    s.backend
                    for e in (new if before else old).environments
                    for s in e.subjects.values()
                }
            )
            raise UsageError(
                f"--as {short(name)}={short(other)}: the {side} record has no {short(which)}; it "
                f"holds {', '.join(map(short, known))}"
            )
        for subject in before:
            match = [s for s in after if (s.mode, s.device) == (subject.mode, subject.device)]
            if match or len(before) == len(after) == 1:
                ids[subject.id] = (match or after)[0]
    environments = tuple(_called(environment, ids) for environment in old.environments)
    for environment in environments:
        if len(environment.subjects) < len(environment.run["subjects"]):
            raise UsageError("--as gives two subjects of the old record one name")
    lines = tuple(_renamed(line, ids) for line in old.lines)
    return replace(old, environments=environments, lines=lines)


def _renamed(line: Line, ids: Mapping[str, Subject]) -> Line:
    cell = line.result.cell
    subject = ids.get(cell.subject.id, cell.subject)
    return replace(line, result=replace(line.result, cell=replace(cell, subject=subject)))


def _named(archive: Archive, name: str) -> list[Subject]:
    """Subjects of an archive that a name is of; all for ""."""
    subjects = dict.fromkeys(s for e in archive.environments for s in e.subjects.values())
    return [s for s in subjects if name in ("", s.backend, s.name, s.id)]


def _called(environment: Environment, ids: Mapping[str, Subject]) -> Environment:
    """An environment whose roster calls subjects by other names."""
    subjects = [
        {**line, "id": ids[line["id"]].id, **_words(ids[line["id"]])} if line["id"] in ids else line
        for line in environment.run["subjects"]
    ]
    return replace(
        environment, header={**environment.header, "run": {**environment.run, "subjects": subjects}}
    )


def _words(subject: Subject) -> dict[str, str]:
    return {"backend": subject.backend, "mode": subject.mode, "device": subject.device}


def results_of(archive: Archive) -> Mapping[tuple[str, str], Sequence[Result]]:
    """The results of every environment and subject, by their ids."""
    found = defaultdict[tuple[str, str], list[Result]](list)
    for line in archive.lines:
        found[line.environment, line.result.cell.subject.id].append(line.result)
    return found


def _subjects(archive: Archive) -> dict[str, list[Environment]]:
    environments = {environment.id: environment for environment in archive.environments}
    found = dict[str, list[Environment]]()
    for id, subject in results_of(archive):
        found.setdefault(subject, []).append(environments[id])
    return found


def _paired(subject: str, old: list[Environment], new: list[Environment]) -> Iterable[Pair]:
    old, new = list(old), list(new)
    keys: tuple[Key, ...] = (
        lambda environment: environment.id,
        lambda environment: (_version(environment, subject), _hardware(environment)),
        lambda environment: _version(environment, subject),
        _hardware,
        lambda environment: None,
    )
    for key in keys:
        before, after = _by(key, old), _by(key, new)
        for value, ones in before.items():
            others = after.get(value, [])
            if len(ones) == len(others) == 1:
                old.remove(ones[0])
                new.remove(others[0])
                yield Pair(subject, ones[0], others[0])
    yield from (Pair(subject, environment, None) for environment in old)
    yield from (Pair(subject, None, environment) for environment in new)


def _by(key: Key, environments: Iterable[Environment]) -> dict[Hashable, list[Environment]]:
    found = dict[Hashable, list[Environment]]()
    for environment in environments:
        found.setdefault(key(environment), []).append(environment)
    return found


def _version(environment: Environment, subject: str) -> Hashable:
    entry = next(entry for entry in environment.entries if entry.subject.id == subject)
    return tuple(sorted(entry.versions.items()))


def _hardware(environment: Environment) -> Hashable:
    return repr([environment.surroundings[name] for name in HARDWARE])
