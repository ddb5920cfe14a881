"""From a port's outputs to verdicts: the clauses, folded over.

A `Question` holds all that is known before a port answers: inputs, certified values, bounds,
proven exactness. `judge` compares an answer with it, one verdict per quantity. What
compares several answers with each other, clause `metamorphic`, lives in the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import exactness, rounding, spread
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.enclosures import enclosure
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.formats import FORMATS, Format, widened
from qkvac.spec.grammar.equations import Program
from qkvac.spec.grammar.normal_form import logits, normal
from qkvac.spec.profile import Profile
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts import clauses, comparisons, statuses
from qkvac.spec.verdicts.comparisons import Answer, Certify, Comparison

VACUOUS_SHARE: Final = 0.1
"""More vacuous entries than this, and a cell that passes proves too little to count."""

SUSPICIOUS_Z: Final = 8.0
SUSPICIOUS_RMS: Final = 2.0


@dataclass(frozen=True)
class Worst:
    """The entry with the largest error in units of its bound."""

    index: tuple[int, ...]
    value: float
    certified: float
    error: float
    bound: float


@dataclass(frozen=True)
class Verdict:
    """What is known about one quantity of one answer.

    `clause` is the word of the clause that failed, and None otherwise; `ratio` the largest
    error over bound of the clauses that were tried; `resolution` the largest bound over the
    quantity's largest |value|; `ulp` the largest error in units in the last place; `z` and `rms`
    the error in standard deviations of the rounding model; `bits` the effective precision.
    """

    quantity: str
    status: str
    grade: str | None = None
    clause: str | None = None
    reason: str | None = None
    worst: Worst | None = None
    ratio: float = 0.0
    resolution: float = 0.0
    ulp: float = 0.0
    z: float | None = None
    rms: float | None = None
    bits: float | None = None
    resembles: str | None = None
    """A coarser format that the errors look like, when the effective precision is too low."""
    bitwise: bool = False
    """Whether bits decided, so that no bound had to."""
    empty: bool = False
    """Whether the quantity has no entries: decisive, but no evidence."""
    reading: tuple[str, ...] = ()
    """Reported operands on which clause `local` passed, or was judged last."""


@dataclass(frozen=True)
class Question:
    """A case in a dtype, put to implementations that declare one arithmetic model."""

    case: Case
    dtype: str
    arithmetic: Arithmetic
    draw: int = 0
    certify: Certify = enclosure.certify
    conventions: Mapping[str, str] = field(default_factory=dict)
    """Declared choices that differ from the spec's own; layouts of what is given play no part."""

    @cached_property
    def profile(self) -> Profile:
        return known_profiles()[self.case.profile]

    @cached_property
    def program(self) -> Program:
        return self.case.program

    @cached_property
    def inputs(self) -> Mapping[str, np.ndarray]:
        return self.case.inputs(self.dtype, self.draw)

    @property
    def sizes(self) -> Mapping[str, Any]:
        return self.case.bindings

    @cached_property
    def contract(self) -> Mapping[str, tuple[int, ...]]:
        """The shape that each tensor must have."""
        given = {name: array.shape for name, array in self.inputs.items()}
        return shapes.contract(self.program, dict(self.sizes), given=given)

    @property
    def bounds(self) -> Mapping[str, np.ndarray]:
        """Clause `bound`: the propagated rounding bound of every quantity."""
        return self._propagated[0]

    @cached_property
    def _propagated(self) -> tuple[Mapping[str, np.ndarray], frozenset[str]]:
        """Bounds of all quantities, and those that are computed from a part out of range."""
        bounds, beyond = dict[str, np.ndarray](), set[str]()
        for program in map(normal, self.case.alternatives):
            found = rounding.evaluated(
                *(program, self.inputs, self.sizes, self.arithmetic), {}, self.conventions
            )
            beyond |= _with_part_beyond(program, found, self.arithmetic)
            for name in (e.target.name for e in program.equations if not e.part):
                bound = found.bounds[name]
                bounds[name] = np.maximum(bounds[name], bound) if name in bounds else bound
        return bounds, frozenset(beyond)

    def limits(
        self,
        programs: Iterable[Program],
        operands: Mapping[str, np.ndarray],
        inherited: Mapping[str, int] | None = None,
    ) -> Mapping[str, np.ndarray]:
        """The largest rounding bound of each quantity over programs of the same exact values."""
        found = dict[str, np.ndarray]()
        for program in programs:
            bounds = rounding.bounds(
                *(program, operands, self.sizes, self.arithmetic),
                inherited=inherited,
                conventions=self.conventions,
            )
            for name, bound in bounds.items():
                found[name] = np.maximum(found[name], bound) if name in found else bound
        return found

    @cached_property
    def certified(self) -> Mapping[str, Enclosure]:
        return self.certify(
            self.program,
            self.inputs,
            self.sizes,
            self.dtype,
            bound=self.bounds,
            exact=self.case.exact,
            conventions=self.conventions,
        )

    @cached_property
    def exactness(self) -> Mapping[str, exactness.Exactness]:
        return exactness.exact(
            self.program, dict(self.inputs), self.sizes, self.arithmetic, self.conventions
        )

    @cached_property
    def sigma(self) -> Mapping[str, np.ndarray]:
        return spread.spread(
            self.program, self.inputs, self.sizes, self.arithmetic, self.conventions
        )

    @cached_property
    def undefined(self) -> Mapping[str, np.ndarray]:
        """Entries that are NaN, as the declared convention for rows without keys has it."""
        nothing = self.conventions.get("empty_row") != "NaN"
        return {
            name: np.zeros(value.hi.shape, bool) if nothing else np.isnan(value.hi)
            for name, value in self.certified.items()
        }

    @cached_property
    def may_overflow(self) -> frozenset[str]:
        """Quantities of which finiteness is not asked: out of range, or computed from such.

        A text need not name what leaves the range: the product in `softmax(Q @ K.T / sqrt(c))`
        does not say so itself.
        """
        loose = set(self._propagated[1])
        for equation in self.program.equations:
            name = equation.target.name
            if not loose.isdisjoint(equation.operands):
                loose.add(name)
            elif not equation.part:
                reach = np.abs(self.certified[name].hi) + self.bounds[name]
                within = (reach <= self.format_of(name).largest) | self.undefined[name]
                if not np.all(within):
                    loose.add(name)
        return frozenset(loose)

    def format_of(self, name: str) -> Format:
        """The format in which a quantity is held while it is computed."""
        return FORMATS[self.arithmetic.scores if name == "Ω" else self.arithmetic.storage]

    def asks_bits(self, name: str) -> bool:
        """Whether clause `exact` binds this quantity under the declared arithmetic model."""
        if name not in self.case.exact:
            return False
        proof = self.exactness[name]
        bound = not proof.through_softmax or self.arithmetic.softmax == "shifted, divided"
        return bound and bool(np.all(proof.holds))


def _with_part_beyond(
    program: Program, found: rounding.Rounding, arithmetic: Arithmetic
) -> frozenset[str]:
    """Targets of a normal form that refer to a part out of range, directly or through parts."""
    scores, loose, affected = logits(program), set[str](), set[str]()
    for equation in program.equations:
        name = equation.target.name
        inherits = not loose.isdisjoint(equation.operands)
        if not equation.part:
            affected |= {name} if inherits else set()
            continue
        held = FORMATS[arithmetic.scores if name in scores else arithmetic.storage]
        with np.errstate(all="ignore"):
            reach = np.abs(found.values[name]) + found.bounds[name]
        if inherits or np.any(reach > held.largest):
            loose.add(name)
    return frozenset(affected)


def judge(question: Question, outputs: Mapping[str, np.ndarray]) -> dict[str, Verdict]:
    """A verdict for every quantity of the profile, in its order.

    `outputs` maps quantities to arrays as the port returned them; what is absent is `missing` if
    it is the profile's last quantity, or a gradient asked for, and `not reported` otherwise.
    """
    usable = {
        name: array
        for name, array in outputs.items()
        if name in question.case.quantities and _usable(question, name, array)
    }
    return {
        name: _judge_one(question, name, outputs.get(name), usable)
        for name in question.case.quantities
    }


def _usable(question: Question, name: str, array: np.ndarray) -> bool:
    """Whether later equations can be re-evaluated on this array."""
    if array.shape != question.contract[name] or array.dtype.kind not in "fV":
        return False
    if name in question.may_overflow:
        return True
    return bool(np.all(np.isfinite(widened(array)) | question.undefined[name]))


def _judge_one(
    question: Question, name: str, value: np.ndarray | None, reported: Mapping[str, np.ndarray]
) -> Verdict:
    if value is None:
        if name in question.case.results:
            reason = f"{name} is what the profile is for"
            if question.profile.base:
                reason = f"no gradient of {name.removeprefix('d')} came back"
            return Verdict(name, statuses.MISSING.name, reason=reason)
        return Verdict(name, statuses.NOT_REPORTED.name, reason="not returned by the port")
    answer = Answer(question, name, value, reported)
    wrong, tried = _asked(answer, of_form=True)
    if wrong is not None:
        return wrong
    nothing = value.size == 0
    if nothing or question.undefined[name].all():
        return Verdict(name, statuses.PASSED.name, grade="exact", bitwise=True, empty=nothing)
    wrong, tried = _asked(answer, of_form=False)
    if wrong is not None:
        return wrong
    last = tried[-1]
    return (
        _by_bits(answer, last) if clauses.named(last.clause).decides else _by_bounds(answer, tried)
    )


def _asked(answer: Answer, *, of_form: bool) -> tuple[Verdict | None, list[Comparison]]:
    """What the clauses make of an answer, in their order: a verdict, or errors beside bounds."""
    tried = list[Comparison]()
    for clause in clauses.CLAUSES:
        if clause.of_form != of_form or clause.word not in comparisons.COMPARE:
            continue
        found = comparisons.COMPARE[clause.word](answer)
        if isinstance(found, str):
            failed = statuses.FAILED.name
            return Verdict(answer.name, failed, clause=clause.word, reason=found), tried
        if found is not None:
            tried.append(found)
            if clause.decides:
                break
    return None, tried


def _by_bits(answer: Answer, comparison: Comparison) -> Verdict:
    verdict = Verdict(answer.name, statuses.PASSED.name, grade="exact", bitwise=True)
    if comparison.holds:
        return verdict
    return replace(
        verdict,
        status=statuses.FAILED.name,
        grade=None,
        clause=comparison.clause,
        reason=_failure(answer, comparison),
        worst=_worst(comparison, answer.value),
        ratio=np.inf,
        ulp=_largest_ulp(answer),
    )


def _by_bounds(answer: Answer, tried: Sequence[Comparison]) -> Verdict:
    failed = next((comparison for comparison in tried if not comparison.holds), None)
    decisive = min(tried, key=lambda c: float(np.sum(c.bound)))
    z, rms, bits, resembles = _deviation(answer)
    resolution = comparisons.resolution(answer, tried)
    verdict = Verdict(
        answer.name,
        statuses.PASSED.name,
        grade="conforming",
        worst=_worst(failed or decisive, answer.value),
        ratio=max(comparison.ratio for comparison in tried),
        resolution=resolution.worst,
        ulp=_largest_ulp(answer),
        z=z,
        rms=rms,
        bits=bits,
        resembles=resembles,
        reading=next((comparison.reading for comparison in tried if comparison.reading), ()),
    )
    if failed is not None:
        return replace(
            verdict,
            status=statuses.FAILED.name,
            grade=None,
            clause=failed.clause,
            reason=_failure(answer, failed),
        )
    if answer.name in answer.question.case.exact and comparisons.bits(answer).holds:
        # Bits that nobody had to deliver say more than any bound.
        return replace(verdict, grade="exact", bitwise=True)
    indecisive = statuses.INDECISIVE.name
    if resolution.vacuous > VACUOUS_SHARE:
        reason = f"the bound says nothing about {resolution.vacuous:.0%} of the entries"
        if answer.excused.any():
            reason = (
                f"{np.mean(answer.excused):.0%} of the entries are not finite, after an overflow"
            )
        return replace(verdict, status=indecisive, grade=None, reason=reason)
    if any(comparison.blurred for comparison in tried):
        reason = "the certified values are not sharp enough for the bound"
        return replace(verdict, status=indecisive, grade=None, reason=reason)
    if verdict.ulp <= 1.0:
        return replace(verdict, grade="faithful")
    if z is not None and rms is not None and (z > SUSPICIOUS_Z or rms > SUSPICIOUS_RMS):
        reason = f"z = {z:.1f}, rms = {rms:.1f} of the rounding model"
        return replace(verdict, grade="suspicious", reason=reason)
    return verdict


def _deviation(
    answer: Answer,
) -> tuple[float | None, float | None, float | None, str | None]:
    """Largest and root-mean-square error in standard deviations, and the effective precision.

    Only generic data have them.
    """
    question, name = answer.question, answer.name
    if not question.case.generic or answer.excused.any():
        return None, None, None, None
    sigma, error = question.sigma[name], question.certified[name].least_error(answer.value)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        deviation = np.where(error == 0, 0.0, error / sigma)
    z, rms = float(np.max(deviation)), float(np.sqrt(np.mean(deviation**2)))
    estimate = spread.effective_bits(error, sigma, question.arithmetic)
    return z, rms, estimate.bits, estimate.resembles


def _largest_ulp(answer: Answer) -> float:
    certified, value = answer.question.certified[answer.name], answer.value
    spacing = comparisons.spacing(certified.hi, comparisons.format_of(value))
    with np.errstate(invalid="ignore"):
        ulps = certified.error(value) / spacing
    finite = ulps[np.isfinite(ulps)]
    return float(np.max(finite)) if finite.size else 0.0


def _worst(comparison: Comparison, value: np.ndarray) -> Worst:
    index = comparison.worst_index
    return Worst(
        index,
        float(value[index]),
        float(comparison.certified[index]),
        float(comparison.error[index]),
        float(comparison.bound[index]),
    )


def _failure(answer: Answer, failed: Comparison) -> str:
    """What is wrong, in words; of a gradient that is 0 everywhere and must not be, that."""
    name, question = answer.name, answer.question
    if name in question.case.results and question.profile.base and not np.any(answer.value):
        return f"no gradient reaches {name.removeprefix('d')}: {name} is 0 everywhere"
    return clauses.named(failed.clause).failure.format(
        count=failed.count, size=answer.value.size, reading=", ".join(failed.reading)
    )
