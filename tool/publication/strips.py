"""Errors over their bounds, family by family, on a logarithmic scale.

A strip shows one tick for each row: the largest ratio that it has in any case and quantity of a
family. Beyond the line at 1 an error is larger than rounding explains, and the scale is denser: a
wrong float64 is some 10¹⁴ bounds off. At its end stands what has no ratio, NaN above all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from qkvac.cells import Result
from qkvac.publication.runs import Row
from qkvac.subjects.selection import known_case
from qkvac.targets.declaration import DTYPES

LEAST, MOST = -3, 16
"""Powers of ten at the ends of the scale; what lies beyond stands at the end."""
STEP: Final = 4
"""Powers of ten from label to label beyond the bound."""
WIDTH: Final = 214
MARGIN: Final = 5
BOUND, END = 105, 165
"""Where the bound stands, and the largest ratio; what has none stands at the right margin."""


@dataclass(frozen=True)
class Strip:
    """The rows of a family in a dtype."""

    within: str
    """Ticks of ratios up to 1, as the path of an SVG."""
    beyond: str
    without: str
    """The mark of rows with cells that have no ratio."""
    largest: float | None
    who: str
    quantity: str
    uncertain: int
    """Cells that fail before there is a ratio: not finite, or of another shape."""


@dataclass(frozen=True)
class Family:
    """A family of cases, with a strip for each dtype."""

    name: str
    why: str
    strips: tuple[Strip | None, ...]


@dataclass(frozen=True)
class Chart:
    """A profile: families down, dtypes across."""

    profile: str
    dtypes: tuple[str, ...]
    families: tuple[Family, ...]

    @property
    def strips(self) -> tuple[Strip, ...]:
        """All that there are."""
        return tuple(s for family in self.families for s in family.strips if s is not None)

    @property
    def largest(self) -> float | None:
        """The largest ratio of all; None where there is none."""
        return max((s.largest for s in self.strips if s.largest is not None), default=None)

    @property
    def uncertain(self) -> int:
        """Cells that fail before there is a ratio."""
        return sum(strip.uncertain for strip in self.strips)


def place(ratio: float) -> int:
    """Where a ratio stands on the scale, in pixels."""
    power = LEAST if ratio <= 0 else math.log10(ratio) if math.isfinite(ratio) else MOST
    power = min(max(power, LEAST), MOST)
    if power <= 0:
        return round(BOUND + power / -LEAST * (BOUND - MARGIN))
    return round(BOUND + power / MOST * (END - BOUND))


def ticks() -> tuple[tuple[int, str], ...]:
    """Positions and labels of the powers of ten, and of what has no ratio."""
    powers = (*range(LEAST, 1), *range(STEP, MOST + 1, STEP))
    labels = dict.fromkeys(range(STEP, MOST, STEP), "")
    numbers = ((place(10.0**p), labels.get(p, f"{10.0**p:g}".replace("+", ""))) for p in powers)
    return (*numbers, (WIDTH - MARGIN, "none"))


def charts(rows: Sequence[Row], profiles: Sequence[str]) -> tuple[Chart, ...]:
    """A chart for every profile in which something was judged by a bound."""
    found = []
    for profile in profiles:
        groups = dict[str, dict[str, dict[Row, list[Result]]]]()
        for row in rows:
            for result in row.by_profile.get(profile, ()):
                if result.ratio is not None:
                    family, _ = family_of(result.cell.case)
                    by_row = groups.setdefault(family, {}).setdefault(result.cell.dtype, {})
                    by_row.setdefault(row, []).append(result)
        if groups:
            dtypes = tuple(d for d in DTYPES if any(d in by_dtype for by_dtype in groups.values()))
            found.append(Chart(profile, dtypes, _families(groups, dtypes)))
    return tuple(found)


def _families(
    groups: Mapping[str, Mapping[str, Mapping[Row, list[Result]]]], dtypes: Sequence[str]
) -> tuple[Family, ...]:
    found = []
    for name, by_dtype in groups.items():
        first = next(iter(next(iter(by_dtype.values())).values()))[0]
        strips = tuple(_strip(by_dtype[dtype]) if dtype in by_dtype else None for dtype in dtypes)
        found.append(Family(name, family_of(first.cell.case)[1], strips))
    return tuple(found)


def _strip(by_row: Mapping[Row, Sequence[Result]]) -> Strip:
    worst = list[tuple[float, Row, Result]]()
    uncertain = 0
    for row, results in by_row.items():
        told = [r for r in results if r.compared and not math.isnan(r.ratio or 0.0)]
        uncertain += len(results) - len(told)
        if told:
            most = max(told, key=lambda result: result.ratio or 0.0)
            worst.append((most.ratio or 0.0, row, most))
    x = WIDTH - MARGIN
    without = f"M{x - 3} 9a3 3 0 1 0 6 0a3 3 0 1 0-6 0" if uncertain else ""
    if not worst:
        return Strip("", "", without, None, "", "", uncertain)
    within = sorted({place(ratio) for ratio, _, _ in worst if ratio <= 1})
    beyond = sorted({place(ratio) for ratio, _, _ in worst if ratio > 1})
    ratio, row, result = max(worst, key=lambda item: item[0])
    return Strip(
        "".join(f"M{x} 5v8" for x in within),
        # A cross, so that the shape says it as well as the colour.
        "".join(f"M{x - 3} 5l6 8m0-8l-6 8" for x in beyond),
        without,
        ratio,
        f"{row.label} {row.run.label}" if len({r.run for _, r, _ in worst}) > 1 else row.label,
        result.cell.quantity,
        uncertain,
    )


@cache
def family_of(case: str) -> tuple[str, str]:
    """The family of a case and why the case is there; of one that is unknown, by its id."""
    known = known_case(case)
    if known is None:
        return case.partition("/")[2].partition("/")[0], ""
    return known.family, known.why
