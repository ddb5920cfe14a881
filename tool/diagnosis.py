"""The diagnosis: which fault of the catalogue reproduces what a failing port returned.

A candidate is a faulty program. Like clause L, it is evaluated equation by equation on the port's
own reported operands, so that an early mistake does not blur a later one; where the port reports
none, it is evaluated from the inputs. A formula is evaluated in float64 and has rounding bounds of
its own; poor arithmetic is carried out in the port's dtype, and what may differ is the rounding of
the declared equation, twice: the port's and ours.

A candidate explains an answer if everything reported lies within those limits, and if it accounts
for the deviation: at most a quarter of the distance to the declared values may be left. It is
offered only if it explains every failing answer that was kept, and contradicts no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import permutations, product
from typing import Any, Final

import numpy as np

from qkvac.differences import Difference, difference
from qkvac.spec import faulty, rounding
from qkvac.spec.attention import PROFILES, Arithmetic, Profile
from qkvac.spec.cases import Case
from qkvac.spec.faults import FAULTS, Fault
from qkvac.spec.formats import FORMATS
from qkvac.spec.rewriting import Rewrite, derived, operations, rewritten
from qkvac.spec.syntax import Program

Array = np.ndarray[Any, Any]

LEFT: Final = 0.25
"""The share of the deviation from the declared values that an explanation may leave."""
PATIENCE: Final = 8.0
"""Seconds that a diagnosis may take."""
GLANCE: Final = 0.02
"""A result further off than this share of its largest entry is not looked at twice."""
_IMPOSSIBLE: Final = (ValueError, ZeroDivisionError, IndexError)
"""What a faulty program raises for shapes that it cannot be computed for."""
ENTRIES: Final = 1 << 15
"""Answers with more entries in a quantity are not kept for a diagnosis."""
OFFERED: Final = 3
"""How many faults that explain everything are named, besides the best."""


@dataclass(frozen=True)
class Sample:
    """An answer: what was asked and returned, and which quantities failed by value.

    One in which nothing failed is evidence, too: an explanation must not contradict it.
    """

    case: Case
    dtype: str
    arithmetic: Arithmetic
    outputs: Mapping[str, Array] = field(hash=False)
    failing: tuple[str, ...]
    conventions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Declared choices that change results."""

    @property
    def weight(self) -> int:
        return sum(array.size for array in self.outputs.values())


@dataclass(frozen=True)
class Explanation:
    """Faults that together reproduce every failing answer; `left` is the share that they leave."""

    faults: tuple[Fault, ...]
    left: float

    @property
    def what(self) -> str:
        return " and ".join(fault.what for fault in self.faults)


@dataclass(frozen=True)
class Diagnosis:
    """The best explanation, and others that the failing answers cannot tell from it."""

    quantity: str
    """The last one that failed, and is reproduced."""
    best: Explanation
    others: tuple[Explanation, ...] = ()

    @property
    def of_precision(self) -> bool:
        """Whether poor arithmetic explains it, and no formula does."""
        return all(fault.kind == "arithmetic" for fault in self.best.faults)

    def __str__(self) -> str:
        text = f"{self.quantity} equals the result with {self.best.what}"
        if self.others:
            alike = "; ".join(other.what for other in self.others[:OFFERED])
            text += f" (on these cases no different from: {alike})"
        return text


Maker = Callable[[Program], Program]
"""From declared equations to faulty ones; those in which the fault has no place stay as they are.

The answers of a profile may be about several of its variants.
"""


def diagnose(samples: Sequence[Sample], patience: float = PATIENCE) -> Diagnosis | None:
    """What explains all samples, which are of one subject and one profile; None if nothing does."""
    ordered = sorted(samples, key=lambda s: (not s.failing, s.weight))
    kept = [_Answer(sample) for sample in ordered]
    if not kept or not ordered[0].failing:
        return None
    deadline = time.monotonic() + patience
    programs = {answer.program for answer in kept if answer.sample.failing}
    # A variant that never fails may be computed by other lines of the port.
    kept = [answer for answer in kept if answer.program in programs]
    faults = [f for f in FAULTS.values() if f.kind != "behaviour" and any(map(f.program, programs))]
    found = list[Explanation]()
    for fault in faults:
        left = _explained(partial(_of, fault), kept, deadline)
        if left is not None:
            found.append(Explanation((fault,), left))
    if not found:
        found = list(_together(faults, kept, deadline))
    if not found:
        return None
    # A formula is a simpler explanation than an accident of arithmetic that looks the same.
    found.sort(key=lambda e: (not e.faults[0].structural, e.left))
    best, *others = found
    failed = {name for answer in kept for name in answer.sample.failing}
    last = next(name for name in reversed(kept[0].profile.quantities) if name in failed)
    return Diagnosis(last, best, tuple(others))


def _explained(make: Maker, answers: Sequence[_Answer], deadline: float) -> float | None:
    """The largest share left by a candidate; None if it does not explain some answer."""
    worst = 0.0
    for answer in answers:
        left = None
        if time.monotonic() < deadline:
            # What cannot be made of these equations, or computed for these sizes, explains nothing.
            with suppress(Exception):
                left = answer.left(make(answer.program))
        if left is None:
            return None
        worst = max(worst, left)
    return worst


def _together(
    faults: Sequence[Fault], answers: Sequence[_Answer], deadline: float
) -> Iterator[Explanation]:
    """Two formulas at once, or one for each equation that goes wrong by itself."""
    failing = [answer for answer in answers if answer.sample.failing]
    # Single tokens and the like hide faults; the answer in which most is wrong shows them all.
    first = max(failing, key=lambda answer: len(answer.wrong))
    program, wrong = first.program, first.wrong
    formulas = [
        fault
        for fault in faults
        if fault.structural
        and fault.program(program)
        and (_changed(first, _of(fault, program)) & wrong or not first.complete)
    ]
    for chosen, make in _candidates(formulas, first):
        if time.monotonic() > deadline:
            return
        possible = False
        with suppress(Exception):
            candidate = make(program)
            fits = not first.complete or wrong <= first.changed(candidate)
            possible = fits and first.plausible(candidate)
        if not possible:
            continue
        left = _explained(make, answers, deadline)
        if left is not None:
            yield Explanation(chosen, left)
            return


def _candidates(
    formulas: Sequence[Fault], answer: _Answer
) -> Iterator[tuple[tuple[Fault, ...], Maker]]:
    """One formula for each wrong equation; two formulas; two that share an equation, in order."""
    program = answer.program
    for chosen in _by_equation(formulas, answer):
        yield chosen, partial(_with, tuple(rule for fault in chosen for rule in fault.rules))
    changed = {fault.name: _changed(answer, _of(fault, program)) for fault in formulas}
    for one, two in permutations(formulas, 2):
        if changed[one.name] & changed[two.name]:
            yield (one, two), partial(_in_turn, one, two)
        elif one.name < two.name:
            yield (one, two), partial(_with, (*one.rules, *two.rules))


def _changed(answer: _Answer, candidate: Program) -> frozenset[str]:
    """Which quantities a candidate changes; none where it cannot be computed for the answer."""
    with suppress(Exception):
        return frozenset(answer.changed(candidate))
    return frozenset()


def _of(fault: Fault, program: Program) -> Program:
    return fault.program(program) or program


def _with(rules: tuple[Rewrite, ...], program: Program) -> Program:
    return rewritten(program, rules) or program


def _in_turn(one: Fault, two: Fault, program: Program) -> Program:
    first = _of(one, program)
    return rewritten(first, two.rules) or first


def _by_equation(formulas: Sequence[Fault], answer: _Answer) -> Iterator[tuple[Fault, ...]]:
    """Combinations of formulas that each reproduce one quantity from the reported operands."""
    choices = []
    for name in sorted(answer.wrong):
        suited = []
        for fault in formulas:
            candidate = _of(fault, answer.program)
            if _changed(answer, candidate) == {name}:
                difference = answer.compare(candidate, name)
                if difference is not None and difference.within:
                    suited.append(fault)
        choices.append(suited)
    if len(choices) > 1:
        yield from product(*choices)


class _Answer:
    """A sample, and what has been evaluated on its operands already."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._compared = dict[tuple[Program, str, bool], Difference | None]()

    @cached_property
    def profile(self) -> Profile:
        return PROFILES[self.sample.case.profile]

    @cached_property
    def program(self) -> Program:
        return self.sample.case.program

    @cached_property
    def inputs(self) -> Mapping[str, Array]:
        return self.sample.case.inputs(self.sample.dtype)

    @cached_property
    def reported(self) -> tuple[str, ...]:
        """Quantities with the declared shape, in the order of the equations."""
        names = [equation.target.name for equation in self.program.equations]
        return tuple(name for name in names if name in self.sample.outputs)

    @property
    def complete(self) -> bool:
        """Whether every quantity is reported."""
        return len(self.reported) == len(self.program.equations)

    def changed(self, candidate: Program) -> set[str]:
        """Targets whose equation is not the declared one."""
        pairs = zip(candidate.equations, self.program.equations, strict=True)
        return {new.target.name for new, old in pairs if new.expression != old.expression}

    @cached_property
    def wrong(self) -> set[str]:
        """Quantities whose declared equation does not hold on the reported operands."""
        found = {name: self.compare(self.program, name) for name in self.reported}
        return {
            name for name, difference in found.items() if not (difference and difference.within)
        }

    def plausible(self, candidate: Program) -> bool:
        """Whether the last reported quantity looks like the candidate's, at a glance."""
        name = self.reported[-1]
        part = candidate.restricted(frozenset(self.reported) - {name}, name)
        whole = candidate.restricted(frozenset(), name)
        for considered in (part,) if part == whole else (part, whole):
            try:
                expected = self._computed(considered, candidate, "float64")[name]
            except _IMPOSSIBLE:
                return False
            value = self.sample.outputs[name].astype(np.float64)
            if expected.shape == value.shape:
                with np.errstate(all="ignore"):
                    far = np.nanmax(np.abs(value - expected), initial=0.0)
                    if far <= GLANCE * np.nanmax(np.abs(value), initial=0.0):
                        return True
        return False

    def left(self, candidate: Program) -> float | None:
        """The share of the deviation that the candidate leaves; None if it does not explain it."""
        changed = self.changed(candidate)
        first = next(iter(self.sample.failing), None)
        if first is not None and first not in changed and self._local(first):
            return None
        worst = None if self.sample.failing else 0.0
        for name in reversed(self.reported):
            new = self.compare(candidate, name)
            if new is None or not new.within:
                return None
            if name in self.sample.failing and (name in changed or not self._local(name)):
                old = self.compare(self.program, name, _is_poor(candidate))
                if name not in changed and old is not None and old.within:
                    continue  # it is right about operands that are wrong
                left = new.left(old) if old is not None else 0.0
                worst = worst if left is None else max(worst or 0.0, left)
        return worst if worst is not None and worst <= LEFT else None

    def _local(self, name: str) -> bool:
        """Whether all operands of an equation are reported, or inputs."""
        known = {*self.reported, *(tensor.name for tensor in self.program.inputs)}
        tensors = set(self.program.equation(name).operands) & set(self.program.tensors)
        return tensors <= known

    def compare(self, candidate: Program, name: str, carry: bool = False) -> Difference | None:
        """A reported quantity beside what the candidate makes of the reported operands.

        `carry` has it carried out in the port's dtype, like poor arithmetic. None where the
        candidate cannot be computed for these shapes.
        """
        part = candidate.restricted(frozenset(self.reported) - {name}, name)
        found = self._known(part, candidate, name, carry)
        own = {tensor.name for tensor in self.program.inputs}
        whole = candidate.restricted(frozenset(), name)
        if (found is None or not found.within) and not own.issuperset(t.name for t in part.inputs):
            # A port may go on from other numbers than those that it reports.
            from_inputs = self._known(whole, candidate, name, carry)
            if from_inputs is not None and from_inputs.within:
                return from_inputs
        return found

    def _known(
        self, part: Program, candidate: Program, name: str, carry: bool
    ) -> Difference | None:
        # Derived parameters have the same values in all candidates.
        poor = carry or _is_poor(part)
        key = (part, name, poor)
        if key not in self._compared:
            self._compared[key] = self._compare(part, candidate, name, poor)
        return self._compared[key]

    def _compare(
        self, part: Program, candidate: Program, name: str, poor: bool
    ) -> Difference | None:
        sample, value = self.sample, self.sample.outputs[name]
        given = [tensor.name for tensor in part.inputs if tensor.name not in self.inputs]
        sizes = derived(self.program, candidate, sample.case.bindings)
        try:
            computed = self._computed(part, candidate, sample.dtype if poor else "float64")
            expected = computed[name].astype(np.float64)
            if expected.shape != value.shape:
                return None
            limit = self._limit(part, self._operands(part), sizes, name, given, poor)
        except Exception:  # what cannot be evaluated for these operands explains nothing
            return None
        return difference(value.astype(np.float64), expected, limit, sample.dtype)

    def _operands(self, part: Program) -> dict[str, Any]:
        outputs = self.sample.outputs
        return {t.name: outputs.get(t.name, self.inputs.get(t.name)) for t in part.inputs}

    def _computed(self, part: Program, candidate: Program, dtype: str) -> dict[str, Array]:
        sizes = derived(self.program, candidate, self.sample.case.bindings)
        return faulty.compute(part, self._operands(part), sizes, dtype)

    def _limit(
        self,
        part: Program,
        operands: Mapping[str, Any],
        sizes: Mapping[str, Any],
        name: str,
        given: Sequence[str],
        poor: bool,
    ) -> Array:
        model = self.sample.arithmetic
        wider = FORMATS[model.storage].precision < FORMATS[model.accumulation].precision
        inherited = dict.fromkeys(given, 2 if wider else 1)
        if poor:
            declared = self.program.restricted(frozenset(given), name)
            known = {t.name: operands.get(t.name, self.inputs.get(t.name)) for t in declared.inputs}
            limits = rounding.bounds(declared, known, sizes, model, inherited=inherited)
            return np.asarray(2 * limits[name])
        own = Arithmetic.for_dtype("float64")
        limits = faulty.bounds(part, operands, sizes, model, inherited)
        return np.asarray(limits[name] + faulty.bounds(part, operands, sizes, own, {})[name])


def _is_poor(program: Program) -> bool:
    return any(faulty.is_poor(operation) for operation in operations(program))
