"""The first screen: does it conform, where not, and why; and the environments it speaks of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from qkvac.cells import Result, Status
from qkvac.publication.marks import PLAIN, score
from qkvac.publication.naming import differing
from qkvac.publication.order import quantity_place
from qkvac.publication.runs import Run, facts, title
from qkvac.publication.surroundings import FEATURES
from qkvac.records.conclusion import CONCLUSIONS, Conclusion
from qkvac.records.sentences import together
from qkvac.records.tables import GRADES
from qkvac.spec.verdicts import statuses
from qkvac.targets.declaration import DTYPES

UNGRADED: Final = "passed, without a grade"
"""What became of checks, and of quantities without entries."""


@dataclass(frozen=True)
class Count:
    """How many cells there are of a grade or status."""

    word: str
    kind: str
    cells: int


@dataclass(frozen=True)
class Verdict:
    """Whether everything conforms, in words and in numbers."""

    conclusion: Conclusion
    said: str
    """What stands after the words of the conclusion."""
    passed: int
    required: int
    counts: tuple[Count, ...]
    """Cells that were run, the best first."""
    not_run: tuple[Count, ...]


@dataclass(frozen=True)
class Place:
    """A subject that fails in a profile: where, and why most of its cells do."""

    environment: str
    subject: str
    profile: str
    dtypes: str
    quantities: str
    cells: int
    why: str


@dataclass(frozen=True)
class Background:
    """An environment as a page shows it."""

    label: str
    title: str
    """What tells it from the others; "" if it is the only one."""
    id: str
    started: str
    facts: tuple[tuple[str, str, bool], ...]
    """Name, value, and whether it is another elsewhere."""
    features: str
    """Features of the processor, in one line."""
    verdict: Verdict
    complete: bool


def verdict(runs: Sequence[Run]) -> Verdict:
    """The verdict on some runs together."""
    results = [result for run in runs for result in run.results]
    passed = required = 0
    for run in runs:
        own = score(run.results, run.report.strict)
        passed, required = passed + own[0], required + own[1]
    conclusion = max((run.report.conclusion for run in runs), key=CONCLUSIONS.index)
    pairs = [(run.label, run.report) for run in runs]
    said = runs[0].report.said if len(runs) == 1 else together(pairs, conclusion)
    return Verdict(conclusion, said, passed, required, _counts(results), _not_run(results))


def _counts(results: Sequence[Result]) -> tuple[Count, ...]:
    words = Counter(r.grade or UNGRADED if r.status == Status.PASSED else r.status for r in results)
    required = [s for s in statuses.STATUSES if s.required and s is not statuses.PASSED]
    required.sort(key=lambda status: (status.fails, -status.passes))
    kinds = {
        **{grade: grade for grade in GRADES},
        UNGRADED: PLAIN,
        **{status.name: status.mark for status in required},
    }
    return tuple(Count(word, kind, words[word]) for word, kind in kinds.items() if words[word])


def _not_run(results: Sequence[Result]) -> tuple[Count, ...]:
    counts = Counter(result.status for result in results)
    return tuple(
        Count(status.name, status.mark, counts[status.name])
        for status in statuses.STATUSES
        if not status.required and counts[status.name]
    )


def places(runs: Sequence[Run]) -> tuple[Place, ...]:
    """Where something fails, and why, those with most failures first."""
    found = []
    for run in runs:
        groups = dict[tuple[str, str], list[Result]]()
        for result in run.report.failures:
            key = (result.cell.subject.id, result.cell.profile)
            groups.setdefault(key, []).append(result)
        for (subject, profile), group in groups.items():
            dtypes = {result.cell.dtype for result in group}
            quantities = sorted(
                {result.cell.quantity for result in group},
                key=partial(quantity_place, profile),
            )
            place = Place(
                run.label,
                subject,
                profile,
                ", ".join(dtype for dtype in DTYPES if dtype in dtypes),
                ", ".join(quantities),
                len(group),
                why(group),
            )
            found.append(place)
    return tuple(sorted(found, key=lambda place: -place.cells))


def why(group: Sequence[Result]) -> str:
    """The explanation that most of some failures have, and how many others there are."""
    texts = Counter(r.diagnosis or r.reason or r.clause or r.grade or r.status for r in group)
    (text, _), *others = texts.most_common()
    more = f" (and {len(others)} more)" if others else ""
    return f"{text}{more}"


def backgrounds(runs: Sequence[Run]) -> tuple[Background, ...]:
    """The environments, in order."""
    other = differing(map(facts, runs))
    found = []
    for run in runs:
        known = facts(run)
        found.append(
            Background(
                run.label,
                title(run, other),
                run.id,
                str(run.environment.header["started"]),
                tuple((n, v, n in other) for n, v in known.items() if n != FEATURES),
                known.get(FEATURES, ""),
                verdict([run]),
                run.complete,
            )
        )
    return tuple(found)
