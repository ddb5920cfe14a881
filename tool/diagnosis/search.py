"""The diagnosis: which fault reproduces what a failing port returned.

A candidate is a faulty program. Like clause L, it is evaluated equation by equation on the port's
own reported operands, so that an early mistake does not blur a later one; where the port reports
none, it is evaluated from the inputs. A formula is evaluated in float64 and has rounding bounds of
its own; poor arithmetic is carried out in the port's dtype, and what may differ is the rounding of
the declared equation, twice: the port's and ours.

A candidate explains an answer if everything reported lies within those limits, and if it accounts
for the deviation: at most a quarter of the distance to the declared values may be left. It is
offered only if it explains every failing answer that was kept, and contradicts no other.

Candidates are the faults of the catalogue, whose rules find their place in most texts of attention,
and where no formula of theirs explains anything the mutants of the text, which any text has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations, product
from typing import Final

from qkvac.diagnosis.attempts import attempt
from qkvac.diagnosis.samples import Examined, Sample
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.mutants import mutants
from qkvac.spec.faults.rewriting import Rewrite, rewritten
from qkvac.spec.grammar.syntax import Program

PATIENCE: Final = 8.0
"""Seconds of this process that a diagnosis may take."""
ENTRIES: Final = 1 << 15
"""Answers with more entries in a quantity are not kept for a diagnosis."""
OFFERED: Final = 3
"""How many faults that explain everything are named, besides the best."""


@dataclass(frozen=True)
class Explanation:
    """Faults that together reproduce every failing answer; `left` is the share that they leave."""

    faults: tuple[Fault, ...]
    left: float
    what: str = ""
    """What they do, in the names of the profile."""


@dataclass(frozen=True)
class Diagnosis:
    """The best explanation, and others that the failing answers cannot tell from it."""

    quantity: str
    """The last one that failed, and is reproduced."""
    best: Explanation
    others: tuple[Explanation, ...] = ()
    of_gradients: bool = False

    @property
    def of_precision(self) -> bool:
        """Whether poor arithmetic explains it, and no formula does."""
        return all(fault.kind == "arithmetic" for fault in self.best.faults)

    @property
    def _equals(self) -> str:
        if all(fault.of_gradients for fault in self.best.faults):
            return "the gradient"
        return "the gradient of the result" if self.of_gradients else "the result"

    def __str__(self) -> str:
        text = f"{self.quantity} equals {self._equals} with {self.best.what}"
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
    kept = [Examined(sample) for sample in ordered]
    if not kept or not ordered[0].failing:
        return None
    deadline = time.process_time() + patience
    programs = {answer.program for answer in kept if answer.sample.failing}
    # A variant that never fails may be computed by other lines of the port.
    kept = [answer for answer in kept if answer.program in programs]
    faults = [
        fault
        for fault in FAULTS.values()
        if fault.kind != "behaviour" and any(_has_place(fault, program) for program in programs)
    ]
    # What is wrong with gradients alone is the likelier, and the more precise, explanation.
    faults.sort(key=lambda fault: not fault.of_gradients)
    found = list(_explaining([fault for fault in faults if fault.structural], kept, deadline))
    if not found:
        # A rule says what was done; a mutant only how the equation looks now.
        found = list(_explaining(_mutants(kept[0]), kept, deadline))
    # A formula is a simpler explanation than an accident of arithmetic that looks the same.
    found.sort(key=lambda explanation: explanation.left)
    arithmetic = [fault for fault in faults if not fault.structural]
    found += sorted(_explaining(arithmetic, kept, deadline), key=lambda e: e.left)
    if not found:
        found = list(_together(faults, kept, deadline))
    if not found:
        return None
    distinct = dict[str, Explanation]()
    for explanation in found:
        distinct.setdefault(explanation.what, explanation)
    best, *others = distinct.values()
    failed = {name for answer in kept for name in answer.sample.failing}
    last = next(name for name in reversed(kept[0].profile.quantities) if name in failed)
    return Diagnosis(last, best, tuple(others), bool(kept[0].profile.base))


def _mutants(answer: Examined) -> list[Fault]:
    """Those of an answer's equations; first what is wrong with gradients alone."""
    return sorted(mutants(answer.program), key=lambda mutant: not mutant.of_gradients)


def _explaining(
    faults: Sequence[Fault], answers: Sequence[Examined], deadline: float
) -> Iterator[Explanation]:
    """The faults that explain every answer.

    A glance at the first, smallest one, which fails, is cheap, and most faults do not pass it.
    """
    first, *others = answers
    left = [(fault, 0.0) for fault in faults if _is_likely(fault, first, deadline)]
    for some in ((first,), others):
        shares = [(f, worst, _explained(partial(_of, f), some, deadline)) for f, worst in left]
        left = [(fault, max(worst, share)) for fault, worst, share in shares if share is not None]
    for fault, worst in left:
        yield _explanation((fault,), worst, first.program)


def _is_likely(fault: Fault, answer: Examined, deadline: float) -> bool:
    """Whether a fault is worth a closer look; poor arithmetic has to be carried out."""
    if not fault.structural:
        return True
    if time.process_time() < deadline:
        with attempt(f"a glance at {fault.name} for {answer.sample.case.id}"):
            return answer.resembles(_of(fault, answer.program))
    return False


def _explanation(faults: tuple[Fault, ...], left: float, program: Program) -> Explanation:
    return Explanation(faults, left, " and ".join(fault.said(program) for fault in faults))


def _explained(make: Maker, answers: Sequence[Examined], deadline: float) -> float | None:
    """The largest share left by a candidate; None if it does not explain some answer."""
    worst = 0.0
    for answer in answers:
        left = None
        if time.process_time() < deadline:
            # What cannot be made of these equations, or computed for these sizes, explains nothing.
            with attempt(f"a candidate for {answer.sample.case.id}"):
                left = answer.left(make(answer.program))
        if left is None:
            return None
        worst = max(worst, left)
    return worst


def _together(
    faults: Sequence[Fault], answers: Sequence[Examined], deadline: float
) -> Iterator[Explanation]:
    """Two formulas at once, or one for each equation that goes wrong by itself."""
    failing = [answer for answer in answers if answer.sample.failing]
    # Single tokens and the like hide faults; the answer in which most is wrong shows them all.
    first = max(failing, key=lambda answer: len(answer.wrong))
    program, wrong = first.program, first.wrong
    formulas = [
        fault
        for fault in faults
        if fault.structural and _has_place(fault, program) and _is_partly(fault, first)
    ]
    for chosen, make in _candidates(formulas, first):
        if time.process_time() > deadline:
            return
        possible = False
        with attempt(" and ".join(fault.name for fault in chosen)):
            candidate = make(program)
            fits = not first.complete or wrong <= first.changed(candidate)
            possible = fits and first.plausible(candidate)
        if not possible:
            continue
        left = _explained(make, answers, deadline)
        if left is not None:
            yield _explanation(chosen, left, program)
            return


def _candidates(
    formulas: Sequence[Fault], answer: Examined
) -> Iterator[tuple[tuple[Fault, ...], Maker]]:
    """One formula for each wrong equation; two formulas; two that share an equation, in order.

    Of gradients, which have many paths, only what explains some of them by itself.
    """
    program = answer.program
    if answer.profile.base:
        yield from _by_result(formulas, answer)
        return
    for chosen in _by_equation(formulas, answer):
        yield chosen, partial(_with, tuple(rule for fault in chosen for rule in fault.rules))
    changed = {fault.name: _changed(answer, _of(fault, program)) for fault in formulas}
    for one, two in permutations(formulas, 2):
        if changed[one.name] & changed[two.name]:
            yield (one, two), partial(_in_turn, one, two)
        elif one.name < two.name:
            yield (one, two), partial(_with, (*one.rules, *two.rules))


def _by_result(
    formulas: Sequence[Fault], answer: Examined
) -> Iterator[tuple[tuple[Fault, ...], Maker]]:
    """Two formulas that each reproduce gradients which the other does not, all but shared ones."""
    failing = frozenset(answer.sample.failing)
    solved = {fault: answer.reproduced(_of(fault, answer.program)) & failing for fault in formulas}
    useful = [fault for fault in formulas if solved[fault]]
    reach = {fault: answer.affected(_of(fault, answer.program)) for fault in useful}
    for one, two in combinations(useful, 2):
        rest = failing - solved[one] - solved[two]
        helpful = solved[one] - solved[two] and solved[two] - solved[one]
        if helpful and rest <= reach[one] & reach[two]:
            # A formula that is carried through the adjoint comes first.
            pair = (two, one) if one.of_gradients else (one, two)
            yield pair, partial(_in_turn, *pair)


def _is_partly(fault: Fault, answer: Examined) -> bool:
    """Whether a formula may be one of two: it disturbs nothing but what is wrong by itself."""
    with attempt(f"what {fault.name} disturbs in {answer.sample.case.id}"):
        disturbed = answer.disturbed(_of(fault, answer.program))
        return bool(disturbed) and disturbed <= answer.wrong
    return False


def _changed(answer: Examined, candidate: Program) -> frozenset[str]:
    """Which quantities a candidate changes; none where it cannot be computed for the answer."""
    with attempt(f"what changes for {answer.sample.case.id}"):
        return frozenset(answer.changed(candidate))
    return frozenset()


def _has_place(fault: Fault, program: Program) -> bool:
    """Whether a fault makes a program of these equations; a rule may be at odds with a text."""
    with attempt(f"{fault.name} of other equations"):
        return fault.program(program) is not None
    return False


def _of(fault: Fault, program: Program) -> Program:
    return fault.program(program) or program


def _with(rules: tuple[Rewrite, ...], program: Program) -> Program:
    return rewritten(program, rules) or program


def _in_turn(one: Fault, two: Fault, program: Program) -> Program:
    first = _of(one, program)
    return rewritten(first, two.rules) or first


def _by_equation(formulas: Sequence[Fault], answer: Examined) -> Iterator[tuple[Fault, ...]]:
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
