"""Answers that failed, beside what faulty equations make of the same inputs.

A candidate is evaluated equation by equation on the port's own reported operands, or from the
inputs where the port reports none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from qkvac.diagnosis.attempts import IMPOSSIBLE, attempt
from qkvac.diagnosis.differences import Difference, difference
from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import rounding
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.faults import evaluator
from qkvac.spec.faults.rewriting import derived, operations
from qkvac.spec.formats import FORMATS
from qkvac.spec.grammar.syntax import Program
from qkvac.spec.profile import Profile
from qkvac.spec.registry import known_profiles

Array = np.ndarray[Any, Any]

LEFT: Final = 0.25
"""The share of the deviation from the declared values that an explanation may leave."""
GLANCE: Final = 0.02
"""A result further off than this share of its largest entry is not looked at twice."""
APART: Final = 0.5
"""As `GLANCE`, for single candidates in formats of any precision."""
REACH: Final = 64.0
"""And further off than so many rounding bounds of the declared equations."""


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


class Examined:
    """A sample, and what has been evaluated on its operands already."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._limits = dict[tuple[str, frozenset[str]], Array]()
        self._compared = dict[tuple[Program, str, bool], Difference | None]()

    @cached_property
    def profile(self) -> Profile:
        return known_profiles()[self.sample.case.profile]

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
        new, old = (
            {equation.target.name: equation.expression for equation in program.equations}
            for program in (candidate, self.program)
        )
        return {name for name in (*new, *old) if new.get(name) != old.get(name)}

    def disturbed(self, candidate: Program) -> set[str]:
        """Reported quantities that a candidate computes otherwise from the reported operands."""
        changed = self.changed(candidate)
        return {name for name in self.reported if not self._on_the_way(name).isdisjoint(changed)}

    def _on_the_way(self, name: str) -> set[str]:
        part = self.program.restricted(frozenset(self.reported) - {name}, name)
        return {equation.target.name for equation in part.equations}

    def affected(self, candidate: Program) -> set[str]:
        """Targets that may have other values than the declared ones."""
        found = self.changed(candidate)
        for equation in (*candidate.equations, *self.program.equations):
            if not found.isdisjoint(equation.operands):
                found.add(equation.target.name)
        return found

    @cached_property
    def wrong(self) -> set[str]:
        """Quantities whose declared equation does not hold on the reported operands."""
        found = {name: self.compare(self.program, name) for name in self.reported}
        return {
            name for name, difference in found.items() if not (difference and difference.within)
        }

    def reproduced(self, candidate: Program) -> frozenset[str]:
        """Quantities that a candidate reproduces, others aside."""
        found = set[str]()
        for name in self.affected(candidate).intersection(self.reported):
            with attempt(f"{name} of a candidate for {self.sample.case.id}"):
                difference = self.compare(candidate, name)
                if difference is not None and difference.within:
                    found.add(name)
        return frozenset(found)

    def plausible(self, candidate: Program) -> bool:
        """Whether the last reported quantity looks like the candidate's, at a glance."""
        name = self.reported[-1]
        part = candidate.restricted(frozenset(self.reported) - {name}, name)
        whole = candidate.restricted(frozenset(), name)
        for considered in (part,) if part == whole else (part, whole):
            try:
                computed = self._computed(considered, candidate, "float64")[name]
            except IMPOSSIBLE:
                return False
            value = self.sample.outputs[name].astype(np.float64)
            expected = _shaped(computed, value)
            if expected is not None:
                with np.errstate(all="ignore"):
                    far = np.nanmax(np.abs(value - expected), initial=0.0)
                    if far <= GLANCE * np.nanmax(np.abs(value), initial=0.0):
                        return True
        return False

    def resembles(self, candidate: Program) -> bool:
        """Whether what failed looks like the candidate's results, at a glance and in float64."""
        failing = self.sample.failing
        if not self.affected(candidate).issuperset(failing):
            return False
        return all(self._is_near(candidate, name) for name in failing if name in self.reported)

    def _is_near(self, candidate: Program, name: str) -> bool:
        """Whether a candidate's result, from reported operands or from inputs, is not far off."""
        value = self.sample.outputs[name].astype(np.float64)
        largest = np.nanmax(np.abs(value), initial=0.0)
        part = candidate.restricted(frozenset(self.reported) - {name}, name)
        whole = candidate.restricted(frozenset(), name)
        for considered in (part,) if part == whole else (part, whole):
            with attempt(f"{name} of a candidate for {self.sample.case.id}"):
                computed = self._computed(considered, candidate, "float64")[name]
                expected = _shaped(computed, value)
                if expected is None:
                    continue
                far = np.max(np.abs(value - expected), initial=0.0)
                # What is not finite is left to a closer look.
                if not GLANCE * largest < far < np.inf:
                    return True
                if far <= REACH * np.max(self._declared(name, (), {}), initial=0.0):
                    return True
        return False

    def left(self, candidate: Program) -> float | None:
        """The share of the deviation that the candidate leaves; None if it does not explain it."""
        changed = self.changed(candidate)
        if not self.affected(candidate).issuperset(self.sample.failing):
            return None
        first = next(iter(self.sample.failing), None)
        if first is not None and first not in changed and self._local(first):
            return None
        worst = None if self.sample.failing else 0.0
        for name in reversed(self.reported):
            new = self.compare(candidate, name)
            if new is None or not new.within:
                return None
            if name in self.sample.failing and (name in changed or not self._local(name)):
                old = self.compare(self.program, name, is_poor(candidate))
                right = name not in changed and old is not None and old.within
                if right and not self._alone(name):
                    continue  # it is right about operands that are wrong
                left = new.left(old) if old is not None else 0.0
                worst = worst if left is None else max(worst or 0.0, left)
        return worst if worst is not None and worst <= LEFT else None

    def _local(self, name: str) -> bool:
        """Whether all operands of an equation are reported, or inputs."""
        known = {*self.reported, *(tensor.name for tensor in self.program.inputs)}
        tensors = set(self.program.equation(name).operands) & set(self.program.tensors)
        return tensors <= known

    def _alone(self, name: str) -> bool:
        """Whether nothing that it is computed from is reported."""
        part = self.program.restricted(frozenset(self.reported) - {name}, name)
        return {t.name for t in self.program.inputs}.issuperset(t.name for t in part.inputs)

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
        poor = carry or is_poor(part)
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
        with attempt(f"{name} of a candidate for {sample.case.id}"):
            computed = self._computed(part, candidate, sample.dtype if poor else "float64")
            expected = _shaped(computed[name].astype(np.float64), value)
            if expected is None:
                return None
            far = np.max(np.abs(value.astype(np.float64) - expected), initial=0.0)
            if self.profile.base and not poor and self._elsewhere(far, name, given):
                return Difference(np.full(value.shape, far), np.zeros(value.shape))
            limit = self._limit(part, self._operands(part), sizes, name, given, poor)
            limit = limit.reshape(value.shape)
            return difference(value.astype(np.float64), expected, limit, sample.dtype)
        return None

    def _operands(self, part: Program) -> dict[str, Any]:
        outputs = self.sample.outputs
        return {t.name: outputs.get(t.name, self.inputs.get(t.name)) for t in part.inputs}

    def _computed(self, part: Program, candidate: Program, dtype: str) -> dict[str, Array]:
        sizes = derived(self.program, candidate, self.sample.case.bindings)
        return evaluator.compute(part, self._operands(part), sizes, dtype)

    def _declared(self, name: str, given: Sequence[str], inherited: Mapping[str, int]) -> Array:
        """The rounding bound of the declared equations on the reported operands."""
        key = (name, frozenset(given))
        if key not in self._limits:
            declared = self.program.restricted(frozenset(given), name)
            limits = rounding.bounds(
                *(declared, self._operands(declared), self.sample.case.bindings),
                self.sample.arithmetic,
                inherited=inherited,
            )
            self._limits[key] = limits[name]
        return self._limits[key]

    def _elsewhere(self, far: float, name: str, given: Sequence[str]) -> bool:
        """Whether a candidate and what was returned, all finite, have hardly anything in common.

        Bounds of gradients take long to derive, and for most candidates nobody needs them.
        """
        largest = np.max(np.abs(self.sample.outputs[name].astype(np.float64)), initial=0.0)
        if not APART * largest < far < np.inf:
            return False
        return bool(far > REACH * np.max(self._declared(name, given, self._inherited(given))))

    def _inherited(self, given: Sequence[str]) -> dict[str, int]:
        """How often a reported operand may have been rounded."""
        model = self.sample.arithmetic
        wider = FORMATS[model.storage].precision < FORMATS[model.accumulation].precision
        return dict.fromkeys(given, 2 if wider else 1)

    def _limit(
        self,
        part: Program,
        operands: Mapping[str, Any],
        sizes: Mapping[str, Any],
        name: str,
        given: Sequence[str],
        poor: bool,
    ) -> Array:
        model, inherited = self.sample.arithmetic, self._inherited(given)
        if poor:
            return np.asarray(2 * self._declared(name, given, inherited))
        own = Arithmetic.for_dtype("float64")
        limits = evaluator.bounds(part, operands, sizes, model, inherited)
        return np.asarray(limits[name] + evaluator.bounds(part, operands, sizes, own, {})[name])


def _shaped(expected: Array, value: Array) -> Array | None:
    """A candidate's result in the shape of what was returned; None if it has another one.

    Masks are lifted to the declared number of axes, and so are their gradients.
    """
    lifted = (1,) * (expected.ndim - value.ndim) + value.shape
    return expected.reshape(value.shape) if expected.shape == lifted else None


def is_poor(program: Program) -> bool:
    """Whether a program has operations of poor arithmetic, which can only be carried out."""
    return any(evaluator.is_poor(operation) for operation in operations(program))
