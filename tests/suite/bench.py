"""A bench for functions in this process: cases put to them, answers judged, checks made.

What the engine does with a port in a process of its own, without the process: thousands of
answers of faulty functions are judged in seconds. Verdicts and checks are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from qkvac.cells import Subject
from qkvac.checks import registry
from qkvac.checks.findings import Visit
from qkvac.isolation import fpenv
from qkvac.isolation.process import Outcome
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.faults.catalogue import Fault
from qkvac.spec.faults.side_effects.calls import Function
from qkvac.spec.grammar.equations import Program
from qkvac.spec.inputs import layouts
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic.shapes import bind
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.subjects.roster import Entry

Array = np.ndarray[Any, Any]
Finding = tuple[str, str]
"""A quantity or check, and the clause or status that it failed with."""

FORM = "shifted, divided"
"""The softmax that faulty programs declare, so that bits through it are asked of them."""


@dataclass(frozen=True)
class Bench:
    """A function on the bench, asked for one profile in one dtype."""

    function: Function
    dtype: str
    profile: str = "attention"
    softmax: str | None = FORM
    deterministic: bool = True
    entry: Entry = field(init=False)
    answering: Callable[[Case], Function] | None = None
    """Gives the function that is asked about a case, where it is not the same for all."""
    earlier: dict[str, Array] = field(default_factory=dict, hash=False)
    """The last call's results, in the memory that they were returned in."""

    def __post_init__(self) -> None:
        subject = Subject("bench", "default", "cpu", port="bench.py")
        raw = {"supports": "all", "deterministic": self.deterministic}
        entry = Entry(subject, raw, (self.profile,), {})
        object.__setattr__(self, "entry", entry)

    def findings(self, case: Case, draw: int = 0) -> set[Finding]:
        """What fails on a case, checks included."""
        return set(self._findings(case, draw))

    def _findings(self, case: Case, draw: int) -> Iterator[Finding]:
        inputs = case.inputs(self.dtype, draw)
        outcome = self.call(case, inputs, repeat=2)
        names = registry.names(self.entry, self.dtype, case) if draw == 0 else ()
        if outcome.status != "ok":
            yield case.profile, outcome.status
            return
        question = asked(case, self.dtype, draw, self.softmax)
        for name, verdict in judge(question, outcome.outputs).items():
            if verdict.status in ("failed", "missing"):
                yield name, verdict.clause or verdict.status
        visit = Visit(
            *(self.entry, self.dtype, case, inputs, outcome),
            ask=lambda changed: self.call(case, changed),
            record=lambda: None,
        )
        for name in names:
            finding = registry.finding(name, visit)
            if finding.status in ("failed", "error"):
                yield name, finding.clause or finding.status

    def call(self, case: Case, inputs: Mapping[str, Array], repeat: int = 1) -> Outcome:
        """One call, or the same several times in a row."""
        laid = {n: layouts.apply(a, case.layouts.get(n, "C")) for n, a in inputs.items()}
        function = self.answering(case) if self.answering else self.function
        before = {name: array.copy() for name, array in laid.items()}
        restore, environment = fpenv.keep(), fpenv.describe()
        runs, copies, left = [], [], "unchanged"
        try:
            with np.errstate(all="ignore"):
                for _ in range(repeat):
                    runs.append(function(laid))
                    copies.append({name: array.copy() for name, array in runs[-1].items()})
        except Exception as error:  # what a port raises is an outcome
            return Outcome("error", str(error))
        finally:
            if fpenv.describe() != environment:
                left = fpenv.describe()
                restore()
        first = copies[0]
        others = {**laid, **{f"earlier {name}": array for name, array in self.earlier.items()}}
        self.earlier.clear()
        self.earlier.update(runs[-1])
        return Outcome(
            "ok",
            outputs=first,
            mutated=tuple(n for n, a in laid.items() if a.tobytes() != before[n].tobytes()),
            aliases=tuple(
                (name, of)
                for name, array in runs[0].items()
                for of, given in others.items()
                if np.shares_memory(array, given)
            ),
            unstable=_differing(first, copies[1:]),
            overwritten=_differing(first, runs[:1]),
            fp_environment=left,
        )


def _differing(first: Mapping[str, Array], others: list[dict[str, Array]]) -> tuple[str, ...]:
    return tuple(n for n, a in first.items() if any(a.tobytes() != o[n].tobytes() for o in others))


def fault_bench(fault: Fault, dtype: str = "", profile: str = "attention") -> Bench:
    """A fault of the catalogue, in the dtype that it is demonstrated in or another."""
    program = known_profiles()[profile].program()
    functions = dict[tuple[Any, ...], Function]()

    def answering(case: Case) -> Function:
        """One function for all cases that differ in data alone, which may remember calls."""
        key = (case.variant, *case.bindings.items())
        return functions.setdefault(key, fault.answering(case))

    function = fault.function(program, sizes_in(program)) if fault.program(program) else _nowhere
    return Bench(function, dtype or fault.dtype, profile, answering=answering)


def _nowhere(inputs: Mapping[str, Array]) -> dict[str, Array]:
    raise AssertionError("the fault has no place in the profile's first text")


def sizes_in(program: Program) -> Callable[[Mapping[str, Array]], Mapping[str, int]]:
    return lambda inputs: bind(program, {name: array.shape for name, array in inputs.items()})


@lru_cache(maxsize=256)
def asked(case: Case, dtype: str, draw: int, softmax: str | None) -> Question:
    """The question that a case puts; questions are kept, since all faults are asked the same."""
    declared = {"softmax": softmax} if softmax else {}
    return Question(case, dtype, Arithmetic.for_dtype(dtype, declared), draw)


def caught(bench: Bench, fault: Fault, cases: Iterable[Case]) -> set[Finding]:
    """Findings until everything that must catch the fault has done so."""
    found = set[Finding]()
    for case in cases:
        if bench.dtype in case.dtypes and fault.concerns(case):
            found |= bench.findings(case)
            if demanded(fault) and demanded(fault) <= found:
                break
    return found


def demanded(fault: Fault) -> frozenset[Finding]:
    """What must catch it: "A local" is clause `local` failing in A."""
    pairs = (words.rsplit(" ", 1) for words in fault.caught_by)
    return frozenset((where, what) for where, what in pairs)
