"""The tables of a summary: what a reader looks at first, in 80 columns.

One profile is shown quantity by quantity. Of several there is an overview, and the details of the
mission's own profile and of those in which something went wrong; `--profile` shows any other.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from qkvac.cells import CHECKS, Result, Status, Subject
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts import statuses
from qkvac.targets.declaration import DTYPES

if TYPE_CHECKING:
    from qkvac.records.report import Report

GRADES: Final = ("exact", "faithful", "conforming", "suspicious")
"""Grades of a pass, the best first."""

GRADE_STYLES: Final = {**dict.fromkeys(GRADES, "green"), GRADES[-1]: "yellow", "": "dim"}


def style(word: str) -> str:
    """How a grade or a status is shown; "" stands for nothing that was run."""
    return GRADE_STYLES[word] if word in GRADE_STYLES else statuses.named(word).style


MISSION: Final = "attention"
"""The profile whose quantities are shown whatever else was run."""
DETAILS: Final = 3
"""Tables of several subjects, besides those of the mission's profile."""
BESIDE: Final = 7
"""Profiles that have columns beside each other in 80 columns."""


def tables(report: Report) -> Iterator[Table | Text]:
    """The tables of a run, each with what it is about."""
    found = _by_profile(report)
    subjects = list(dict.fromkeys(r.cell.subject for rs in found.values() for r in rs))
    if len(subjects) > 1:
        yield from _of_many(report, found, subjects)
        return
    if len(found) > 1:
        yield _overview(found)
    for profile, results in found.items():
        if len(found) == 1 or profile == MISSION or any(map(report.is_failure, results)):
            yield _one(results, profile, profile if len(found) > 1 else "")
    if len(found) > 1:
        yield Text("--profile NAME shows the quantities and checks of any other.", style="dim")


def _of_many(
    report: Report, found: Mapping[str, Sequence[Result]], subjects: Sequence[Subject]
) -> Iterator[Table | Text]:
    budget = DETAILS
    if len(found) > 1:
        for gradients, head in ((False, "all dtypes"), (True, "gradients")):
            alike = {
                p: rs for p, rs in found.items() if bool(known_profiles()[p].base) == gradients
            }
            for part in _beside(alike):
                yield _matrix(report, head, part, subjects)
        legend = ", ".join(f"{_short(p)} {p}" for p in dict.fromkeys(map(_forward, found)))
        yield Text(f"{legend}; --profile NAME shows one by quantity and dtype.", style="dim")
    for profile, results in found.items():
        for dtype in DTYPES:
            those = [result for result in results if result.cell.dtype == dtype]
            wrong = any(map(report.is_failure, those))
            if not those or not (len(found) == 1 or profile == MISSION or (wrong and budget)):
                continue
            budget -= len(found) > 1 and profile != MISSION
            yield _many(report, those, profile, dtype, named=len(found) > 1)


def _by_profile(report: Report) -> dict[str, list[Result]]:
    """Results of the profiles that some subject offers, or all if there is none."""
    groups = dict[str, list[Result]]()
    for result in report.results:
        groups.setdefault(result.cell.profile, []).append(result)
    offered = {p: rs for p, rs in groups.items() if any(r.offered for r in rs)}
    return offered or groups


def table(*headers: str) -> Table:
    """An empty table in the style of all tables here."""
    rows = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for header in headers:
        rows.add_column(header, no_wrap=True)
    return rows


def _overview(found: Mapping[str, Sequence[Result]]) -> Table:
    """Profiles down, dtypes across: the worst grade, and the largest error over bound."""
    every = [result for results in found.values() for result in results]
    dtypes = [d for d in DTYPES if any(result.cell.dtype == d for result in every)]
    rows = table("", *dtypes, "passed")
    for profile, results in found.items():
        cells = [[r for r in results if r.cell.dtype == dtype] for dtype in dtypes]
        rows.add_row(profile, *(_word(cell, short=True) for cell in cells), _passed(results))
    return rows


def _one(results: Sequence[Result], profile: str, title: str) -> Table:
    """Quantities and checks down, dtypes across: grade and largest error over bound."""
    dtypes = [d for d in DTYPES if any(result.cell.dtype == d for result in results)]
    rows = table(title, *dtypes)
    groups = _grouped(results)
    for name in (*known_profiles()[profile].quantities, *CHECKS):
        cells = [groups.get((name, dtype), []) for dtype in dtypes]
        if any(cells):
            rows.add_row(name, *(_word(cell, with_ratio=True) for cell in cells))
    by_dtype = [[r for r in results if r.cell.dtype == dtype] for dtype in dtypes]
    rows.add_row("resolution", *(_resolution(those) for those in by_dtype), style="dim")
    rows.add_row("passed", *(_passed(those) for those in by_dtype), style="dim")
    return rows


def _grouped(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    groups = dict[tuple[str, str], list[Result]]()
    for result in results:
        groups.setdefault((result.cell.quantity, result.cell.dtype), []).append(result)
    return groups


def _short(profile: str) -> str:
    """The head of a profile's column; the legend says what it stands for."""
    return known_profiles()[profile].short


def _forward(profile: str) -> str:
    """The profile whose gradients a profile is about, or itself."""
    return known_profiles()[profile].base or profile


def _beside(found: Mapping[str, Sequence[Result]]) -> Iterator[dict[str, Sequence[Result]]]:
    """Profiles of one table after the other, as many in each as there is room for."""
    size = ceil(len(found) / max(1, ceil(len(found) / BESIDE)))
    names = list(found)
    for start in range(0, len(names), max(size, 1)):
        yield {name: found[name] for name in names[start : start + size]}


def _matrix(
    report: Report,
    head: str,
    found: Mapping[str, Sequence[Result]],
    subjects: Sequence[Subject],
) -> Table:
    """Subjects down, profiles across: the largest error over bound in all dtypes."""
    rows = table(head, *(_short(profile) for profile in found), "passed")
    groups = dict[tuple[Subject, str], list[Result]]()
    for profile, results in found.items():
        for result in results:
            groups.setdefault((result.cell.subject, profile), []).append(result)
    for subject in subjects:
        cells = [groups.get((subject, profile), []) for profile in found]
        own = [result for cell in cells for result in cell]
        if not any(result.offered for result in own):
            continue
        rows.add_row(_label(report, subject), *(_number(cell, "") for cell in cells), _passed(own))
    return rows


def _many(
    report: Report, results: Sequence[Result], profile: str, dtype: str, named: bool = False
) -> Table:
    """Subjects down, quantities across: largest error over bound and the class of equal bits."""
    declared = known_profiles()[profile]
    # Of a gradient, the steps on the way are left to the table of a single subject.
    quantities = [
        n for n in declared.quantities if not declared.base or n not in declared.intermediates
    ]
    short = f"{_short(profile)}{' gradients' if declared.base else ''}"
    head = f"{short} {dtype}" if named else dtype
    rows = table(head, *quantities, "grade", "passed")
    letters = {i.quantity: i for i in report.identities if (i.profile, i.dtype) == (profile, dtype)}
    groups = dict[Subject, list[Result]]()
    for result in results:
        groups.setdefault(result.cell.subject, []).append(result)
    for subject, own in groups.items():
        if not any(result.offered for result in own):
            continue
        cells = _grouped(own)
        row = []
        for name in quantities:
            letter = letters[name].letter(subject.id) if name in letters else ""
            row.append(_number(cells.get((name, dtype), []), letter))
        rows.add_row(_label(report, subject), *row, _word(own), _passed(own))
    return rows


def _label(report: Report, subject: Subject) -> str:
    devices = {result.cell.subject.device for result in report.results}
    return subject.name if devices == {"cpu"} else subject.id


def worst_status(results: Iterable[Result]) -> str:
    """The status that says most: a bad one, else a pass, else why there is none."""
    found = {result.status for result in results}
    return next((status.name for status in statuses.ranked() if status.name in found), "")


def _word(results: Sequence[Result], with_ratio: bool = False, short: bool = False) -> Text:
    """The worst grade, or the status that stands in its way."""
    status = worst_status(results)
    if status != Status.PASSED:
        return Text(status, style=style(status))
    grades = [r.grade for r in results if r.status == Status.PASSED and r.grade]
    if not grades:
        return Text("passed", style="green")
    grade = max(grades, key=GRADES.index)
    ratio = max((r.ratio or 0.0 for r in results if r.status == Status.PASSED), default=0.0)
    shown = f" {ratio:.2g}" if with_ratio and grade != "exact" else ""
    if short and grade != "exact":
        return _number(results, "")
    return Text(grade + shown, style=style(grade))


def _number(results: Sequence[Result], letter: str) -> Text:
    status = worst_status(results)
    if status == Status.PASSED:
        ratio = max(r.ratio or 0.0 for r in results if r.status == Status.PASSED)
        return Text(f"{ratio:.2f}".replace("0.", ".", 1) + f" {letter}".rstrip(), style="green")
    return Text(statuses.named(status).short if status else "", style=style(status))


def _resolution(results: Iterable[Result]) -> str:
    """Bound of the profile's result over its largest value, in the median case."""
    found = [r.resolution for r in results if r.last and r.decisive and r.resolution]
    return f"{statistics.median(found):.1g}" if found else ""


def _passed(results: Iterable[Result]) -> str:
    """Passed cells of those that were run."""
    counts = Counter(result.status for result in results)
    required = sum(count for status, count in counts.items() if status not in Status.NOT_REQUIRED)
    return f"{sum(counts[status] for status in Status.PASSES)}/{required}"
