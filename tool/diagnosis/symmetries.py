"""Symmetries: what attention keeps when its inputs change, asked of a port that nothing explains.

Attention does not know the order of its tokens, it does not see a number that is added to all
scores of a query, and it is linear in the values. Which of these a wrong port keeps tells where
its fault is. Each compares answers to related inputs, within the rounding bounds (clause B) of
all of them: what is exact for true values may differ by no more than that.

A common shift is expressed through the inputs: where a column of X is 1, a row of Wk adds the same
vector u to every key, and q·u to every score of the query q.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import numpy as np

from qkvac.diagnosis.samples import Sample
from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import rounding
from qkvac.spec.cases.case import Case
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.faults.sites.roles import Roles
from qkvac.spec.grammar.syntax import Op, Program, Ref, Tensor, walk

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

INPUTS: Final = ("X", "Wq", "Wk", "Wv")
"""Inputs of the profile that the symmetries are stated for."""
VAGUE: Final = 0.03
"""Bounds above this share of the largest entry are no evidence that anything holds."""
SEVERAL: Final = 4
"""Tokens among which an order shows."""


@dataclass(frozen=True)
class Posed(Case):
    """A case with inputs of its own."""

    arrays: Arrays = field(default_factory=dict, compare=False, repr=False)

    def inputs(self, dtype: str, draw: int = 0) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.arrays.items()}


@dataclass(frozen=True)
class Symmetry:
    """Whether a symmetry holds; if not, by which share of which quantity's largest entry."""

    what: str
    holds: bool
    where: str = ""
    share: float = 0.0

    def __str__(self) -> str:
        return (
            self.what
            if self.holds
            else f"{self.what} ({self.where} is off by {self.share:.1g} of its largest entry)"
        )


def suitable(samples: Sequence[Sample]) -> Sample | None:
    """The failing answer to start from: a small one, generic if possible; None if none will do."""
    usable = [
        sample
        for sample in samples
        if sample.failing
        and tuple(t.name for t in sample.case.program.inputs) == INPUTS
        and Roles.of(sample.case.program).weights == "A"
        and not sample.case.batch
        and min(sample.case.sizes.get(axis, 0) for axis in ("n", "d")) > 1
    ]
    return min(
        usable,
        key=lambda s: (
            not s.case.generic,
            bool(s.case.layouts),
            s.case.sizes["n"] < SEVERAL,
            s.weight,
        ),
        default=None,
    )


def posed(sample: Sample) -> dict[str, Posed]:
    """The further calls to make about an answer, by name."""
    inputs = sample.case.inputs(sample.dtype)
    X, Wk, Wv = inputs["X"], inputs["Wk"], inputs["Wv"]
    first = (np.arange(len(Wv)) % 2 == 0)[:, None]
    ones = X.copy()
    ones[:, -1] = 1
    keys = np.abs(ones.astype(np.float64) @ Wk.astype(np.float64)).max()
    raised = Wk.copy()
    raised[-1] = (Wk[-1].astype(np.float64) + (keys or 1.0)).astype(Wk.dtype)
    # Causal attention knows the order of its tokens.
    nodes = (node for e in sample.case.program.equations for node in walk(e.expression))
    causal = any(isinstance(node, Op) and node.name == "causal" for node in nodes)
    changed: dict[str, Arrays] = {
        **({} if causal else {"permuted": {"X": X[_order(len(X))]}}),
        "doubled": {"Wv": Wv * Wv.dtype.type(2)},
        "first": {"Wv": np.where(first, Wv, Wv.dtype.type(0))},
        "second": {"Wv": np.where(first, Wv.dtype.type(0), Wv)},
        "unshifted": {"X": ones},
        "shifted": {"X": ones, "Wk": raised},
    }
    return {name: _posed(sample.case, name, {**inputs, **new}) for name, new in changed.items()}


def _posed(case: Case, name: str, inputs: Arrays) -> Posed:
    known = {part.name: getattr(case, part.name) for part in fields(case)}
    return Posed(**{**known, "id": f"{case.id}/{name}", "arrays": inputs})


def _order(count: int) -> Array:
    """Odd places, then even ones: no reversal and no rotation of more than two tokens."""
    return np.concatenate([np.arange(1, count, 2), np.arange(0, count, 2)])


@dataclass(frozen=True)
class _Relation:
    """The sum of some answers is another one, changed in a way that rounds nothing."""

    what: str
    sum_of: tuple[str, ...]
    equals: str
    quantities: tuple[str, ...] = ()
    """Those that it is about; empty for all."""
    change: Callable[[Tensor, Array], Array] = lambda tensor, array: array


def _permuted(tensor: Tensor, array: Array) -> Array:
    for place, axis in enumerate(tensor.axes):
        if axis == Ref("n"):
            array = np.take(array, _order(array.shape[place]), place)
    return array


def _doubled(tensor: Tensor, array: Array) -> Array:
    return 2 * array


ASKED: Final = "asked"
"""The name of the answer that is at hand."""
RELATIONS: Final = (
    _Relation(
        "a permutation of the tokens permutes the results", ("permuted",), ASKED, change=_permuted
    ),
    _Relation(
        "a common shift of a query's scores leaves A and C as they are",
        ("shifted",),
        "unshifted",
        ("A", "C"),
    ),
    _Relation("V and C double with Wv", ("doubled",), ASKED, ("V", "C"), _doubled),
    _Relation("V and C are additive in Wv", ("first", "second"), ASKED, ("V", "C")),
)


def judged(sample: Sample, outputs: Mapping[str, Arrays]) -> list[Symmetry]:
    """What holds and fails, as far as the answers to `posed` tell; absent ones tell nothing."""
    cases: Mapping[str, Case] = {ASKED: sample.case, **posed(sample)}
    answers = {
        name: _Answer(cases[name], sample.dtype, sample.arithmetic, arrays)
        for name, arrays in {ASKED: sample.outputs, **outputs}.items()
    }
    found = []
    for relation in RELATIONS:
        if {*relation.sum_of, relation.equals} <= answers.keys():
            summands = [answers[name] for name in relation.sum_of]
            found.append(_compared(relation, summands, answers[relation.equals]))
    return [symmetry for symmetry in found if symmetry is not None]


def _compared(relation: _Relation, summands: Sequence[_Answer], other: _Answer) -> Symmetry | None:
    """The first quantity in which a relation fails decides; None if there is no evidence."""
    telling = False
    for equation in other.program.equations:
        tensor, name = equation.target, equation.target.name
        if relation.quantities and name not in relation.quantities:
            continue
        if not all(answer.has(name) for answer in (*summands, other)):
            continue
        right, room = (relation.change(tensor, x) for x in (other.value(name), other.room(name)))
        left = sum(answer.value(name) for answer in summands)
        room = room + sum(answer.room(name) for answer in summands)
        largest = float(np.abs(right).max(initial=0.0))
        error = np.abs(left - right)
        if np.any(error > room):
            share = float(error.max()) / (largest or 1.0)
            return Symmetry(relation.what, False, name, share)
        telling = telling or bool(room.max(initial=0.0) <= VAGUE * largest)
    return Symmetry(relation.what, True) if telling else None


@dataclass(frozen=True)
class _Answer:
    """What a port made of the inputs of a case, and how far rounding may have taken it."""

    case: Case
    dtype: str
    arithmetic: Arithmetic
    outputs: Arrays

    @cached_property
    def program(self) -> Program:
        return self.case.program

    def has(self, name: str) -> bool:
        """Whether a quantity is reported, in the right shape and finite."""
        value = self.outputs.get(name)
        right = value is not None and value.shape == self._true[name].shape
        return right and bool(np.all(np.isfinite(self.value(name))))

    def value(self, name: str) -> Array:
        return self.outputs[name].astype(np.float64)

    def room(self, name: str) -> Array:
        """The bound of a quantity, for numbers that are as large as the reported ones.

        A wrong port rounds its own numbers, not the true ones; its errors grow with the largest
        that it has come by so far.
        """
        return np.asarray(self._bounds[name] * self._growth[name])

    @cached_property
    def _inputs(self) -> Arrays:
        return self.case.inputs(self.dtype)

    @cached_property
    def _true(self) -> Arrays:
        wide = {name: array.astype(np.float64) for name, array in self._inputs.items()}
        return compute(self.program, wide, self.case.sizes, "float64")

    @cached_property
    def _bounds(self) -> Arrays:
        return rounding.bounds(self.program, self._inputs, self.case.sizes, self.arithmetic)

    @cached_property
    def _growth(self) -> Mapping[str, float]:
        growth, factors = 1.0, {}
        for name, true in self._true.items():
            if self.has(name):
                reached = np.abs(self.value(name)).max(initial=0.0)
                growth = max(growth, float(reached / (np.abs(true).max(initial=0.0) or 1.0)))
            factors[name] = growth
        return factors
