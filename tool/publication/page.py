"""A page: everything that the template shows, computed from an archive. Nothing here is markup."""

from __future__ import annotations

from dataclasses import dataclass

from qkvac.publication.agreement import Agreement, agreements
from qkvac.publication.archive import Archive
from qkvac.publication.declarations import Declaration, declarations
from qkvac.publication.drift import Drift, drift
from qkvac.publication.grids import Grid, GridRow, grids, overview, profiles
from qkvac.publication.overview import Background, Place, Verdict, backgrounds, places, verdict
from qkvac.publication.runs import Row, Run, rows, runs
from qkvac.publication.strips import Chart, charts
from qkvac.publication.surroundings import FEATURES, Move
from qkvac.publication.troubles import Absence, Known, Trouble, absences, known, troubles
from qkvac.spec.attention import SPEC_VERSION
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic import mathml


@dataclass(frozen=True)
class Text:
    """The equations of a variant of a profile."""

    variant: str
    rows: tuple[mathml.Row, ...]


@dataclass(frozen=True)
class Page:
    """What the template is filled with."""

    runs: tuple[Run, ...]
    truncated: bool
    versions: tuple[str, ...]
    """Versions of the spec that the records were judged by."""
    verdict: Verdict
    places: tuple[Place, ...]
    environments: tuple[Background, ...]
    rows: tuple[Row, ...]
    profiles: tuple[str, ...]
    overview: tuple[GridRow, ...]
    grids: tuple[Grid, ...]
    charts: tuple[Chart, ...]
    agreements: tuple[Agreement, ...]
    declarations: tuple[Declaration, ...]
    troubles: tuple[Trouble, ...]
    known: tuple[Known, ...]
    drifts: tuple[Drift, ...]
    """What changed from one version of a framework to the next."""
    absences: tuple[Absence, ...]
    notes: tuple[str, ...]
    equations: tuple[tuple[str, str, tuple[Text, ...]], ...]
    """Name, about, and texts of every profile that was run."""
    cells: int
    spec: str = SPEC_VERSION
    """The version of the equations that the page shows."""

    @property
    def labels(self) -> dict[str, str]:
        """Names of the environments by id."""
        return {run.id: run.label for run in self.runs}

    @property
    def merged(self) -> bool:
        """Whether it speaks of several environments."""
        return len(self.runs) > 1


def page(archive: Archive) -> Page:
    """The page of an archive."""
    found = runs(archive)
    lines = rows(found)
    offered = profiles(lines)
    return Page(
        runs=found,
        truncated=archive.truncated,
        versions=tuple(dict.fromkeys(str(r.environment.header["spec_version"]) for r in found)),
        verdict=verdict(found),
        places=places(found),
        environments=backgrounds(found),
        rows=lines,
        profiles=offered,
        overview=overview(lines, offered),
        grids=grids(lines, offered),
        charts=charts(lines, offered),
        agreements=agreements(lines, offered),
        declarations=declarations(lines),
        troubles=troubles(found),
        known=known(found),
        drifts=drift(archive),
        absences=absences(found),
        notes=notes(found),
        equations=tuple((name, known_profiles()[name].about, texts(name)) for name in offered),
        cells=len(archive.lines),
    )


def texts(profile: str) -> tuple[Text, ...]:
    """The typeset variants of a profile."""
    declared = known_profiles()[profile]
    return tuple(Text(name, mathml.rows(declared.program(name))) for name in declared.texts)


def moved(drift: Drift) -> tuple[str, ...]:
    """What moved between two versions; of a processor's many features how many."""
    return tuple(map(_moved, drift.moves))


def _moved(move: Move) -> str:
    if move.name != FEATURES:
        return str(move)
    counts = ((len(move.old.split()), "fewer"), (len(move.new.split()), "more"))
    return f"{FEATURES}: {', '.join(f'{count} {word}' for count, word in counts if count)}"


def notes(runs: tuple[Run, ...]) -> tuple[str, ...]:
    """What runs say besides: subjects that could not run, what a tier left out, warnings."""
    found = list[str]()
    for run in runs:
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        found += [prefix + note for note in run.report.roster.notes]
        found += [
            f"{prefix}{entry.subject.id} could not run: {entry.skipped}"
            for entry in run.environment.entries
            if entry.skipped
        ]
        left_out = sum(run.report.left_out.values())
        if left_out:
            found.append(
                f"{prefix}left out in this tier: {left_out} cases of modes that prepare for every "
                "shape; --tier full runs them"
            )
    return tuple(dict.fromkeys(found))
