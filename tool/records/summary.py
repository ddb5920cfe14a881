"""The summary of a run for people: tables first, failures next, one sentence last.

Everything fits into 80 columns and is readable without colour.
"""

from __future__ import annotations

import fnmatch
import io
from collections import Counter
from typing import TYPE_CHECKING, Final

from rich.text import Text

from qkvac.cells import Result, Status
from qkvac.checks.findings import listed
from qkvac.diagnosis.failures import blocks
from qkvac.records.deviations import Deviation
from qkvac.records.tables import tables
from qkvac.records.words import NOT_PROVED, summed_up
from qkvac.spec.attention import Arithmetic
from qkvac.spec.verdicts import statuses
from qkvac.targets.declaration import DEFAULT_CONVENTIONS
from qkvac.terminal import Terminal
from qkvac.texts import visible

if TYPE_CHECKING:
    from qkvac.records.report import Report

FEW: Final = 3
"""Subjects that a line names."""


def plain(report: Report, width: int = 80) -> str:
    """The summary as text without colour."""
    file = io.StringIO()
    show(report, Terminal(file=file, width=width, color_system=None))
    return file.getvalue()


def show(report: Report, console: Terminal) -> None:
    """Prints the summary."""
    for part in tables(report):
        console.print(part)
        console.print()
    subjects = {result.cell.subject.id for result in report.results}
    if len(subjects) > 1 and report.identities:
        console.print(
            "Largest error over its bound. Equal letters in a column: bit for bit equal wherever "
            "all of them ran.",
            style="dim",
        )
    for text in (*_models(report), *_conventions(report), *_left_out(report)):
        console.print(Text(visible(text), style="dim"))
    for text in report.warnings:
        console.print(Text(visible(f"warning: {text}"), style="yellow"))
    shown, hidden = blocks(report.failures, width=console.width)
    for block in shown:
        console.print()
        console.print(Text(block), soft_wrap=True)
    if hidden:
        console.print(f"\n… and {hidden} more kinds of failure; --record FILE keeps them all")
    console.print()
    console.print(Text(visible(report.sentence), style=report.conclusion.style))
    console.print(Text(f"{_counted(report)} {NOT_PROVED}", style="dim"))


def _models(report: Report) -> list[str]:
    """What the only subject declared, and what that leaves unseen."""
    subjects = {result.cell.subject for result in report.results}
    entries = [entry for entry in report.roster.entries if entry.subject in subjects]
    if len(entries) != 1:
        return []
    entry = entries[0]
    dtypes = [d for d in entry.dtypes if any(r.cell.dtype == d for r in report.results)]
    models = dict.fromkeys(model_words(entry.arithmetic(dtype), dtype) for dtype in dtypes)
    lines = [f"judged as declared: {'; '.join(models)}"] if models else []
    quantities = [result for result in report.results if not result.cell.is_check]
    inner = [result for result in quantities if not result.last]
    if (
        any(r.status == Status.NOT_REPORTED and r.cell.quantity != "Ω" for r in inner)
        and any(r.decisive and r.last for r in quantities)
        and all(r.status in Status.NOT_REQUIRED for r in inner)
    ):
        absent = [r.cell.quantity for r in inner if r.status == Status.NOT_REPORTED]
        sharper = [name for name in dict.fromkeys(absent) if name != "Ω"]
        lines.append(
            "nothing before the result is returned, so errors smaller than its bound stay unseen; "
            f"returning {listed(sharper)} makes the test sharper"
        )
    return lines


def model_words(model: Arithmetic, dtype: str) -> str:
    """An arithmetic model, without what is as it is by default."""
    parts = [f"{dtype} accumulates in {model.accumulation}"]
    if model.storage != dtype:
        parts.append(f"stored as {model.storage}")
    if model.operands != model.storage:
        parts.append(f"multiplies {model.operands}")
    usual = Arithmetic.for_dtype(dtype, {"storage": model.storage})
    if model.elementwise != usual.elementwise:
        parts.append(f"elementwise operations in {model.elementwise}")
    if model.scores != usual.scores:
        parts.append(f"scores in {model.scores}")
    if model.flushes:
        parts.append("flushes subnormals")
    if model.truncates:
        parts.append("cuts results off")
    if model.blocks:
        parts.append(f"blocks of {model.blocks} keys")
    parts.append(f"softmax {model.softmax or 'undeclared'}")
    if model.sigmoid:
        parts.append(f"sigmoid by {model.sigmoid}")
    return ", ".join(parts)


def _conventions(report: Report) -> list[str]:
    """What subjects declare other than the spec's own choices; one line for each ledger."""
    subjects = {result.cell.subject for result in report.results}
    ledgers = dict[str, list[str]]()
    for entry in report.roster.entries:
        if entry.subject not in subjects:
            continue
        other = [
            f"{name.replace('_', ' ')} {chosen}"
            for name, chosen in entry.declaration.conventions.items()
            if chosen != DEFAULT_CONVENTIONS[name]
        ]
        if other:
            ledgers.setdefault(", ".join(other), []).append(entry.subject.id)
    return [f"conventions declared by {_named(who)}: {text}" for text, who in ledgers.items()]


def _not_offered(report: Report) -> list[str]:
    """Profiles that subjects have no function for; one line for those that lack the same."""
    lacking = dict[str, dict[str, None]]()
    for result in report.results:
        if result.absent:
            lacking.setdefault(result.cell.subject.id, {})[result.cell.profile] = None
    alike = dict[tuple[str, ...], list[str]]()
    for subject, profiles in lacking.items():
        alike.setdefault(tuple(profiles), []).append(subject)
    return [
        f"not offered by {_named(who)}: "
        f"{', '.join(summed_up(names, ('any forward pass', 'any gradients')))}"
        for names, who in alike.items()
    ]


def _narrowed(report: Report) -> list[str]:
    """How many cases subjects are asked that take less than others; one line each."""
    lines = []
    for subject in dict.fromkeys(result.cell.subject.id for result in report.results):
        if words := report.only(subject):
            own = [r for r in report.results if r.cell.subject.id == subject and r.offered]
            every = {(r.cell.dtype, r.cell.case) for r in own}
            outside = {(r.cell.dtype, r.cell.case) for r in own if r.reason in words}
            asked = len(every - outside)
            lines.append(f"{', '.join(words)}: {asked} of {len(every)} cases of {subject}")
    return lines


def _named(names: list[str], kind: str = "subjects") -> str:
    return ", ".join(names) if len(names) <= FEW else f"{len(names)} {kind}"


def _drawn(report: Report) -> list[str]:
    """What further draws come from, where no port can have known."""
    entropy = report.selection.entropy
    return [f"drawn from entropy: --entropy {entropy} draws the same again"] if entropy else []


def _left_out(report: Report) -> list[str]:
    """What was drawn and what not run, or proves nothing, and why; one line each."""
    lines = [*_drawn(report), *report.roster.notes, *_not_offered(report), *_narrowed(report)]
    reasons = Counter[tuple[str, str, str]]()
    for result in report.results:
        if result.absent:
            continue
        if statuses.named(result.status).outcome in ("skipped", "xfailed"):
            subject = result.cell.subject.id
            reason = result.reason or ""
            if reason in report.only(subject):
                continue
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
        lines.append(f"{status} ({reason}): {count} cells of {_named(subjects)}")
    if report.left_out:
        count = sum(report.left_out.values())
        lines.append(
            f"left out in this tier: {count} cases of {', '.join(report.left_out)}, "
            "which prepare for every shape; --tier full runs them"
        )
    doubtful = [r.cell for r in report.results if r.grade == "suspicious"]
    if doubtful and not report.strict:
        lines.append(
            f"suspicious: {len(doubtful)} cells, first {doubtful[0].case} "
            f"{doubtful[0].quantity}: larger errors than rounding explains; --strict fails them"
        )
    lines += _not_exercised(report)
    return lines


def _not_exercised(report: Report) -> list[str]:
    """Known deviations that no cell met: of subjects that ran one by one, the others counted."""
    ran = {result.cell.subject.name for result in report.results}
    near, far = list[Deviation](), list[Deviation]()
    for known in report.not_exercised:
        met = any(fnmatch.fnmatchcase(name, known.backend) for name in ran)
        (near if met else far).append(known)
    lines = [f"not exercised: {k.source} ({k.backend}: {k.reason})" for k in near]
    chosen = report.selection.backends or any(e.subject.port for e in report.roster.entries)
    if far and not chosen:
        names = list(dict.fromkeys(known.backend.partition("/")[0] for known in far))
        lines.append(f"not exercised: {len(far)} known deviations of {_named(names, 'backends')}")
    return lines


def _unclear(result: Result) -> str:
    """Why a result proves nothing, in words that many cells share."""
    if "not finite" in (result.reason or ""):
        return "not finite where a declared format may overflow"
    return "the bounds are too wide to tell"


def _counted(report: Report) -> str:
    counts = report.counts
    passed = sum(
        1 for r in report.results if r.status in Status.PASSES and not report.is_failure(r)
    )
    text = f"{passed} of {report.required} cells passed"
    others = [f"{counts[status]} {status}" for status in Status.ALL[1:] if counts[status]]
    if report.stopped:
        others.append(f"{report.stopped} not run")
    return f"{text}{' (' if others else ''}{', '.join(others)}{')' if others else ''}, " + (
        f"{report.seconds:.1f} s."
    )
