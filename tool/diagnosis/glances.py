"""Glances: what is said of wrong answers before any faulty equation is tried.

Some answers say what is wrong by themselves: numbers that are the same everywhere, and what is
right but for its dtype, for its name, for a factor, or for a convention that another choice of
makes it right. Only the declared equations are computed for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from qkvac.checks.findings import listed
from qkvac.diagnosis.samples import Examined, Sample
from qkvac.spec.attention import CONVENTIONS, Arithmetic
from qkvac.spec.bounds import rounding
from qkvac.spec.cases.case import Case
from qkvac.spec.conventions import OF_VALUES, presented
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.formats import FORMATS
from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.syntax import Ref
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts.verdict import Question, judge

Array = np.ndarray[Any, Any]

LOOKED_AT: Final = 4
"""Failing answers that a convention is tried on; whether it explains the others follows."""
SLACK: Final = 4.0
"""Bounds that a result may be off which is another quantity, or a multiple of its own."""


@dataclass(frozen=True)
class Glance:
    """What is said at once, and what it leaves to be explained: nothing, if it says it all."""

    text: str
    rest: tuple[Sample, ...] = ()
    of_convention: bool = False


def glance(samples: Sequence[Sample]) -> Glance | None:
    """What is seen of answers, of which some fail; None where there is more to it."""
    failing = sorted((s for s in samples if s.failing), key=lambda sample: sample.weight)
    if not failing:
        return None
    if (seen := of_dtype(failing, samples)) is not None:
        return seen
    looks: tuple[Callable[[Sequence[Sample]], str | None], ...] = (constant, exchanged, scaled)
    for look in looks:
        if (text := look(failing)) is not None:
            return Glance(text)
    text = convention(failing, [s for s in samples if not s.failing])
    return None if text is None else Glance(text, of_convention=True)


# --- numbers that are the same everywhere ----------------------------------------------------


def constant(failing: Sequence[Sample]) -> str | None:
    """Quantities that hold one number, whatever the inputs; gradients are told of elsewhere."""
    if known_profiles()[failing[0].case.profile].base or not any(s.case.generic for s in failing):
        return None
    found = dict[str, list[str]]()
    for name in failing[0].case.quantities:
        told = [s.outputs[name] for s in failing if name in s.failing and name in s.outputs]
        if not told or all(array.size < 2 for array in told):
            continue
        with np.errstate(all="ignore"):
            numbers = {
                repr(float(x) + 0.0) for array in told for x in np.unique(array.astype(float))
            }
        if len(numbers) == 1:
            number = numbers.pop()
            found.setdefault({"nan": "NaN"}.get(number, number.removesuffix(".0")), []).append(name)
    if not found:
        return None
    parts = [
        f"every entry of {listed(names)} is {number}, whatever the inputs"
        for number, names in found.items()
    ]
    return "; ".join(parts)


# --- the dtype -------------------------------------------------------------------------------


def of_dtype(failing: Sequence[Sample], samples: Sequence[Sample]) -> Glance | None:
    """Results in another dtype than asked for; the rest is what is wrong with their values."""
    odd = dict[str, set[str]]()
    for sample in failing:
        for name in sample.failing:
            if name in sample.outputs and sample.outputs[name].dtype.name != sample.dtype:
                odd.setdefault(sample.outputs[name].dtype.name, set()).add(name)
    if len(odd) != 1 or not odd.keys() <= FORMATS.keys():
        return None
    ((given, named),) = odd.items()
    dtype = failing[0].dtype
    names = [name for name in failing[0].case.quantities if name in named]
    verb = "is" if len(names) == 1 else "are"
    text = f"{listed(names)} {verb} {given} where the inputs are {dtype}"
    if given == "float64":
        text += (
            ": NumPy 2 makes float64 of an array that meets a NumPy scalar of it, such as "
            "np.sqrt(7); X.dtype.type(…) around the scalar keeps the dtype"
        )
    else:
        text += f": .astype(X.dtype) brings {'it' if len(names) == 1 else 'them'} back"
    rest = tuple(_cast(sample, given) for sample in samples)
    wrong = any(sample.failing for sample in rest)
    return Glance(text if wrong else f"{text}; the values are right", rest if wrong else ())


def _cast(sample: Sample, given: str) -> Sample:
    """The answer in the dtype that was asked for, with what fails even so.

    What came back in a coarser one has its rounding.
    """
    kind = next(a.dtype for a in sample.case.inputs(sample.dtype).values() if a.dtype.kind in "fV")
    if all(array.dtype == kind for array in sample.outputs.values()):
        return sample
    with np.errstate(all="ignore"):
        outputs = {name: array.astype(kind) for name, array in sample.outputs.items()}
    cast = replace(sample, outputs=outputs)
    coarser = FORMATS[given].precision < FORMATS[sample.dtype].precision
    held = Arithmetic.for_dtype(given) if coarser else sample.arithmetic
    wrong = Examined(replace(cast, arithmetic=held)).wrong
    return replace(cast, failing=tuple(name for name in sample.failing if name in wrong))


# --- the right numbers, under another name or times a factor ---------------------------------


@dataclass(frozen=True)
class _True:
    """What the equations make of the inputs of an answer, and how far rounding may take it."""

    sample: Sample

    @cached_property
    def values(self) -> Mapping[str, Array]:
        case = self.sample.case
        inputs = {n: _wide(a) for n, a in case.inputs(self.sample.dtype).items()}
        return compute(case.program, inputs, case.bindings, "float64")

    @cached_property
    def bounds(self) -> Mapping[str, Array]:
        case, sample = self.sample.case, self.sample
        inputs = case.inputs(sample.dtype)
        return rounding.bounds(case.program, inputs, case.bindings, sample.arithmetic)

    def is_near(self, value: Array, name: str, factor: float = 1.0) -> bool:
        """Whether a returned value is a quantity times a factor."""
        expected = self.values.get(name)
        if expected is None or value.shape != expected.shape:
            return False
        with np.errstate(all="ignore"):
            far = np.abs(_wide(value) - factor * expected)
            room = SLACK * abs(factor) * self.bounds[name]
            return bool(np.all(far <= np.broadcast_to(room, far.shape)))


def _wide(array: Array) -> Array:
    return array if array.dtype.kind in "bi" else array.astype(np.float64)


def _plain(failing: Sequence[Sample]) -> list[_True]:
    """The failing answers of which values are compared; none where they are not what they seem."""
    profile = known_profiles()[failing[0].case.profile]
    usable = [s for s in failing if not s.case.masked and 0 not in s.case.sizes.values()]
    sharp = any(s.case.generic and min(s.case.sizes.values()) > 1 for s in usable)
    other = any(
        s.conventions.get(name, "") != CONVENTIONS[name].default
        for s in usable
        for name in s.conventions
    )
    return [_True(s) for s in usable] if sharp and not profile.base and not other else []


def exchanged(failing: Sequence[Sample]) -> str | None:
    """Quantities that are each other: another order of results, or another name."""
    answers, meant = _plain(failing), dict[str, str]()
    if not answers:
        return None
    # The largest answer tells best which quantity it is.
    first = next(
        a for a in answers if a.sample.case.generic and min(a.sample.case.sizes.values()) > 1
    )
    for name, value in first.sample.outputs.items():
        candidates = (name, *(n for n in first.values if n != name))
        found = next((n for n in candidates if first.is_near(value, n)), None)
        if found is None:
            return None
        meant[name] = found
    moved = {name: other for name, other in meant.items() if name != other}
    if not moved or len(set(meant.values())) < len(meant):
        return None
    if not all(a.is_near(v, meant[n]) for a in answers for n, v in a.sample.outputs.items()):
        return None
    told = listed([f"what comes back as {name} is {other}" for name, other in moved.items()])
    return f"{told}: the results are right, in another order or under another's name"


def scaled(failing: Sequence[Sample]) -> str | None:
    """Quantities on the way that come back times a factor, while all else is right."""
    answers = _plain(failing)
    if not answers:
        return None
    last = answers[0].sample.case.declared.last
    names = {
        name
        for a in answers
        for name in a.sample.outputs
        if not a.is_near(a.sample.outputs[name], name)
    }
    if not names or last in names:
        return None
    texts = []
    for name in sorted(names, key=answers[0].sample.case.quantities.index):
        label = next(
            (
                words
                for words, factor in FACTORS.items()
                if all(_is_multiple(a, name, factor) for a in answers)
            ),
            None,
        )
        if label is None:
            return None
        texts.append(f"{name} comes back as {label.format(name)}")
    return (
        f"{listed(texts)}, and what is computed from it is right: report what the equation makes, "
        "before it is scaled, or leave it out"
    )


def _is_multiple(answer: _True, name: str, factor: Callable[[float], float]) -> bool:
    value = answer.sample.outputs.get(name)
    width = _width(answer.sample.case)
    return value is None or answer.is_near(value, name, factor(width))


def _width(case: Case) -> float:
    """How many terms a score sums."""
    scored = next(
        (e for e in case.program.equations if e.target.name == "Ω"), case.program.equations[0]
    )
    queries = scored.operands[0]
    axes = case.program.tensors[queries].axes
    width = float(fold(axes[-1], case.sizes).rational())
    return width / case.sizes.get("h", 1) if axes[0] != Ref("h") else width


FACTORS: Final[Mapping[str, Callable[[float], float]]] = {
    "{} / sqrt(c)": lambda c: c**-0.5,
    "{} / sqrt(sqrt(c))": lambda c: c**-0.25,
    "{} / c": lambda c: 1 / c,
    "{} * sqrt(c)": lambda c: c**0.5,
    "{} * log2(e) / sqrt(c)": lambda c: np.log2(np.e) * c**-0.5,
    "{} * log2(e)": lambda c: float(np.log2(np.e)),
    "-{}": lambda c: -1.0,
}
"""What kernels multiply scores or queries by; c is the width of a head."""


# --- conventions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Presented(Case):
    """A case whose inputs mean something else to who has chosen otherwise."""

    arrays: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def inputs(self, dtype: str, draw: int = 0) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.arrays.items()}


def convention(failing: Sequence[Sample], passing: Sequence[Sample]) -> str | None:
    """The choice of a convention under which every answer that was kept is right."""
    chosen = failing[:LOOKED_AT]
    for name, option in _choices():
        if failing[0].conventions.get(name) == option:
            continue
        if all(_is_right(s, name, option, s.failing) for s in chosen):
            # What was right has to be right under this choice as well.
            beside = [s for s in passing if s.case.variant == failing[0].case.variant][:LOOKED_AT]
            if all(_is_right(s, name, option, s.case.results) for s in beside):
                return (
                    "the results are those of another convention: declare "
                    f'conventions.{name} = "{option}" if that is meant'
                )
    return None


def _choices() -> Iterator[tuple[str, str]]:
    for name, known in CONVENTIONS.items():
        for option in known.options:
            if option != known.default:
                yield name, option


def _is_right(sample: Sample, name: str, option: str, quantities: Sequence[str]) -> bool:
    """Whether quantities of an answer pass under another choice, which makes a difference to it."""
    case = replace(sample.case, exact=())
    conventions = dict(sample.conventions)
    if name in OF_VALUES:
        conventions[name] = option
    else:
        inputs = case.inputs(sample.dtype)
        turned = presented(case.profile, inputs, {name: option})
        if any(turned[n].shape != inputs[n].shape for n in inputs):
            return False
        known = {part.name: getattr(case, part.name) for part in fields(case)}
        case = _Presented(**known, arrays=turned)
    question = Question(case, sample.dtype, sample.arithmetic, conventions=conventions)
    verdicts = judge(question, sample.outputs)
    return not any(verdicts[quantity].status == "failed" for quantity in quantities)
