"""Failures in words: what went wrong where, and the command that shows it again."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final

from qkvac.cells import COMMAND, FOLDER, LOADED, Result, Status
from qkvac.draw import draw_of
from qkvac.spec.registry import option_for
from qkvac.spec.verdicts import clauses
from qkvac.subjects.selection import known_case
from qkvac.texts import visible

SHOWN: Final = 6
"""Groups of failures that a summary spells out."""
TRACEBACK_LINES: Final = 12
INDENT: Final = "    "
FIRST: Final = ("unchanged", "repeat", "state", "environment")
"""Checks whose failures stand first: values of such a port depend on more than its inputs."""


def explain(result: Result, others: Sequence[Result] = (), width: int = 0) -> str:
    """A block of lines about a failure; `others` failed in the same way in other cases.

    Sentences are broken at words where a `width` is given; what is copied from it stays whole.
    """
    cell = result.cell
    # Without an answer, it is of none of the quantities.
    about = () if result.status in Status.UNANSWERED else (cell.quantity,)
    where = " · ".join((cell.subject.id, cell.dtype, cell.case, *about))
    told = [result.reason, worst(result), result.diagnosis, _precision(result)]
    if others:
        cases = ", ".join(other.cell.case.partition("/")[2] for other in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        told.append(f"alike in {cases}{more}")
    lines = _broken(f"{where}: {what(result)}", width, "")
    lines += (line for text in told if text for line in _broken(text, width, INDENT))
    lines += _tail(result) if result.status != Status.FAILED else ()
    lines.append(f"{INDENT}again: {command(result)}")
    if result.status == Status.FAILED and result.detail:
        # At the left margin, so that it can be pasted.
        lines += [f"{INDENT}or with NumPy alone:", "", *result.detail.splitlines()]
    return visible("\n".join(lines))


def _broken(text: str, width: int, indent: str) -> list[str]:
    """A sentence as lines that are not longer than `width`; as one where that is 0."""
    if not width:
        return [f"{indent}{text}"]
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def groups(failures: Iterable[Result]) -> list[list[Result]]:
    """Failures by what is alike about them, the first of each group first."""
    found = dict[tuple[str, ...], list[Result]]()
    for result in failures:
        cell = result.cell
        key = (cell.subject.id, cell.dtype, cell.quantity, result.status, result.clause or "")
        if result.status not in (Status.FAILED, Status.UNEXPECTED_PASS):
            # All cells of a case share the reason; one of them says it.
            key = (cell.subject.id, cell.dtype, "", result.status, result.reason or "")
        found.setdefault(key, []).append(result)
    return list(found.values())


def blocks(failures: Iterable[Result], most: int = SHOWN, width: int = 0) -> tuple[list[str], int]:
    """Blocks for the first groups of failures, and how many groups are left."""
    # What a call does to its surroundings explains what else is wrong.
    found = sorted(groups(failures), key=lambda group: group[0].cell.quantity not in FIRST)
    shown = []
    for group in found[:most]:
        first = telling(group)
        rest = {r.cell.case: r for r in group if r.cell.case != first.cell.case}
        shown.append(explain(first, list(rest.values()), width))
    return shown, len(found) - len(shown)


def telling(group: Iterable[Result]) -> Result:
    """The failure that explains best: of the smallest case, which most likely has a snippet.

    A named case says why it is there, and comes before one that only crosses values.
    """
    return min(group, key=lambda result: (result.detail is None, *_size(result)))


def _size(result: Result) -> tuple[bool, int]:
    """Whether a case is crossed, and the product of its sizes: what it takes to look at it."""
    case = known_case(result.cell.case)
    if case is None:
        return True, sys.maxsize
    return case.crossed, prod(case.sizes.values()) * prod(case.batch)


def command(result: Result) -> str:
    """The command line that runs the cell's case again."""
    cell = result.cell
    subject = cell.subject
    port = subject.port
    if subject.form == LOADED:
        return f"qkvac.check({port}, cases=[{cell.case!r}], dtypes=[{cell.dtype!r}])"
    if subject.form == FOLDER:
        words = ["qkvac", "grade", *shlex.split(port or "")]
    elif subject.form == COMMAND:
        words = ["qkvac", "check"]
    elif port is not None:
        words = ["qkvac", "check", port]
    else:
        words = ["qkvac", "run", "--backend", subject.name]
    words += shlex.split(subject.declare)
    words += option_for(cell.profile)
    words += ["--case", cell.case, "--dtype", cell.dtype]
    _, draw = draw_of(cell.case)
    if draw is not None and subject.form != FOLDER:
        words += draw.words
    if result.grade == "suspicious":
        words.append("--strict")
    if subject.device != "cpu":
        words += ["--device", subject.device]
    text = shlex.join(words)
    return f"{text} {port}" if subject.form == COMMAND else text


def what(result: Result) -> str:
    """The status and the clause, or the grade that fails, in words."""
    if result.clause is None:
        return result.grade or result.status
    clause = clauses.named(result.clause)
    return ", ".join(filter(None, (result.status, clause.word, clause.head)))


def worst(result: Result) -> str | None:
    """The worst entry of a failure: its place, its values, and its error over the bound."""
    entry = result.worst
    if entry is None or result.status != Status.FAILED:
        return None
    value, certified, error, bound = (
        float(entry[name]) for name in ("value", "certified", "error", "bound")
    )
    place = f"worst at {list(entry['index'])}: {value:.9g}, certified {certified:.9g}"
    if bound > 0:
        return f"{place}, error {error:.2g} = {error / bound:.3g} × the bound {bound:.2g}"
    return f"{place}, error {error:.2g}, none allowed"


def _precision(result: Result) -> str | None:
    if result.grade == "suspicious" and result.z is not None and result.rms is not None:
        return f"z = {result.z:.1f}, rms = {result.rms:.1f}: larger errors than rounding explains"
    return None


def _tail(result: Result) -> Iterator[str]:
    """The end of a traceback, or of what was printed, unless the reason has said it all."""
    lines = (result.detail or "").rstrip().splitlines()
    if not lines or lines == [result.reason]:
        return
    cut = ["…"] if len(lines) > TRACEBACK_LINES else []
    for line in (*cut, *lines[-TRACEBACK_LINES:]):
        yield f"{INDENT}| {line}"
