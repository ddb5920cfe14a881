"""Conditions: what sets the cases that fail apart from those that pass, in the fewest words.

A port that is right but for a length, a mask or a layout is not explained by a formula. Every case
has traits; the condition is a trait, or two together, that all failing cases have and no passing
one. A condition on a size is put to the test: further calls at the edges around it, which nobody
has asked about yet, move it to where it is, or refute it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Final

import numpy as np

from qkvac.cells import Result, Status
from qkvac.diagnosis.attempts import attempt
from qkvac.diagnosis.samples import Sample
from qkvac.spec.cases.case import Case
from qkvac.spec.verdicts import clauses
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.subjects.selection import find_case
from qkvac.usage import UsageError

EDGES: Final = (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024)
"""Sizes at which kernels change what they do."""
TILES: Final = (128, 64, 32, 16, 8, 4, 2)
ASKED: Final = 8
"""Further calls about a condition, in each of some rounds."""
ROUNDS: Final = 2
FEW: Final = 0.5
LARGEST: Final = 1 << 15
"""Scores that a further call may have."""

NEEDS: Final[Mapping[str, str]] = {
    "scale": "where a scale is given",
    "grouped_heads": "where heads share keys and values",
    "cross_length": "where there are not as many keys as queries",
    "value_width": "where values have a width of their own",
}
"""What a case needs, in words."""

Ask = Callable[[Mapping[str, Case]], Mapping[str, Mapping[str, np.ndarray[Any, Any]]]]


@dataclass(frozen=True)
class Trait:
    """Something that a case is or is not."""

    words: str
    axis: str = ""
    """The axis whose size it is about; "" for any other trait."""
    of_size: Callable[[int], bool] = bool
    of_case: Callable[[Case], bool] = bool
    edge: int | None = None
    """The largest size that passes, of a trait that begins above one."""

    def holds(self, case: Case) -> bool:
        if not self.axis:
            return self.of_case(case)
        return self.axis in case.sizes and self.of_size(case.sizes[self.axis])


@dataclass(frozen=True)
class Condition:
    """Traits that all failing cases have, and no passing case has all of them."""

    traits: tuple[Trait, ...]
    share: float = 1.0
    """How many of the cases fail."""
    passing: tuple[Case, ...] = ()
    """Cases that pass."""
    confirmed: int = 0
    """Further calls that agree."""

    @property
    def of_few(self) -> bool:
        """Whether it is the exception that fails, so that it is worth saying first."""
        return self.share <= FEW

    def __str__(self) -> str:
        text = f"it fails only {' and '.join(trait.words for trait in self.traits)}"
        if self.confirmed:
            text += f" ({self.confirmed} further calls at other sizes agree)"
        return text


def of_results(results: Iterable[Result]) -> tuple[list[Case], list[Case]]:
    """The cases whose values fail, and those that pass in all of them.

    Next to nothing is said by a pass of what is empty.
    """
    failing, passing = dict[str, bool](), dict[str, bool]()
    for result in results:
        if result.cell.is_check:
            continue
        clause = clauses.find(result.clause or "")
        if result.status == Status.FAILED and clause is not None and clause.about_values:
            failing[result.cell.case] = True
        elif result.status == Status.PASSED and result.last:
            passing[result.cell.case] = True
    right = [name for name in passing if name not in failing]
    said = (case for case in _cases(right) if 0 not in (*case.sizes.values(), *case.batch))
    return list(_cases(failing)), list(said)


def _cases(names: Iterable[str]) -> Iterator[Case]:
    for name in names:
        try:
            yield find_case(name)
        except UsageError:
            continue


def condition(failing: Sequence[Case], passing: Sequence[Case]) -> Condition | None:
    """The smallest condition; None where there is none, or nothing to tell apart from."""
    if not failing or not passing:
        return None
    share = len(failing) / (len(failing) + len(passing))
    common = [t for t in traits((*failing, *passing)) if all(map(t.holds, failing))]
    left = {t: frozenset(i for i, case in enumerate(passing) if t.holds(case)) for t in common}
    for trait in common:
        if not left[trait]:
            return Condition((trait,), share, tuple(passing))
    useful = [trait for trait in common if len(left[trait]) < len(passing)]
    pairs = sorted(combinations(useful, 2), key=lambda pair: pair[0].axis == pair[1].axis != "")
    for one, other in pairs:
        if not left[one] & left[other]:
            return Condition((one, other), share, tuple(passing))
    return None


def traits(cases: Sequence[Case]) -> Iterator[Trait]:
    """What some of the cases are and others are not, the plainest first."""
    yield from _flags(cases)
    for need, words in NEEDS.items():
        yield Trait(words, of_case=partial(_needs, need))
    for one, other in {pair for case in cases for pair in case.declared.unequal.values()}:
        yield Trait(f"where {one} < {other}", of_case=_compared(one, other, int.__lt__))
        yield Trait(f"where {one} > {other}", of_case=_compared(one, other, int.__gt__))
        yield Trait(f"where {one} = {other}", of_case=_compared(one, other, int.__eq__))
    for axis in dict.fromkeys(axis for case in cases for axis in case.sizes):
        yield Trait(f"where {axis} = 1", axis, lambda size: size == 1)
        for tile in TILES:
            words = f"where {axis} is a multiple of {tile}"
            yield Trait(words, axis, partial(_is_multiple, tile))
        observed = {case.sizes[axis] for case in cases if axis in case.sizes}
        for edge in (*reversed(EDGES), *sorted(observed - {*EDGES})):
            yield above(axis, edge)
        for edge in (*EDGES, *sorted(observed - {*EDGES})):
            yield Trait(f"where {axis} ≤ {edge}", axis, partial(operator.ge, edge))
        for tile in TILES:
            yield Trait(
                f"where {axis} is no multiple of {tile}", axis, partial(_is_no_multiple, tile)
            )
    for family in dict.fromkeys(case.family for case in cases):
        yield Trait(f"in cases `{family}`", of_case=partial(_is_of, family))


def above(axis: str, edge: int) -> Trait:
    return Trait(f"where {axis} > {edge}", axis, lambda size: size > edge, edge=edge)


def _flags(cases: Sequence[Case]) -> Iterator[Trait]:
    for flag in dict.fromkeys(word for case in cases for word in case.variant.split("-") if word):
        words = {"causal": "where attention is causal", "bias": "where there are biases"}
        words |= dict.fromkeys(("boolean", "additive"), f"where a mask is {flag}")
        text = words.get(flag, f"where there is {flag}")
        yield Trait(text, of_case=partial(_has_flag, flag))
        yield Trait(
            f"not {text}" if flag == "plain" else text.replace("where", "except where", 1),
            of_case=partial(_lacks_flag, flag),
        )
    yield Trait("where a mask is given", of_case=lambda case: case.masked)
    yield Trait("in batches", of_case=lambda case: bool(case.batch))
    yield Trait("without a batch", of_case=lambda case: not case.batch)
    yield Trait("in batches of one", of_case=lambda case: set(case.batch) == {1})
    yield Trait("with several leading axes", of_case=lambda case: len(case.batch) > 1)
    yield Trait(
        "where inputs are not plain contiguous arrays", of_case=lambda case: bool(case.layouts)
    )
    for form in dict.fromkeys(form for case in cases for form in case.layouts.values()):
        yield Trait(f"where an input is {form}", of_case=partial(_has_layout, form))
    for name in dict.fromkeys(name for case in cases for name in case.layouts):
        yield Trait(
            f"where {name} is no plain contiguous array",
            of_case=partial(_lays_out, name),
        )


def _is_multiple(tile: int, size: int) -> bool:
    return size > 0 and size % tile == 0


def _is_no_multiple(tile: int, size: int) -> bool:
    return size % tile > 0


def _needs(word: str, case: Case) -> bool:
    return word in case.needs


def _is_of(family: str, case: Case) -> bool:
    return case.family == family


def _has_flag(flag: str, case: Case) -> bool:
    return flag in case.variant.split("-")


def _lacks_flag(flag: str, case: Case) -> bool:
    return not _has_flag(flag, case)


def _has_layout(form: str, case: Case) -> bool:
    return form in case.layouts.values()


def _lays_out(name: str, case: Case) -> bool:
    return name in case.layouts


def _compared(one: str, other: str, holds: Callable[[int, int], bool]) -> Callable[[Case], bool]:
    def test(case: Case) -> bool:
        return {one, other} <= case.sizes.keys() and holds(case.sizes[one], case.sizes[other])

    return test


# --- further calls ---------------------------------------------------------------------------


def confirmed(found: Condition, samples: Sequence[Sample], ask: Ask) -> Condition | None:
    """A condition on a size, after further calls around it; None where they refute it.

    One that is no condition on a size stays as it is, and so does one that nothing is answered to.
    """
    sized = [trait for trait in found.traits if trait.axis]
    base = min(
        (sample for sample in samples if sample.failing),
        key=lambda sample: (not sample.case.generic, bool(sample.case.exact), sample.weight),
        default=None,
    )
    if len(sized) != 1 or base is None:
        return found
    (trait,) = sized
    if trait.edge is not None:
        others = [other for other in found.traits if other is not trait]
        alike = [case for case in found.passing if all(t.holds(case) for t in others)]
        low = max((case.sizes.get(trait.axis, 0) for case in alike), default=0)
        moved, calls = _bisected(trait.axis, low, base, ask)
    else:
        fails = _asked(base, trait.axis, _sizes(trait, base.case.sizes[trait.axis]), ask)
        agrees = all(trait.of_size(size) == wrong for size, wrong in fails.items())
        moved, calls = trait if agrees else None, len(fails)
    if moved is None:
        return None
    changed = tuple(moved if one is trait else one for one in found.traits)
    return replace(found, traits=changed, confirmed=calls)


def _bisected(axis: str, low: int, base: Sample, ask: Ask) -> tuple[Trait | None, int]:
    """The edge above which it fails, from a size that passes; None where there is no such edge.

    And the calls made.
    """
    high, calls = base.case.sizes[axis], 0
    for _ in range(ROUNDS):
        between = np.linspace(low, high, ASKED + 2).round().astype(int)
        fails = _asked(base, axis, sorted({*map(int, between)} - {low, high, 0}), ask)
        calls += len(fails)
        low = max((size for size, wrong in fails.items() if not wrong), default=low)
        high = min((size for size, wrong in fails.items() if wrong), default=high)
        if low >= high:
            return None, calls
    return above(axis, low), calls


def _asked(base: Sample, axis: str, sizes: Sequence[int], ask: Ask) -> dict[int, bool]:
    """Whether a failing case fails at other sizes, too; those without an answer are absent."""
    posed = dict[str, Case]()
    for size in sizes:
        changed = {**base.case.sizes, axis: size}
        name = f"{base.case.id}/{axis}={size}"
        case = replace(base.case, id=name, sizes=changed, exact=())
        with attempt(case.id):
            if max(array.size for array in case.inputs(base.dtype).values()) <= LARGEST:
                posed[str(size)] = case
    answers = ask(posed)
    return {int(k): _is_wrong(base, posed[k], outputs) for k, outputs in answers.items()}


def _sizes(trait: Trait, own: int) -> list[int]:
    """Sizes around the edges of a trait, those that are nearest to a failing one."""
    near = {size for edge in EDGES for size in (edge, edge + 1)} | {own - 1, own + 1, 2 * own}
    nearest = sorted((n for n in near if n > 0 and n != own), key=lambda size: abs(size - own))
    inside = [size for size in nearest if trait.of_size(size)]
    outside = [size for size in nearest if not trait.of_size(size)]
    return [*inside[: ASKED // 2], *outside[: ASKED // 2]]


def _is_wrong(base: Sample, case: Case, outputs: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    question = Question(case, base.dtype, base.arithmetic, conventions=base.conventions)
    return any(verdict.status == "failed" for verdict in judge(question, outputs).values())
