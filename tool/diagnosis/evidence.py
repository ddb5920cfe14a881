"""Evidence: the answers that a run keeps in order to say, at its end, what a port does wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from qkvac.cells import Result, Status
from qkvac.diagnosis import conditions, fresh, glances, invariants, precision, search, symmetries
from qkvac.diagnosis.attempts import LOG
from qkvac.diagnosis.failures import FIRST
from qkvac.diagnosis.reproduction import snippet
from qkvac.diagnosis.samples import Sample
from qkvac.diagnosis.search import ENTRIES
from qkvac.execution.plan import Job
from qkvac.execution.runner import Answer
from qkvac.spec.cases.case import Case
from qkvac.spec.conventions import of_values
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts import clauses
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options

FAILING: Final = 48
PASSING: Final = 12
"""Answers that are kept of a subject in a dtype."""
SECONDS: Final = 30.0
"""What all diagnoses of a run may take, of which the first ones get the most.

It is time of this process: on a busy machine a diagnosis takes longer, and finds the same.
"""

BROKEN: Final[Mapping[str, str]] = {
    "unchanged": "it writes into its inputs, or returns memory that belongs to them",
    "repeat": "its results are not a function of its inputs: random numbers (dropout?), an order "
    "of summation that varies, or memory that is reused",
    "state": "it keeps something from one call to the next, such as a cache keyed by shape",
    "scaling": "it computes differently for larger numbers: a constant, or a path by magnitude",
    "signs": "its rounding has a direction, or a constant is added",
    "future": "what a query gets depends on tokens that it may not see: a mask that is off, a "
    "maximum or a sum over more than the query's own keys",
    "first-row": "a query with one key gets something besides its values: another key leaks in, or "
    "the weights do not sum to 1",
    "own-row": "a query's result depends on other queries",
    "batch": "samples of a batch are mixed",
    "sensitivity": "an input is not used, or an earlier one is used in its place",
    "permutation": "the result depends on the order of the tokens",
    "samples": "a sample is computed differently in a batch",
    "mask-forms": "masks that say the same are treated differently",
    "subsets": "its gradients depend on which of them are wanted",
    "environment": "it changes the floating-point environment of its thread",
}
"""What a broken check of the protocol says about a port."""

OF_GRADIENTS: Final[Mapping[str, str]] = {
    "repeat": "its gradients depend on more than its inputs: they are added to those of earlier "
    "calls, which nobody sets to 0, or sums, random numbers or memory vary",
}
"""What it says about gradients instead."""


def broken(name: str, profile: str) -> str:
    """What the broken check `name` says about a port of a profile."""
    return (OF_GRADIENTS if known_profiles()[profile].base else {}).get(name, BROKEN[name])


Ask = Callable[[Mapping[str, Case], float], Mapping[str, fresh.Outputs]]
"""Makes further calls within some seconds: cases and answers by name."""


@dataclass
class Evidence:
    """Answers by subject, profile and dtype; filled from several threads."""

    options: Options = field(default_factory=Options)
    """How a subject is asked again."""
    _entries: dict[str, Entry] = field(default_factory=dict)
    _samples: dict[tuple[str, str, str], list[Sample]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, job: Job, answer: Answer, results: Iterable[Result]) -> None:
        """Keeps an answer if it is small, and few like it have been kept."""
        outputs = answer.outcome.outputs
        if answer.outcome.status != "ok" or not outputs:
            return
        if max(array.size for array in outputs.values()) > ENTRIES:
            return
        failing = tuple(
            result.cell.quantity
            for result in results
            if result.status == Status.FAILED and _about_values(result)
        )
        if not failing and 0 in (*job.case.sizes.values(), *job.case.batch):
            return  # Next to nothing is said by it, and 1/√m of m = 0 has no value.
        model = job.entry.arithmetic(job.dtype)
        chosen = of_values(job.entry.declaration.conventions)
        sample = Sample(job.case, job.dtype, model, outputs, failing, chosen)
        with self._lock:
            self._entries[job.entry.subject.id] = job.entry
            kept = self._samples.setdefault((job.entry.subject.id, job.case.profile, job.dtype), [])
            alike = sum(bool(other.failing) == bool(failing) for other in kept)
            if alike < (FAILING if failing else PASSING):
                kept.append(sample)

    def diagnosed(self, results: Sequence[Result]) -> list[Result]:
        """The results with what is probably wrong added to those that failed."""
        deadline = time.process_time() + SECONDS
        groups = dict[tuple[str, str, str], list[Result]]()
        for result in results:
            cell = result.cell
            groups.setdefault((cell.subject.id, cell.profile, cell.dtype), []).append(result)
        texts = dict[str, str]()
        for key, group in groups.items():
            failed = [result for result in group if result.status == Status.FAILED]
            names = {r.cell.quantity for r in failed}
            checks = [name for name in BROKEN if name in names]
            values = [r for r in failed if _about_values(r)]
            # The later checks fail as a consequence of the earlier ones, and of wrong values.
            telling = [name for name in checks[:1] if name in FIRST or not values]
            for result in failed:
                if result.cell.quantity in telling:
                    texts[result.cell.id] = broken(result.cell.quantity, key[1])
            samples = self._samples.get(key, [])
            if values and samples:
                ask = partial(fresh.answers, self._entries[key[0]], self.options, key[2])
                patience = max(deadline - time.process_time(), 1.0)
                stated = precision.stated(samples, group)
                try:
                    seen = conditions.of_results(group)
                    text = explain(samples, checks, patience, stated, ask, seen)
                except Exception as error:  # it costs a diagnosis, not the results
                    LOG.error("the diagnosis of %s failed", key[0], exc_info=True)
                    text = f"there is no diagnosis: {type(error).__name__}: {error}"
                texts |= dict.fromkeys((result.cell.id for result in values), text)
        return [self._completed(result, texts.get(result.cell.id)) for result in results]

    def _completed(self, result: Result, text: str | None) -> Result:
        """A failed result with its diagnosis, and with the lines that reproduce it."""
        cell = result.cell
        if result.status == Status.FAILED and result.worst is not None and result.detail is None:
            for sample in self._samples.get((cell.subject.id, cell.profile, cell.dtype), []):
                if sample.case.id == cell.case:
                    clause = clauses.find(result.clause or "")
                    whole = clause is not None and clause.whole
                    lines = snippet(sample, cell.quantity, result.worst, whole)
                    result = replace(result, detail=lines)
        return _with(result, text)


def _about_values(result: Result) -> bool:
    clause = clauses.find(result.clause or "")
    return clause is not None and clause.about_values


def explain(
    samples: Sequence[Sample],
    checks: Sequence[str],
    patience: float,
    stated: str | None = None,
    ask: Ask | None = None,
    seen: tuple[Sequence[Case], Sequence[Case]] | None = None,
) -> str:
    """What is probably wrong with values, given the checks that failed beside them.

    `stated` is the effective precision in words, which is added where precision is the trouble.
    `seen` are the cases that fail and that pass, by default those of the samples.
    """
    deadline = time.process_time() + patience
    where = conditions.condition(*(seen or _cases(samples)))
    few = where is not None and where.of_few
    looked = glances.glance(samples)
    if looked is not None and not looked.rest:
        # The rows that a convention is about are the condition.
        return _joined(str(where) if few and not looked.of_convention else None, looked.text)
    if looked is not None:
        told = explain(looked.rest, checks, deadline - time.process_time(), stated, ask, seen)
        return _joined(looked.text, told)
    first = next((name for name in FIRST if name in checks), None)
    if first in ("repeat", "state"):
        profile = samples[0].case.profile
        return f"the check {first!r} fails as well: {broken(first, profile)}"
    found = search.diagnose(samples, 0.6 * patience)
    if where is not None and ask is not None and (few or found is None):
        left = 0.5 * (deadline - time.process_time())
        where = conditions.confirmed(where, samples, partial(_asked, ask, left))
    first_words = str(where) if where is not None and few else None
    if found is not None:
        return _joined(first_words, str(found), stated if found.of_precision else None)
    like = precision.resembling(samples, 0.3 * patience)
    if like is not None:
        return _joined(first_words, f"its errors are as large as those of {like}", stated)
    told = invariants.narrowed(samples, _symmetries(samples, ask, deadline))
    return _joined(str(where) if where is not None else None, told)


def _asked(ask: Ask, patience: float, cases: Mapping[str, Case]) -> Mapping[str, fresh.Outputs]:
    return ask(cases, patience) if cases and patience > 0 else {}


def _cases(samples: Sequence[Sample]) -> tuple[list[Case], list[Case]]:
    failing = [sample.case for sample in samples if sample.failing]
    return failing, [sample.case for sample in samples if not sample.failing]


def _symmetries(
    samples: Sequence[Sample], ask: Ask | None, deadline: float
) -> list[symmetries.Symmetry]:
    sample = symmetries.suitable(samples)
    patience = deadline - time.process_time()
    if sample is None or ask is None or patience <= 0:
        return []
    return symmetries.judged(sample, ask(symmetries.posed(sample), patience))


def _with(result: Result, text: str | None) -> Result:
    if text is None:
        return result
    # What the errors of one quantity in one case look like is said for all of them, or means
    # nothing beside another explanation.
    known = (result.diagnosis or "").split("; ")
    return replace(
        result, diagnosis=_joined(text, *(k for k in known if not k.startswith("behaves like")))
    )


def _joined(*texts: str | None) -> str:
    return "; ".join(filter(None, texts))
