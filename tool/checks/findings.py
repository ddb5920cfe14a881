"""Findings: what a check makes of the answers that it was given, and how answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from qkvac.cells import Status
from qkvac.checks.relations import Array, Inputs, times
from qkvac.digests import same_bits
from qkvac.isolation.process import Outcome
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts.clauses import METAMORPHIC
from qkvac.subjects.roster import Entry

Ask = Callable[[Inputs], Outcome]
"""Calls the implementation once more, in the same process."""
Subset = Callable[[Sequence[str]], Outcome]
"""Asks for the gradients of the named inputs and of no others."""
Record = Callable[[], Mapping[str, Any] | None]
"""The operations of a call, None where they are not recorded; raises what `Worker` raises."""


def _all_at_once(wanted: Sequence[str]) -> Outcome:
    return Outcome(Status.UNSUPPORTED, "all gradients come at once")


@dataclass(frozen=True)
class Finding:
    """What became of a check."""

    status: str
    reason: str | None = None
    clause: str | None = None
    different: tuple[str, ...] = ()
    """Quantities whose bits differ from another answer's, though they may."""


@dataclass(frozen=True)
class Visit:
    """A case that has been answered once, and the way to ask again."""

    entry: Entry
    dtype: str
    case: Case
    inputs: Inputs = field(hash=False)
    outcome: Outcome = field(hash=False)
    ask: Ask
    record: Record
    subset: Subset = _all_at_once
    """Asks for the gradients of some inputs alone."""

    @property
    def outputs(self) -> Mapping[str, Array]:
        return self.outcome.outputs

    @property
    def misshapen(self) -> str:
        """A quantity that has not its declared shape, which no relation can be asked of; or ""."""
        if self.outcome.excess:
            return next(iter(self.outcome.excess))
        given = {name: array.shape for name, array in self.inputs.items()}
        declared = shapes.contract(self.case.program, dict(self.case.bindings), given=given)
        names = (name for name, array in self.outputs.items() if array.shape != declared[name])
        return next(names, "")


PASSED: Final = Finding(Status.PASSED)


class UnansweredError(Exception):
    """A further call that brought no answer; holds the finding that follows."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        clause = METAMORPHIC.word if outcome.status == Status.FAILED else None
        self.finding = Finding(outcome.status, outcome.reason, clause)


def failed(reason: str) -> Finding:
    return Finding(Status.FAILED, reason, METAMORPHIC.word)


def answer(visit: Visit, inputs: Inputs) -> Mapping[str, Array]:
    """The quantities of a further call; raises UnansweredError where there are none."""
    outcome = visit.ask(inputs)
    if outcome.status != "ok":
        raise UnansweredError(outcome)
    for name, (_, shape) in outcome.excess.items():
        reason = f"a further call returns {name} of shape {list(shape)}"
        raise UnansweredError(replace(outcome, status=Status.FAILED, reason=reason))
    return outcome.outputs


def compared(
    first: Mapping[str, Array],
    second: Mapping[str, Array],
    what: str,
    factors: Mapping[str, float] | None = None,
) -> Finding:
    """Whether the second answer is the first, each quantity times its power of two."""
    factors = factors or {}
    if first.keys() != second.keys():
        return failed(f"{what} returns other quantities")
    for name, array in first.items():
        expected = times(array, factors.get(name, 1.0))
        if not same_bits(expected, second[name]):
            scaled = f", not {factors[name]:g} times the first" if name in factors else ""
            place = where(expected, second[name])
            return failed(f"{what} gives other bits in {name}{scaled}{place}")
    return PASSED


def where(expected: Array, found: Array) -> str:
    """The first entry that differs, in words."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f": {found.dtype.name}{list(found.shape)}"
    wrong = np.argwhere(~((expected == found) | ((expected != expected) & (found != found))))
    if not len(wrong) or expected.dtype.kind not in "fV":
        # Signs of zeros, or numbers that the contract refuses anyway.
        return ""
    index = tuple(int(i) for i in wrong[0])
    return f": {float(found[index])!r} at {list(index)}, expected {float(expected[index])!r}"


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
