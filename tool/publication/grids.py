"""The matrix at a glance: subjects against profiles, and in a profile against quantities."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qkvac.cells import CHECKS, Result
from qkvac.publication.marks import Mark, mark
from qkvac.publication.runs import Row
from qkvac.records.tables import MISSION
from qkvac.spec.formats import FORMATS
from qkvac.spec.registry import known_profiles
from qkvac.targets.declaration import DTYPES

ALL_CHECKS: Final = "checks"
"""The column of all that is asked besides quantities."""


@dataclass(frozen=True)
class Precision:
    """Effective precision of the quantity that has least of it, in its median case."""

    bits: float
    claimed: int
    quantity: str
    resembles: str = ""
    """A coarser format that errors of some case look like."""


@dataclass(frozen=True)
class GridRow:
    """A row with a mark for each column."""

    row: Row
    marks: tuple[Mark, ...]
    total: Mark
    precision: Precision | None = None


@dataclass(frozen=True)
class Block:
    """The rows of a profile in one dtype."""

    dtype: str
    rows: tuple[GridRow, ...]


@dataclass(frozen=True)
class Grid:
    """A profile: quantities across, rows of each dtype down."""

    profile: str
    about: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    total: Mark


def profiles(rows: Sequence[Row]) -> tuple[str, ...]:
    """Profiles that some subject offers, in the spec's order."""
    offered = {r.cell.profile for row in rows for r in row.results if r.offered}
    return tuple(name for name in known_profiles() if name in offered)


def overview(rows: Sequence[Row], profiles: Sequence[str]) -> tuple[GridRow, ...]:
    """Every row with a mark for each profile."""
    found = []
    for row in rows:
        offered = ([r for r in row.by_profile.get(name, ()) if r.offered] for name in profiles)
        marks = tuple(mark(results, row.run.report.strict) for results in offered)
        found.append(GridRow(row, marks, row.mark))
    return tuple(found)


def grids(rows: Sequence[Row], profiles: Sequence[str]) -> tuple[Grid, ...]:
    """The matrix of every profile, the mission's own first."""
    order = sorted(profiles, key=lambda profile: profile != MISSION)
    return tuple(grid for profile in order for grid in [_grid(rows, profile)] if grid.blocks)


def _grid(rows: Sequence[Row], profile: str) -> Grid:
    own = {row: row.by_profile.get(profile, ()) for row in rows}
    own = {row: found for row, found in own.items() if any(r.offered for r in found)}
    every = [result for found in own.values() for result in found]
    present = {result.cell.quantity for result in every}
    quantities = [name for name in known_profiles()[profile].quantities if name in present]
    checked = any(result.cell.is_check for result in every)
    columns = (*quantities, *([ALL_CHECKS] if checked else []))
    blocks = []
    for dtype in DTYPES:
        found = []
        for row, results in own.items():
            those = [result for result in results if result.cell.dtype == dtype]
            if any(result.offered for result in those):
                found.append(_row(row, those, columns, dtype))
        if found:
            blocks.append(Block(dtype, tuple(found)))
    strict = any(row.run.report.strict for row in own)
    return Grid(
        profile, known_profiles()[profile].about, columns, tuple(blocks), mark(every, strict)
    )


def _row(row: Row, results: Sequence[Result], columns: Sequence[str], dtype: str) -> GridRow:
    groups = dict[str, list[Result]]()
    for result in results:
        name = ALL_CHECKS if result.cell.quantity in CHECKS else result.cell.quantity
        groups.setdefault(name, []).append(result)
    strict = row.run.report.strict
    marks = tuple(mark(groups.get(name, []), strict) for name in columns)
    return GridRow(row, marks, mark(results, strict), precision(row, results, dtype))


def precision(row: Row, results: Sequence[Result], dtype: str) -> Precision | None:
    """What a row's results in a dtype are precise to; None where no case can tell."""
    bits = dict[str, list[float]]()
    for result in results:
        if result.bits is not None:
            bits.setdefault(result.cell.quantity, []).append(result.bits)
    if not bits:
        return None
    medians = {name: statistics.median(found) for name, found in bits.items()}
    least = min(medians, key=medians.__getitem__)
    claimed = FORMATS[row.entry.arithmetic(dtype).storage].precision
    like = next((r.resembles for r in results if r.resembles), "")
    return Precision(medians[least], claimed, least, like)
