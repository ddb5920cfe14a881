"""What runs come to, in sentences: who agrees with the spec in what, and who does not, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from qkvac.cells import Result, Status
from qkvac.records.conclusion import (
    CONFORMS,
    DEVIATES,
    KNOWN,
    NOT_RUN,
    OUTDATED,
    UNFINISHED,
    UNPROVED,
    Conclusion,
)
from qkvac.records.words import MOST, counted, some, summed_up
from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS
from qkvac.targets.declaration import SUPPORTS
from qkvac.texts import line, parted

if TYPE_CHECKING:
    from qkvac.records.report import Report

REASON: Final = 120
"""Characters of the reason of a known deviation."""

TOLD: Final[Mapping[Conclusion, str]] = {
    DEVIATES: "something deviates in",
    OUTDATED: "a known deviation is gone in",
    NOT_RUN: "nothing answered in",
    UNFINISHED: "the run is unfinished in",
    UNPROVED: "nothing is proved in",
}
"""What is said of environments that keep the others from conforming; the worst first."""


def said(report: Report) -> str:
    """What a run comes to, after the word of its conclusion."""
    conclusion = report.conclusion
    if conclusion is OUTDATED:
        return f"a known deviation of {some(_subjects(report.failures))} is gone; remove its entry."
    if report.failures:
        return f"{'; '.join((*_deviating(report), *_silent(report)))}."
    if conclusion is UNFINISHED:
        left = f"{counted(report.stopped, 'cell')} were not run" if report.stopped else ""
        return f"nothing failed yet, but {left or 'the run ended early'}."
    if conclusion is UNPROVED:
        return _unproved(report)
    return f"{_same(report)}."


def together(runs: Sequence[tuple[str, Report]], conclusion: Conclusion) -> str:
    """What runs in several environments come to, by their names; after the conclusion's word."""
    if conclusion in (CONFORMS, KNOWN):
        unclear = sum(report.counts[Status.INDECISIVE] for _, report in runs)
        coarse = f"; {counted(unclear, 'cell')} too coarse to tell" if unclear else ""
        known = _known(runs)
        return (
            f"what was run agrees with the spec in all {len(runs)} environments"
            f"{f', but {known}' if known else ''}{coarse}."
        )
    found = dict[Conclusion, list[str]]()
    for name, report in runs:
        found.setdefault(report.conclusion, []).append(name)
    parts = [f"{words} {some(found[each])}" for each, words in TOLD.items() if each in found]
    return f"of {len(runs)} environments, {'; '.join(parts)}."


def _subjects(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(result.cell.subject.id for result in results))


def _deviating(report: Report) -> list[str]:
    """Who deviates, and in what; and who does not always answer."""
    failures = [r for r in report.failures if r.cell.subject.id not in report.silent]
    wrong = [r for r in failures if r.status not in Status.UNANSWERED]
    unanswered = [r for r in failures if r.status in Status.UNANSWERED]
    parts = []
    if wrong:
        subjects, quantities = _subjects(wrong), dict.fromkeys(r.cell.quantity for r in wrong)
        profiles = dict.fromkeys(r.cell.profile for r in wrong)
        of = f" of {some(profiles)}" if len(report.profiles) > 1 else ""
        parts.append(
            f"{some(subjects)} {'deviates' if len(subjects) == 1 else 'deviate'} from the spec in "
            f"{some(quantities)}{of}"
        )
    if unanswered:
        subjects = _subjects(unanswered)
        cases = {(r.cell.subject, r.cell.dtype, r.cell.case) for r in unanswered}
        statuses = dict.fromkeys(r.status for r in unanswered)
        parts.append(
            f"{some(subjects)} {'gives' if len(subjects) == 1 else 'give'} no answer in "
            f"{counted(len(cases), 'case')} ({', '.join(statuses)})"
        )
    return parts


def _silent(report: Report) -> list[str]:
    """Who never answered, and why."""
    reasons = dict[str, list[str]]()
    for subject in report.silent:
        texts = Counter(
            r.reason or r.status for r in report.failures if r.cell.subject.id == subject
        )
        reasons.setdefault(texts.most_common(1)[0][0], []).append(subject)
    return [f"{some(subjects)} never answered: {line(why)}" for why, subjects in reasons.items()]


def _unproved(report: Report) -> str:
    if not report.undecided and not report.proves:
        return "all that is here is skipped or unsupported."
    several = len(report.profiles) > 1
    where = [
        f"{f'{profile} of ' if several else ''}{subject} in {dtype}"
        for subject, profile, dtype in report.undecided
    ]
    text = f"no decisive result for {some(where) or 'anything'}."
    return " ".join(filter(None, (text, _advice(report))))


def _same(report: Report) -> str:
    """Who computes the same as the spec, and what stands against it."""
    subjects = dict.fromkeys(r.cell.subject for r in report.results if r.decisive)
    ran = [subject.id for subject in subjects]
    if len(ran) > MOST:
        ran = list(dict.fromkeys(subject.backend for subject in subjects))
    dtypes = list(dict.fromkeys(r.cell.dtype for r in report.results if r.decisive))
    known = _known([("", report)])
    but = f", but {known}" if known else ""
    unclear = [r for r in report.results if r.last and r.status == Status.INDECISIVE]
    if unclear:
        names = dict.fromkeys(r.cell.quantity for r in unclear)
        cases = {(r.cell.subject, r.cell.dtype, r.cell.case) for r in unclear}
        but += (
            f"; {some(names)} {'is' if len(names) == 1 else 'are'} too coarse to tell in "
            f"{counted(len(cases), 'case')}"
        )
    if _coarser(report):
        but += "; it was judged by the coarser arithmetic that it declares"
    return (
        f"{some(ran)} {'computes' if len(ran) == 1 else 'compute'} the same {_what(report)} as "
        f"the spec in {some(dtypes)}{but}"
    )


def _known(runs: Sequence[tuple[str, Report]]) -> str:
    """Who is known to deviate in what, how and where: those with most cells first."""
    found = dict[tuple[str, str], list[tuple[str, Result]]]()
    for name, report in runs:
        for result in report.results:
            if result.status == Status.KNOWN_DEVIATION:
                kind = result.clause or "no answer"
                key = (kind, parted(result.reason or "")[0])
                found.setdefault(key, []).append((name, result))
    groups = sorted(found.items(), key=lambda group: -len(group[1]))
    texts = [_group(*key, pairs, len(runs) > 1) for key, pairs in groups[: MOST - 1]]
    if rest := groups[MOST - 1 :]:
        cells = sum(len(pairs) for _, pairs in rest)
        texts.append(f"{counted(len(rest), 'more known deviation')} in {counted(cells, 'cell')}")
    return "; ".join(texts)


def _group(kind: str, reason: str, pairs: Sequence[tuple[str, Result]], several: bool) -> str:
    results = [result for _, result in pairs]
    subjects = _subjects(results)
    where = f" with {some(dict.fromkeys(name for name, _ in pairs))}" if several else ""
    return (
        f"{some(subjects)}{where} {'deviates' if len(subjects) == 1 else 'deviate'} in "
        f"{some(dict.fromkeys(r.cell.quantity for r in results))} of "
        f"{some(dict.fromkeys(r.cell.profile for r in results))} "
        f"({kind}: {line(reason, REASON)}; {counted(len(results), 'cell')})"
    )


def _advice(report: Report) -> str:
    """What would prove more, where less is declared than was to be proved."""
    left = Counter(
        result.reason or ""
        for result in report.results
        if result.last
        and result.status == Status.UNSUPPORTED
        and (result.cell.subject.id, result.cell.profile, result.cell.dtype) in report.undecided
    )
    narrow = {word for key in report.undecided for word in report.only(key[0])}
    remedies = list[str]()
    outside = [word for word in left if word in narrow]
    lacking = [word for word in left if word in SUPPORTS]
    if outside:
        count = sum(left[word] for word in outside)
        remedies.append(
            f"taking more than `only` says ({counted(count, 'result')} outside: "
            f"{', '.join(outside)})"
        )
    if lacking:
        count = sum(left[word] for word in lacking)
        words = ", ".join(f'"{word}"' for word in sorted(lacking))
        remedies.append(f"{words} in `supports` ({counted(count, 'result')})")
    if not remedies:
        return ""
    remedies.append("naming in `profiles` only what is offered")
    return f"What would prove more: {', or '.join(remedies)}."


def _what(report: Report) -> str:
    """What was found to be the same: by name, unless it is all there is."""
    covered = dict[str, dict[str, None]]()
    for r in report.results:
        if r.decisive:
            covered.setdefault(r.cell.subject.id, {})[r.cell.profile] = None
    found = summed_up(dict.fromkeys(p for profiles in covered.values() for p in profiles))
    if len({tuple(profiles) for profiles in covered.values()}) > 1:
        return f"{some(found)}, each where it offers them,"
    return some(found)


def _coarser(report: Report) -> bool:
    """Whether a subject that passed declares coarser formats than its dtype has by default."""
    passed = {(r.cell.subject, r.cell.dtype) for r in report.results if r.decisive}
    return any(
        entry.arithmetic(dtype).truncates
        or FORMATS[getattr(entry.arithmetic(dtype), field)].precision
        < FORMATS[getattr(Arithmetic.for_dtype(dtype), field)].precision
        for entry in report.roster.entries
        for dtype in entry.dtypes
        if (entry.subject, dtype) in passed
        for field in ("storage", "operands", "accumulation", "elementwise", "scores")
    )
