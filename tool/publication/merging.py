"""Records of many machines and environments as one record.

Every environment keeps its header. Records of one environment, as the shards of a run are, become
what one run would have written. Records that contradict each other are refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkvac.publication import naming
from qkvac.publication.archive import LARGEST, Archive, Environment, Line, read, report
from qkvac.publication.order import cell_place
from qkvac.records.record import text, to_json
from qkvac.usage import UsageError


def read_all(
    paths: tuple[Path, ...], *, allow_truncated: bool = False, largest: int = LARGEST
) -> Archive:
    """Several records as one, as they would be merged."""
    found = [read(path, allow_truncated=allow_truncated, largest=largest) for path in paths]
    return merged(found, allow_truncated=allow_truncated)


@dataclass(frozen=True)
class _Part:
    """What one record says of one environment."""

    source: str
    environment: Environment
    lines: tuple[Line, ...]
    footer: Mapping[str, Any] | None

    @property
    def shard(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.environment.run.get("shard")
        return found


def merged(archives: Sequence[Archive], *, allow_truncated: bool = False) -> Archive:
    """Several archives as one, the same whatever order they are given in.

    Raises UsageError for different versions of the spec, for a cell that is there twice in one
    environment, for records of one environment that contradict each other, and for shards of a
    run of which some are missing, unless that is allowed; such a run then has no footer.
    """
    parts = sorted(
        (part for archive in archives for part in _parts(archive)),
        key=lambda part: (
            naming.place(part.environment),
            part.environment.id,
            text(part.environment.header),
        ),
    )
    _check_spec(parts)
    torn = _torn(parts)
    if torn and not allow_truncated:
        raise UsageError(f"{min(torn.values())}; give the records of all shards of the run")
    together = defaultdict[str, list[_Part]](list)
    for part in parts:
        together[part.environment.id].append(part)
    environments, lines = list[Environment](), list[Line]()
    footers = dict[str, Mapping[str, Any]]()
    for id, same in together.items():
        _check_cells(same)
        environment = _environment(same)
        place = {subject: index for index, subject in enumerate(environment.subjects)}
        own = [line for part in same for line in part.lines]
        own.sort(key=lambda line: (place[line.result.cell.subject.id], *_place(line)))
        environments.append(environment)
        lines += own
        if all(part.footer is not None and _plan(part) not in torn for part in same):
            footers[id] = _footer(environment, own, [part.footer or {} for part in same])
    return Archive(
        tuple(environments),
        tuple(lines),
        footers,
        len(footers) < len(environments),
        tuple(source for archive in archives for source in archive.sources),
    )


def written(archive: Archive) -> Iterator[str]:
    """The lines of the record that holds an archive."""
    for environment in archive.environments:
        yield text(environment.header)
        for result in archive.by_environment[environment.id]:
            line = to_json(result)
            yield text({**line, "detail": result.detail} if result.detail else line)
        if environment.id in archive.footers:
            yield text(archive.footers[environment.id])


def _place(line: Line) -> tuple[Any, ...]:
    return cell_place(line.result.cell)


def _parts(archive: Archive) -> Iterator[_Part]:
    source = ", ".join(archive.sources)
    lines = defaultdict[str, list[Line]](list)
    for line in archive.lines:
        lines[line.environment].append(line)
    for environment in archive.environments:
        footer = archive.footers.get(environment.id)
        yield _Part(source, environment, tuple(lines[environment.id]), footer)


def _check_spec(parts: Iterable[_Part]) -> None:
    sources = dict[str, str]()
    for part in parts:
        sources.setdefault(part.environment.header["spec_version"], part.source)
    if len(sources) > 1:
        (one, first), (other, second) = list(sources.items())[:2]
        raise UsageError(
            f"{first} was judged by version {one} of the spec and {second} by version {other}, "
            "whose verdicts mean other things; merge records of one version, or compare two with "
            "`qkvac report diff`"
        )


def _plan(part: _Part) -> tuple[str, int] | None:
    return (part.shard["plan"], part.shard["of"]) if part.shard is not None else None


def _torn(parts: Iterable[_Part]) -> dict[tuple[str, int] | None, str]:
    """Split runs of which shards are missing, by plan, and which these are.

    The shards of a run may come from different machines, and several runs may be split alike:
    then each shard is there equally often.
    """
    found = defaultdict[tuple[str, int] | None, Counter[int]](Counter)
    sources = dict[tuple[str, int] | None, str]()
    for part in parts:
        if part.shard is not None:
            found[_plan(part)][part.shard["number"]] += 1
            sources.setdefault(_plan(part), part.source)
    torn = dict[tuple[str, int] | None, str]()
    for plan, numbers in found.items():
        count = plan[1] if plan else 0
        most = max(numbers.values())
        if len(numbers) < count or min(numbers.values()) < most:
            absent = [str(n) for n in range(1, count + 1) if numbers[n] < most]
            listed = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
            torn[plan] = f"{sources[plan]} is a shard, and of {count} there is no shard {listed}"
    return torn


def _check_cells(parts: Sequence[_Part]) -> None:
    owners = dict[str, _Part]()
    for part in parts:
        for line in part.lines:
            owner = owners.setdefault(line.result.cell.id, part)
            if owner is not part:
                raise UsageError(
                    f"{owner.source} and {part.source} both hold {line.result.cell.id} of the "
                    "same environment; leave one of the records out"
                )


def _environment(parts: Sequence[_Part]) -> Environment:
    """One header for the records of one environment; raises UsageError where they differ."""
    first, headers = parts[0], [part.environment.header for part in parts]
    for part in parts[1:]:
        here, there = first.environment, part.environment
        for name, one, other in (
            ("qkvac", here.header["qkvac_version"], there.header["qkvac_version"]),
            ("--strict", here.run["strict"], there.run["strict"]),
        ):
            if one != other:
                raise UsageError(
                    f"{first.source} and {part.source} are of one environment and differ in "
                    f"{name}: {one} and {other}; merge records that were made alike"
                )
    runs = [header["run"] for header in headers]
    run: dict[str, Any] = {name: value for name, value in runs[0].items() if name != "shard"}
    for name in ("backends", "profiles", "dtypes", "devices", "cases"):
        lists = [other.get(name, []) for other in runs]
        # An empty list selects everything.
        run[name] = _union(lists) if all(lists) else []
    run["notes"] = _union(other.get("notes", []) for other in runs)
    run["tier"] = max((other["tier"] for other in runs), key=["quick", "default", "full"].index)
    run["seeds"] = max(other["seeds"] for other in runs)
    drawn_from = _union([other["entropy"]] for other in runs if "entropy" in other)
    if drawn_from:
        run["entropy"] = ", ".join(drawn_from)
    run["timeout"] = max(other["timeout"] for other in runs)
    run["cells"] = sum(other["cells"] for other in runs)
    run["left_out"] = _left_out(parts)
    run["subjects"] = _subjects(parts)
    started = min(header["started"] for header in headers)
    return Environment(
        first.environment.id, {**first.environment.header, "started": started, "run": run}
    )


def _union(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(word for words in lists for word in words))


def _left_out(parts: Sequence[_Part]) -> dict[str, int]:
    """What tiers left out; every shard of a run says it of the whole run."""
    total = Counter[str]()
    plans = set[tuple[str, int]]()
    for part in parts:
        plan = _plan(part)
        if plan is not None:
            if plan in plans:
                continue
            plans.add(plan)
        total.update(part.environment.run.get("left_out", {}))
    return dict(total)


def _subjects(parts: Sequence[_Part]) -> list[Mapping[str, Any]]:
    found = dict[str, tuple[Mapping[str, Any], _Part]]()
    for part in parts:
        for subject in part.environment.run["subjects"]:
            known, owner = found.setdefault(subject["id"], (subject, part))
            if known != subject:
                raise UsageError(
                    f"{owner.source} and {part.source} are of one environment and say different "
                    f"things of {subject['id']}; merge records that were made alike"
                )
    return [subject for subject, _ in found.values()]


def _footer(
    environment: Environment, lines: Sequence[Line], footers: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    found = report(environment, tuple(line.result for line in lines))
    return {
        "kind": "footer",
        "counts": dict(found.counts),
        "exit_status": found.exit_status,
        "cells": len(lines),
        "seconds": round(sum(float(footer["seconds"]) for footer in footers), 3),
        "warnings": _union(footer.get("warnings", []) for footer in footers),
        "settings": dict(pair for footer in footers for pair in _settings(footer)),
    }


def _settings(footer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(footer.get("settings", {}).items())
