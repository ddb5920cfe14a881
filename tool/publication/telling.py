"""A comparison in words, and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from qkvac.cells import Status
from qkvac.diagnosis.failures import blocks, command
from qkvac.publication.archive import Archive
from qkvac.publication.comparison import (
    ADDED,
    EXCUSED,
    FAILING,
    FIXED,
    GROWN,
    HIDDEN,
    KINDS,
    LOST,
    NEW_FAILURE,
    SAME,
    Change,
    Comparison,
)
from qkvac.records.record import to_json as result_json
from qkvac.records.words import counted
from qkvac.texts import visible

SHOWN: Final = 12
"""Lines that a list in the text has; JSON has them all."""
WIDTH: Final = 80


def to_text(found: Comparison) -> str:
    """A comparison for people: what moved, what became of which cells, and one sentence."""
    parts = [_head(found), _moves(found), _unpaired(found)]
    failures = [
        # A snippet shows one failure well, and many only at length.
        replace(change.new, detail=None) if change.new.status == Status.FAILED else change.new
        for change in found.changes.get(NEW_FAILURE, ())
        if change.new is not None
    ]
    if failures:
        shown, hidden = blocks(failures, width=WIDTH)
        more = [f"… and {hidden} more kinds of failure"] if hidden else []
        parts.append("\n\n".join([_title(found, NEW_FAILURE), *shown, *more]))
    for kind in (LOST, HIDDEN, EXCUSED):
        parts.append(_listed(_title(found, kind), found.changes.get(kind, ()), _absence))
    grown = sorted(found.changes.get(GROWN, ()), key=lambda c: -_ratio(c))
    parts.append(_listed(_title(found, GROWN), grown, _growth, sort=False))
    parts.append(_listed(_title(found, FIXED), found.changes.get(FIXED, ()), _place))
    parts.append(_listed(_title(found, ADDED), found.changes.get(ADDED, ()), _part))
    parts += [_bits(found), _sentence(found)]
    return visible("\n\n".join(filter(None, parts))) + "\n"


def to_json(found: Comparison) -> str:
    """A comparison as JSON: every cell that changed, with what it was and what it is."""
    data: dict[str, Any] = {
        "old": _side(found.old),
        "new": _side(found.new),
        "regressed": found.regressed,
        "counts": {kind: found.counts.get(kind, 0) for kind in KINDS},
        "moved": [
            {"name": m.name, "old": m.old, "new": m.new, "subjects": list(subjects)}
            for m, subjects in found.moves.items()
        ],
        "changes": [_change(change) for changes in found.changes.values() for change in changes],
        "bits": {
            "compared": found.comparable,
            "changed": [change.cell.id for change in found.bits],
            "not_comparable": dict(found.incomparable),
        },
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def _side(archive: Archive) -> dict[str, Any]:
    return {
        "records": list(archive.sources),
        "environments": [environment.id for environment in archive.environments],
        "complete": not archive.truncated,
    }


def _change(change: Change) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": change.kind, "cell": change.cell.id}
    for side, result in (("old", change.old), ("new", change.new)):
        if result is not None:
            own = result_json(result)
            line[side] = {k: v for k, v in own.items() if k not in _IDENTITY}
    if change.kind == NEW_FAILURE and change.new is not None:
        line["again"] = command(change.new)
    return line


_IDENTITY: Final = ("kind", "subject", "dtype", "case", "quantity")


def _head(found: Comparison) -> str:
    lines = []
    for side, archive in (("old", found.old), ("new", found.new)):
        count = len(archive.environments)
        subjects = len({line.result.cell.subject for line in archive.lines})
        early = ", ENDED EARLY" if archive.truncated else ""
        lines.append(
            f"{side}  {', '.join(archive.sources)}: {counted(len(archive.lines), 'cell')} of "
            f"{counted(subjects, 'subject')} in {counted(count, 'environment')}{early}"
        )
    return "\n".join(lines)


def _moves(found: Comparison) -> str:
    moved = found.moves
    paired = {p.subject for p in found.pairs if p.old is not None and p.new is not None}
    if not moved:
        return "moved: nothing" if paired else ""
    lines = ["moved:"]
    for move, subjects in list(moved.items())[:SHOWN]:
        of = "" if len(set(subjects)) == len(paired) else f" ({_some(subjects)})"
        lines += _wrapped(f"{move}{of}")
    return "\n".join([*lines, *_more(len(moved) - SHOWN)])


_SIDES: Final = (True, False)
"""The old record, and the new one."""


def _unpaired(found: Comparison) -> str:
    """Subjects that are in one record only, or cannot be told apart in both."""
    sides = Counter(
        (pair.subject, pair.old is not None) for pair in found.pairs if None in (pair.old, pair.new)
    )
    lines = []
    for subject, old in sides:
        if (subject, not old) in sides:
            text = f"{subject}: several environments hold it and cannot be told apart"
            lines += _wrapped(text) if old else []
        else:
            lines += _wrapped(f"{subject}: only in the {'old' if old else 'new'} record")
    if not lines:
        return ""
    alone = [[s for s, was in sides if was == old and (s, not was) not in sides] for old in _SIDES]
    advice = []
    if all(len(names) == 1 for names in alone):
        (one,), (other,) = alone
        names = (name.partition("@")[0] for name in (one, other))
        advice = _wrapped(f"to compare one with the other: --as {'='.join(names)}")
    return "\n".join(["not compared:", *lines[:SHOWN], *_more(len(lines) - SHOWN), *advice])


def _title(found: Comparison, kind: str) -> str:
    count = found.counts.get(kind, 0)
    text = f"{counted(count, 'cell')} {KINDS[kind][count != 1]}"
    absent = sum(change.old is None for change in found.changes.get(kind, ()))
    if kind == NEW_FAILURE and absent:
        lacks = "none" if absent == count else f"{count - absent:,}"
        text += f", of which the old record has {lacks}"
    return f"{text}:"


def _listed(title: str, changes: Sequence[Change], word: Any, sort: bool = True) -> str:
    """A list of what is alike about cells, the most frequent first."""
    if not changes:
        return ""
    alike = Counter(word(change) for change in changes)
    rows = alike.most_common() if sort else list(alike.items())
    lines = [title]
    for text, count in rows[:SHOWN]:
        lines += _wrapped(f"{text}: {counted(count, 'cell')}" if sort else text)
    return "\n".join([*lines, *_more(len(rows) - SHOWN)])


def _part(change: Change) -> str:
    cell = change.cell
    return f"{cell.subject.id} · {cell.dtype} · {cell.profile}"


def _place(change: Change) -> str:
    return f"{_part(change)} · {change.cell.quantity}"


def _absence(change: Change) -> str:
    new = change.new
    if new is None:
        return f"{_part(change)}: absent"
    reason = f" ({new.reason})" if new.reason else ""
    return f"{change.cell.subject.id} · {change.cell.dtype}: {new.status}{reason}"


def _growth(change: Change) -> str:
    assert change.old is not None
    assert change.new is not None
    return (
        f"{change.cell.subject.id} · {change.cell.dtype} · {change.cell.case} · "
        f"{change.cell.quantity}: {change.old.ratio or 0:.2g} → {change.new.ratio or 0:.2g} of "
        "the bound"
    )


def _ratio(change: Change) -> float:
    return (change.new.ratio if change.new is not None else None) or 0.0


def _bits(found: Comparison) -> str:
    parts = []
    if found.comparable:
        title = f"{len(found.bits)} of {counted(found.comparable, 'result')} have other bits"
        parts.append(_listed(f"{title}:", found.bits, _place) or f"{title}.")
    for reason, count in found.incomparable.items():
        parts.append(f"bits of {counted(count, 'result')}: not comparable ({reason})")
    return "\n".join(parts)


def _sentence(found: Comparison) -> str:
    counts = found.counts
    said = [
        counted(counts.get(NEW_FAILURE, 0), "new failure"),
        f"{counted(counts.get(LOST, 0), 'cell')} lost",
    ]
    others = [
        f"{counts[kind]} {word}"
        for kind, word in (
            (GROWN, "errors grown"),
            (EXCUSED, "newly excused"),
            (HIDDEN, "failures not run any more"),
            (FIXED, "fixed"),
            (ADDED, "new passes"),
            (FAILING, "failing as before"),
            (SAME, "the same"),
        )
        if counts.get(kind)
    ]
    verdict = "REGRESSED" if found.regressed else "NO REGRESSION"
    text = f"{verdict}: {', '.join(said)}; {', '.join(others) or 'nothing else'}."
    return "\n".join(textwrap.wrap(text, WIDTH))


def _some(words: Iterable[str]) -> str:
    words = list(dict.fromkeys(words))
    return ", ".join(words) if len(words) <= 3 else f"{len(words)} subjects"


def _wrapped(text: str) -> list[str]:
    text = " ".join(text.split())
    if len(text) > 4 * WIDTH:
        text = f"{text[: 4 * WIDTH]} …"
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="    ",
        subsequent_indent="      ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"    … and {count} more; --format json has them all"
