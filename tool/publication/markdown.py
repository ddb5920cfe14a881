"""A summary in Markdown, for the page that a CI job shows.

Texts of a record stand in code only, inline or fenced, where Markdown and HTML mean nothing; and
what a fence or a column ends with cannot occur in them. GitHub cuts off nothing: it drops a
summary that is longer than 1 MiB. So failures are left out from where it would be, which is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from qkvac.cells import Result, Status
from qkvac.diagnosis.failures import blocks
from qkvac.publication.archive import Archive, Environment
from qkvac.publication.drift import Drift, drift
from qkvac.publication.marks import largest, score
from qkvac.publication.naming import names
from qkvac.publication.surroundings import facts
from qkvac.publication.texts import number
from qkvac.publication.troubles import unrun
from qkvac.records.report import Report
from qkvac.records.words import NOT_PROVED
from qkvac.texts import parted, visible

LIMIT: Final = 1 << 20
"""Bytes that GitHub takes for the summary of a step."""
RESERVE: Final = 2048
"""Bytes for the words at the end."""
ROWS: Final = 150
"""Rows of a table."""
TEXT: Final = 300
"""Characters of a text of a record in a table."""
BLOCK: Final = 6000
"""Characters that are shown of one failure."""

SIGNS: Final = {"pass": "✅", "known": "🟡", "open": "⚠️", "fail": "❌"}
"""What stands before a conclusion of a kind."""
LINK: Final = re.compile(r"https://[A-Za-z0-9./_#?=&%-]{1,200}")
"""Addresses that become links: shown as they are, and nothing in them ends the link."""


def render(archive: Archive) -> str:
    """The summary of an archive, of at most `LIMIT` bytes."""
    room = LIMIT - RESERVE
    before = _fitting(
        (*_head(archive), *_scores(archive), *_not_run(archive), *_known(archive)), room // 2
    )
    after = _fitting((*_drift(archive), *_environments(archive), f"{NOT_PROVED}\n"), room // 4)
    left = room - sum(map(_size, (*before, *after)))
    return "\n".join((*before, *_failures(archive, left), *after))


def _fitting(parts: Iterable[str], room: int) -> list[str]:
    """The parts that there is room for, and how many there is none for."""
    fitting = []
    absent = 0
    for part in parts:
        if _size(part) > room:
            absent += 1
            continue
        room -= _size(part)
        fitting.append(part)
    if absent:
        fitting.append(f"**{absent} parts were too long for this page; the record has them.**\n")
    return fitting


def _size(part: str) -> int:
    return len(part.encode("utf-8")) + 1


# --- texts of a record ----------------------------------------------------------------------------


def code(text: str, longest: int = TEXT) -> str:
    """A text as code, for a line or for a column of a table."""
    # A column would end at the bar, whatever it is part of.
    shown = " ".join(visible(text).split()).replace("|", r"\u007c")
    if len(shown) > longest:
        shown = f"{shown[:longest]}…"
    if not shown:
        return "–"
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{space}{shown}{space}{fence}"


def fenced(text: str, longest: int = BLOCK) -> str:
    """A text of several lines as a block of code."""
    shown = visible(text)
    if len(shown) > longest:
        shown = f"{shown[:longest]}\n…"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown; of many rows the first, and how many follow."""
    lines = [head, ["---"] * len(head), *rows[:ROWS]]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    more = len(rows) - ROWS
    return f"{text}\n… and {more} rows more; the record has them.\n" if more > 0 else text


# --- parts ----------------------------------------------------------------------------------------


def _head(archive: Archive) -> Iterator[str]:
    reports = archive.reports
    passed, required = _score(reports.values())
    conclusion = archive.conclusion
    yield f"## qkvac: {SIGNS[conclusion.kind]} {conclusion.word}\n"
    if archive.truncated:
        stopped = sum(report.stopped for report in reports.values())
        yield (
            "> [!WARNING]\n> A run ended early, or a part of it is missing. What follows is "
            f"incomplete and proves nothing: {stopped} planned cells have no result.\n"
        )
    yield f"**{passed} of {required} cells that were run passed.** {_counts(archive)}\n"
    called = names(archive.environments) if len(archive.environments) > 1 else {}
    for environment in archive.environments[:ROWS]:
        report = reports[environment.id]
        name = f"{code(called[environment.id])}: " if called else ""
        yield f"* {SIGNS[report.conclusion.kind]} {name}{code(report.sentence, 3 * TEXT)}"
    yield ""


def _score(reports: Iterable[Report]) -> tuple[int, int]:
    scores = [score(report.results, report.strict) for report in reports]
    return sum(passed for passed, _ in scores), sum(required for _, required in scores)


def _counts(archive: Archive) -> str:
    counts = Counter(line.result.status for line in archive.lines)
    others = [f"{counts[s]} {s}" for s in Status.ALL if s != Status.PASSED and counts[s]]
    return f"Besides: {', '.join(others)}." if others else "There were no others."


def _scores(archive: Archive) -> Iterator[str]:
    rows = []
    called = names(archive.environments)
    for environment in archive.environments:
        report = archive.reports[environment.id]
        versions = {entry.subject.id: entry.versions for entry in environment.entries}
        by_subject = dict[str, list[Result]]()
        for result in report.results:
            by_subject.setdefault(result.cell.subject.id, []).append(result)
        for id, results in by_subject.items():
            passed, required = score(results, report.strict)
            counts = Counter(result.status for result in results)
            ratio, without = largest(results)
            known = ", ".join(f"{n} {v}" for n, v in versions[id].items() if v)
            row = [
                *([code(called[environment.id])] if len(archive.environments) > 1 else []),
                code(id),
                code(known),
                f"{passed} / {required}",
                str(sum(map(report.is_failure, results)) or ""),
                str(counts[Status.KNOWN_DEVIATION] or ""),
                str(counts[Status.INDECISIVE] or ""),
                str(sum(counts[status] for status in Status.NOT_REQUIRED) or ""),
                ", ".join(filter(None, (number(ratio), f"{without} without" if without else ""))),
            ]
            rows.append(row)
    several = ["environment"] if len(archive.environments) > 1 else []
    head = ["subject", "version", "passed / required", "failed", "known", "indecisive", "not run"]
    yield table([*several, *head, "largest error / bound"], rows)


def _not_run(archive: Archive) -> Iterator[str]:
    counts = Counter(
        (r.status, r.cell.quantity if r.status == Status.NOT_REPORTED else unrun(r))
        for r in archive.results
        if r.status in Status.SKIPPING
    )
    rows = [[status, code(reason), str(n)] for (status, reason), n in counts.most_common()]
    left_out = Counter[str]()
    for environment in archive.environments:
        left_out.update(environment.run.get("left_out", {}))
        rows += [["not there", code(note), ""] for note in environment.run.get("notes", ())]
    rows += [
        ["left out in this tier", code(subject), f"of {count} cases"]
        for subject, count in left_out.items()
    ]
    if not rows:
        return
    yield _folded("What was not run, or proves nothing", table(["status", "why", "cells"], rows))


def _known(archive: Archive) -> Iterator[str]:
    counts = Counter(
        (r.cell.subject.id, r.reason or "")
        for r in archive.results
        if r.status == Status.KNOWN_DEVIATION
    )
    if not counts:
        return
    rows = []
    for (subject, reason), count in counts.most_common():
        text, address = parted(reason)
        link = f"<{address}>" if LINK.fullmatch(address) else ""
        rows.append([code(subject), code(text if link else reason), link, str(count)])
    yield _folded("Known deviations", table(["subject", "what", "reported", "cells"], rows))


def _failures(archive: Archive, left: int) -> Iterator[str]:
    """Every kind of failure, as long as there is room; each with the command that shows it."""
    failures = [r for report in archive.reports.values() for r in report.failures]
    if not failures:
        return
    title = "### Failures\n"
    yield title
    left -= _size(title)
    # No block is shorter than its command, so that more than these cannot fit.
    shown, hidden = blocks(failures, LIMIT // 100)
    for place, block in enumerate(shown):
        text = fenced(block)
        if _size(text) > left:
            hidden += len(shown) - place
            break
        left -= _size(text)
        yield text
    if hidden:
        yield f"**{hidden} more kinds of failure are left out here; the record has them.**\n"


def _drift(archive: Archive) -> Iterator[str]:
    found = drift(archive)
    if not found:
        return
    rows = [row for each in found for row in _drift_rows(each)]
    head = ["subject", "versions", "where", "other bits", "errors grown", "largest error / bound"]
    yield _folded("Drift between versions", table(head, rows))


def _drift_rows(found: Drift) -> Iterator[list[str]]:
    who = [code(found.subject.id), code(f"{found.old_version} → {found.new_version}")]
    if found.reason:
        yield [*who, f"not comparable: {found.reason}", "", "", ""]
    elif not found.changes:
        yield [*who, "everywhere", f"0 of {found.compared}", "0", ""]
    for change in found.changes:
        yield [
            *who,
            code(f"{change.profile} {change.dtype} {change.quantity}"),
            f"{change.changed} of {change.compared}",
            str(change.grown),
            f"{number(change.old_ratio)} → {number(change.new_ratio)}",
        ]


def _environments(archive: Archive) -> Iterator[str]:
    called = names(archive.environments) if len(archive.environments) > 1 else {}
    for environment in archive.environments[:ROWS]:
        settings = archive.footers.get(environment.id, {}).get("settings", {})
        told = [
            (f"{subject} {name}", value)
            for subject, own in settings.items()
            for name, value in own.items()
        ]
        rows = [[code(name), code(value)] for name, value in (*_facts(environment), *told)]
        name = escape(visible(" ".join(called.get(environment.id, "").split())))
        yield _folded(
            f"Environment <code>{name}</code>" if name else "Environment", table(["", ""], rows)
        )


def _facts(environment: Environment) -> list[tuple[str, str]]:
    known = {"id": environment.id, "started": environment.header["started"]}
    return [*known.items(), *facts(environment).items()]


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n</details>\n"
