"""The summary of a run for people: tables first, failures next, one sentence last.

Everything fits into 80 columns and is readable without colour.
"""

from __future__ import annotations

import io
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkvac.cells import CHECKS, Result, Status
from qkvac.declaration import DTYPES
from qkvac.failures import blocks
from qkvac.report import FAILED, NOT_PROVED, NOT_RUN, PASSED, Report
from qkvac.spec.attention import PROFILES, Arithmetic

GRADES: Final = ("exact", "faithful", "conforming", "suspicious")
"""Grades of a pass, the best first."""

STYLES: Final = {
    **dict.fromkeys(Status.BAD, "bold red"),
    **dict.fromkeys((Status.INDECISIVE, Status.KNOWN_DEVIATION, "suspicious"), "yellow"),
    **dict.fromkeys((*NOT_RUN, ""), "dim"),
    **dict.fromkeys(GRADES[:3], "green"),
}


def plain(report: Report, width: int = 80) -> str:
    """The summary as text without colour."""
    file = io.StringIO()
    show(report, Console(file=file, width=width, color_system=None))
    return file.getvalue()


def show(report: Report, console: Console) -> None:
    """Prints the summary."""
    subjects = list(dict.fromkeys(result.cell.subject.id for result in report.results))
    for profile in dict.fromkeys(result.cell.profile for result in report.results):
        results = [result for result in report.results if result.cell.profile == profile]
        if len(subjects) == 1:
            console.print(_one(results, profile))
            console.print()
        else:
            for dtype in DTYPES:
                those = [result for result in results if result.cell.dtype == dtype]
                if those:
                    console.print(_many(report, those, profile, dtype))
                    console.print()
    if len(subjects) > 1 and report.identities:
        console.print(
            "Largest error over its bound. Equal letters in a column: bit for bit equal wherever "
            "all of them ran.",
            style="dim",
        )
    for text in (*_models(report), *_left_out(report)):
        console.print(Text(text, style="dim"))
    for text in report.warnings:
        console.print(Text(f"warning: {text}", style="yellow"))
    shown, hidden = blocks(report.failures)
    for block in shown:
        console.print()
        console.print(Text(block), soft_wrap=True)
    if hidden:
        console.print(f"\n… and {hidden} more kinds of failure; --record FILE keeps them all")
    console.print()
    style = {PASSED: "bold green", FAILED: "bold red"}.get(report.exit_status, "bold yellow")
    console.print(Text(report.sentence, style=style))
    console.print(Text(f"{_counted(report)} {NOT_PROVED}", style="dim"))


def table(*headers: str) -> Table:
    """An empty table in the style of all tables here."""
    rows = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for header in headers:
        rows.add_column(header, no_wrap=True)
    return rows


def _one(results: Sequence[Result], profile: str) -> Table:
    """Quantities and checks down, dtypes across: grade and largest error over bound."""
    dtypes = [d for d in DTYPES if any(result.cell.dtype == d for result in results)]
    rows = table("", *dtypes)
    names = [*PROFILES[profile].quantities, *CHECKS]
    for name in names:
        those = [result for result in results if result.cell.quantity == name]
        if those:
            cells = [[r for r in those if r.cell.dtype == dtype] for dtype in dtypes]
            rows.add_row(name, *(_word(cell, with_ratio=True) for cell in cells))
    by_dtype = [[r for r in results if r.cell.dtype == dtype] for dtype in dtypes]
    rows.add_row("resolution", *(_resolution(those) for those in by_dtype), style="dim")
    rows.add_row("passed", *(_passed(those) for those in by_dtype), style="dim")
    return rows


def _many(report: Report, results: Sequence[Result], profile: str, dtype: str) -> Table:
    """Subjects down, quantities across: largest error over bound and the class of equal bits."""
    quantities = PROFILES[profile].quantities
    rows = table(dtype, *quantities, "grade", "passed")
    letters = {i.quantity: i for i in report.identities if i.dtype == dtype}
    devices = {result.cell.subject.device for result in report.results}
    for subject in dict.fromkeys(result.cell.subject for result in results):
        own = [result for result in results if result.cell.subject == subject]
        row = []
        for name in quantities:
            those = [result for result in own if result.cell.quantity == name]
            letter = letters[name].letter(subject.id) if name in letters else ""
            row.append(_number(those, letter))
        label = subject.name if devices == {"cpu"} else subject.id
        rows.add_row(label, *row, _word(own), _passed(own))
    return rows


def _worst_status(results: Iterable[Result]) -> str:
    """The status that says most: a bad one, else a pass, else why there is none."""
    found = {result.status for result in results}
    order = (
        *(Status.CRASH, Status.TIMEOUT, Status.ERROR, Status.FAILED, Status.MISSING),
        *(Status.UNEXPECTED_PASS, Status.KNOWN_DEVIATION, Status.PASSED, Status.INDECISIVE),
        *reversed(NOT_RUN),
    )
    return next((status for status in order if status in found), "")


def _word(results: Sequence[Result], with_ratio: bool = False) -> Text:
    """The worst grade, or the status that stands in its way."""
    status = _worst_status(results)
    if status != Status.PASSED:
        return Text(status, style=STYLES[status])
    grades = [r.grade for r in results if r.status == Status.PASSED and r.grade]
    if not grades:
        return Text("passed", style="green")
    grade = max(grades, key=GRADES.index)
    ratio = max((r.ratio or 0.0 for r in results if r.status == Status.PASSED), default=0.0)
    shown = f" {ratio:.2g}" if with_ratio and grade != "exact" else ""
    return Text(grade + shown, style=STYLES[grade])


def _number(results: Sequence[Result], letter: str) -> Text:
    status = _worst_status(results)
    if status == Status.PASSED:
        ratio = max(r.ratio or 0.0 for r in results if r.status == Status.PASSED)
        return Text(f"{ratio:.2f}".replace("0.", ".", 1) + f" {letter}".rstrip(), style="green")
    short = {Status.NOT_REPORTED: "–", Status.UNSUPPORTED: "–", Status.SKIPPED: "–", "": ""}
    short |= {Status.KNOWN_DEVIATION: "known", Status.UNEXPECTED_PASS: "passes"}
    return Text(short.get(status, status[:7]), style=STYLES[status])


def _resolution(results: Iterable[Result]) -> str:
    """Bound of the profile's result over its largest value, in the median case."""
    found = [r.resolution for r in results if r.last and r.decisive and r.resolution]
    return f"{statistics.median(found):.1g}" if found else ""


def _models(report: Report) -> list[str]:
    """What the only subject declared, and what that leaves unseen."""
    subjects = {result.cell.subject for result in report.results}
    entries = [entry for entry in report.roster.entries if entry.subject in subjects]
    if len(entries) != 1:
        return []
    entry = entries[0]
    dtypes = [d for d in entry.dtypes if any(r.cell.dtype == d for r in report.results)]
    models = dict.fromkeys(_model(entry.arithmetic(dtype), dtype) for dtype in dtypes)
    lines = [f"judged as declared: {'; '.join(models)}"] if models else []
    quantities = [result for result in report.results if not result.cell.is_check]
    if any(r.decisive and r.last for r in quantities) and all(
        r.last or r.status in NOT_RUN for r in quantities
    ):
        lines.append(
            "nothing before the result is returned, so errors smaller than its bound stay unseen; "
            "returning Q, K, V and A makes the test sharper"
        )
    return lines


def _model(model: Arithmetic, dtype: str) -> str:
    parts = [f"{dtype} accumulates in {model.accumulation}"]
    if model.storage != dtype:
        parts.append(f"stored as {model.storage}")
    if model.operands != model.storage:
        parts.append(f"multiplies {model.operands}")
    if model.flushes:
        parts.append("flushes subnormals")
    if model.blocks:
        parts.append(f"blocks of {model.blocks} keys")
    parts.append(f"softmax {model.softmax or 'undeclared'}")
    return ", ".join(parts)


def _passed(results: Iterable[Result]) -> str:
    """Passed cells of those that were run."""
    counts = Counter(result.status for result in results)
    required = sum(count for status, count in counts.items() if status not in NOT_RUN)
    return f"{counts[Status.PASSED]}/{required}"


def _left_out(report: Report) -> list[str]:
    """What was not run, or proves nothing, and why; one line each."""
    lines = list(report.roster.notes)
    reasons = Counter[tuple[str, str, str]]()
    for result in report.results:
        if result.status in (*NOT_RUN, Status.INDECISIVE, Status.KNOWN_DEVIATION):
            subject = result.cell.subject.id
            reason = result.reason or ""
            if result.status == Status.NOT_REPORTED:
                reason = result.cell.quantity
            elif result.status == Status.INDECISIVE:
                reason = _unclear(result)
            reasons[result.status, reason, subject] += 1
    merged = dict[tuple[str, str], list[str]]()
    for (status, reason, subject), _ in reasons.items():
        merged.setdefault((status, reason), []).append(subject)
    for (status, reason), subjects in merged.items():
        count = sum(reasons[status, reason, subject] for subject in subjects)
        where = ", ".join(subjects) if len(subjects) <= 3 else f"{len(subjects)} subjects"
        lines.append(f"{status} ({reason}): {count} cells of {where}")
    if report.left_out:
        count = sum(report.left_out.values())
        lines.append(
            f"left out in this tier: {count} cases of {', '.join(report.left_out)}, "
            "which compile for every shape; --tier full runs them"
        )
    doubtful = [r.cell for r in report.results if r.grade == "suspicious"]
    if doubtful and not report.strict:
        lines.append(
            f"suspicious: {len(doubtful)} cells, first {doubtful[0].case} "
            f"{doubtful[0].quantity}: larger errors than rounding explains; --strict fails them"
        )
    for known in report.not_exercised:
        lines.append(f"not exercised: {known.source} ({known.backend}: {known.reason})")
    return lines


def _unclear(result: Result) -> str:
    """Why a result proves nothing, in words that many cells share."""
    if "not finite" in (result.reason or ""):
        return "not finite where a declared format may overflow"
    return "the bounds are too wide to tell"


def _counted(report: Report) -> str:
    counts = report.counts
    passed = sum(
        1 for r in report.results if r.status == Status.PASSED and not report.is_failure(r)
    )
    text = f"{passed} of {report.required} cells passed"
    others = [f"{counts[status]} {status}" for status in Status.ALL[1:] if counts[status]]
    if report.stopped:
        others.append(f"{report.stopped} not run")
    return f"{text}{' (' if others else ''}{', '.join(others)}{')' if others else ''}, " + (
        f"{report.seconds:.1f} s."
    )
