"""Precision: which poorer arithmetic a port's answers would conform to, if it were declared.

Where no fault of the catalogue reproduces the bits, a wider arithmetic model may still explain
them: one whose rounding bounds all failing answers meet. The finest such model is named as what
the errors are as large as; it is no advice to declare it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from qkvac.cells import Result
from qkvac.diagnosis.samples import Sample
from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS
from qkvac.spec.verdicts.verdict import Question, judge

NAMES: Final = {"tfloat32": "TF32"}

PLACES: Final = {
    "operands": "factors of products rounded to {}",
    "elementwise": "a softmax in {}",
    "accumulation": "sums accumulated in {}",
    "everything": "{} inside",
}

FLUSHED: Final = "arithmetic that flushes subnormals to 0 (`flushes = true` declares it)"

TRUNCATED: Final = "results cut off and not rounded (`truncates = true` declares it)"

PATIENCE: Final = 5.0
UNNOTICED: Final = 2
"""Bits that may be lost without mention: an estimate is no better than that."""


def resembling(samples: Sequence[Sample], patience: float = PATIENCE) -> str | None:
    """What arithmetic the failing answers conform to, in words; None if to none that is known."""
    failing = sorted((s for s in samples if s.failing), key=lambda sample: sample.weight)
    if not failing:
        return None
    deadline = time.process_time() + patience
    for words, model in models(failing[0].arithmetic):
        if all(time.process_time() < deadline and _conforms(s, model) for s in failing):
            return words
    return None


def stated(samples: Sequence[Sample], results: Iterable[Result]) -> str | None:
    """The effective precision of every quantity that is less precise than declared, in words.

    `results` are those of the samples' subject, profile and dtype; a quantity's precision is the
    median over its cases, and the format that most of them resemble. None where nothing is lost.
    """
    bits = dict[str, list[float]]()
    formats = dict[str, list[str]]()
    for result in results:
        if result.bits is not None:
            bits.setdefault(result.cell.quantity, []).append(result.bits)
            formats.setdefault(result.cell.quantity, []).append(result.resembles or "")
    claimed = FORMATS[samples[0].arithmetic.storage].precision
    groups = dict[str, dict[int, list[str]]]()
    for quantity, found in formats.items():
        usual, count = max(found, key=found.count), round(median(bits[quantity]))
        if usual or count < claimed - UNNOTICED:
            groups.setdefault(usual, {}).setdefault(count, []).append(quantity)
    parts = []
    for form in sorted(groups, key=lambda name: not name):
        lost = [f"{count} of {claimed} bits in {', '.join(q)}" for count, q in groups[form].items()]
        like = f"behaves like {NAMES.get(form, form)}" if form else "effective precision"
        parts.append(f"{like}: {' and '.join(lost)}")
    return "; ".join(parts) or None


def models(declared: Arithmetic) -> Iterator[tuple[str, Arithmetic]]:
    """Poorer models than the declared one, the finest format first."""
    if not declared.flushes:
        yield FLUSHED, replace(declared, flushes=True)
    precision = FORMATS[declared.storage].precision
    # Cut off is what was held in a wider format.
    if not declared.truncates and precision < FORMATS[declared.accumulation].precision:
        yield TRUNCATED, replace(declared, truncates=True)
    coarser = [f for f in FORMATS.values() if f.precision < precision]
    for form in sorted(coarser, key=lambda f: (-f.precision, f.name != "tfloat32")):
        name = NAMES.get(form.name, form.name)
        for place, words in PLACES.items():
            changes: dict[str, Any] = {place: form.name}
            if place == "accumulation":
                changes["operands"] = declared.operands
            if place == "elementwise":
                changes["scores"] = declared.scores
            if place == "everything":
                changes = dict.fromkeys(
                    ("storage", "operands", "accumulation", "elementwise", "scores"), form.name
                )
            yield words.format(name), replace(declared, **changes)


def _conforms(sample: Sample, model: Arithmetic) -> bool:
    """Whether an answer meets the bounds of a model, and these are not empty words."""
    case = replace(sample.case, exact=())
    question = Question(case, sample.dtype, model, conventions=sample.conventions)
    verdicts = judge(question, sample.outputs)
    asked = [verdicts[name] for name in sample.failing]
    return all(verdict.status == "passed" for verdict in asked) and not any(
        verdict.status == "failed" for verdict in verdicts.values()
    )
