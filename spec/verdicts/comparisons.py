"""What the clauses compare, one function each, under the clause's word.

No clause has a tolerance of its own. `local` and `bound` compare an error, measured against a
certified enclosure, with a bound that the rounding interpretation derives from the declared
arithmetic model; `exact` compares bits with the certified value, rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from qkvac.spec.bounds import rounding
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.formats import FORMATS, Format, dtype, widened
from qkvac.spec.grammar.equations import Equation, Program
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts import clauses

if TYPE_CHECKING:
    from qkvac.spec.verdicts.verdict import Question


class Certify(Protocol):
    """Certified values of a program; the engine passes one that remembers."""

    def __call__(
        self,
        program: Program,
        inputs: Mapping[str, np.ndarray],
        sizes: Mapping[str, Any],
        dtype: str,
        *,
        wanted: Collection[str] | None = None,
        bound: Mapping[str, np.ndarray] | None = None,
        exact: Collection[str] = (),
        conventions: Mapping[str, str] | None = None,
    ) -> dict[str, Enclosure]: ...


@dataclass(frozen=True)
class Comparison:
    """Errors of a quantity beside the bounds of one clause, entry by entry."""

    clause: str
    """Its word."""
    error: np.ndarray
    """A lower bound of |value − true value|: a failure is proved, not suspected."""
    bound: np.ndarray
    sharp: np.ndarray
    """Where the oracle is sharp enough for the bound."""
    certified: np.ndarray
    excused: np.ndarray
    """Entries that are out of range by the contract's leave."""
    reading: tuple[str, ...] = ()

    @cached_property
    def ratios(self) -> np.ndarray:
        """Error over bound; 0 where there is no error, whatever the bound."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = np.where(self.error == 0, 0.0, self.error / self.bound)
        return np.where(self.excused | np.isinf(self.bound), 0.0, ratios)

    @property
    def holds(self) -> bool:
        return bool(np.all(self.ratios <= 1.0))

    @property
    def ratio(self) -> float:
        return float(np.max(self.ratios, initial=0.0))

    @property
    def count(self) -> int:
        """How many entries fail."""
        return int(np.sum(~(self.ratios <= 1.0)))

    @property
    def worst_index(self) -> tuple[int, ...]:
        ratios = np.where(np.isnan(self.ratios), np.inf, self.ratios)
        # Among entries without error, or all infinitely wrong, the largest error speaks best.
        if not np.any(ratios) or np.isinf(np.max(ratios)):
            ratios = np.where(ratios == np.max(ratios), np.nan_to_num(self.error, nan=np.inf), -1.0)
        return tuple(int(i) for i in np.unravel_index(np.argmax(ratios), ratios.shape))

    @property
    def blurred(self) -> bool:
        """Whether the oracle's radius is too large for some bound."""
        return bool(np.any(~self.sharp & ~self.excused))


@dataclass(frozen=True)
class Answer:
    """A quantity that was returned, beside the question."""

    question: Question
    name: str
    value: np.ndarray
    reported: Mapping[str, np.ndarray]
    """What was returned and can be computed with, by name."""

    @cached_property
    def excused(self) -> np.ndarray:
        """Entries that are not finite, where the contract allows it."""
        return np.asarray(~np.isfinite(widened(self.value)))


Compare: TypeAlias = "Callable[[Answer], Comparison | str | None]"
"""What a clause makes of an answer: errors beside bounds; what is wrong with its form, in words;
None where nothing is asked."""

COMPARE: Final[dict[str, Compare]] = {}
"""By the word of the clause."""


_Compare = TypeVar("_Compare", bound=Compare)


def compares(clause: clauses.Clause) -> Callable[[_Compare], _Compare]:
    """Puts a function under the word of a clause."""

    def put(compare: _Compare) -> _Compare:
        COMPARE[clause.word] = compare
        return compare

    return put


@compares(clauses.CONTRACT)
def contract(answer: Answer) -> str | None:
    """What is wrong with dtype, shape or finiteness, in words; None if nothing is."""
    question, name, value = answer.question, answer.name, answer.value
    allowed = {question.dtype}
    if name == "Ω":
        allowed |= {question.arithmetic.accumulation, question.arithmetic.scores}
    found = value.dtype.name
    if found not in allowed:
        return f"{name} has dtype {found}, expected {' or '.join(sorted(allowed))}"
    tensor = question.program.tensors[name]
    wrong = shapes.mismatch(tensor, question.contract[name], value.shape)
    if wrong is not None:
        return wrong
    plain = widened(value)
    undefined = question.undefined[name]
    defined = np.argwhere(undefined & ~np.isnan(plain))
    if len(defined):
        index = tuple(int(i) for i in defined[0])
        return f"{name}{list(index)} is {plain[index]}, declared NaN for a query without keys"
    broken = np.argwhere(~np.isfinite(plain) & ~undefined)
    if len(broken) and name not in question.may_overflow:
        index = tuple(int(i) for i in broken[0])
        certified = question.certified[name].hi[index]
        return f"{name}{list(index)} is {plain[index]}, certified {certified:.9g}"
    return None


@compares(clauses.EXACT)
def exact(answer: Answer) -> Comparison | None:
    """Where they are asked for, the bits are those of the certified value."""
    if answer.excused.any() or not answer.question.asks_bits(answer.name):
        return None
    return bits(answer)


def bits(answer: Answer) -> Comparison:
    """Every entry equals the certified value, rounded once; −0 equals +0."""
    question, name, value = answer.question, answer.name, answer.value
    certified = question.certified[name]
    expected, certain = certified.rounded(value.dtype.name)
    equal = certain & (value == expected)
    plain = np.asarray(expected, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(equal, 0.0, np.abs(widened(value) - plain))
    # Bits that the enclosure leaves open are counted as different: they prove nothing.
    error = np.where(~equal & (error == 0), np.nan, error)
    no = np.zeros(value.shape, bool)
    return Comparison(clauses.EXACT.word, error, np.zeros(value.shape), ~no, plain, no)


@compares(clauses.LOCAL)
def local(answer: Answer) -> Comparison | None:
    """The value satisfies its equation on the port's own reported operands.

    A port may report an intermediate from one path and go on from another, so that the equation
    may also hold with reported intermediates replaced by their own equations; the first reading
    that holds is taken, else the direct one. None when nothing before it is reported: that is
    clause `bound`.
    """
    direct, name = None, answer.name
    for given, program in readings(answer.question.program, name, {*answer.reported} - {name}):
        comparison = _locally(answer, program, given)
        if comparison.holds:
            return comparison
        direct = direct or comparison
    return direct


def _locally(answer: Answer, program: Program, given: tuple[str, ...]) -> Comparison:
    question, name, reported = answer.question, answer.name, answer.reported
    model = question.arithmetic
    wider = FORMATS[model.storage].precision < FORMATS[model.accumulation].precision
    inherited = dict.fromkeys(given, 2 if wider else 1)
    others = [other for other in question.case.alternatives[1:] if name in other.tensors]
    alike = [program, *(other.restricted(frozenset(given), name) for other in others)]
    operands = {
        tensor.name: reported[tensor.name] if tensor.name in given else question.inputs[tensor.name]
        for each in alike
        for tensor in each.inputs
    }
    limits = question.limits(alike, operands, inherited)
    certified = question.certify(
        program,
        operands,
        question.sizes,
        question.dtype,
        wanted=(name,),
        bound={name: limits[name]},
        conventions=question.conventions,
    )
    return _compare(clauses.LOCAL, certified[name], limits[name], answer, given)


@compares(clauses.BOUND)
def bound(answer: Answer) -> Comparison:
    """The value lies inside the propagated bound around the certified value."""
    certified = answer.question.certified[answer.name]
    return _compare(clauses.BOUND, certified, answer.question.bounds[answer.name], answer, ())


def readings(
    program: Program, name: str, reported: Collection[str]
) -> Iterator[tuple[tuple[str, ...], Program]]:
    """Ways to compute `name` from reported intermediates, the most direct one first.

    Each is the reported tensors it starts from, in the order of the text, and the equations to
    evaluate. Tensors computed from the profile's inputs alone (Q, K, V) are never replaced:
    that would make every reading as loose as clause `bound`. Where none of them is reported, the
    last reading starts from the inputs, and is that clause.
    """
    own = {tensor.name for tensor in program.inputs}
    leading = {e.target.name for e in program.restricted(frozenset(), name).equations}
    replaceable = [
        equation.target.name
        for equation in program.equations
        if equation.target.name in leading.intersection(reported)
        if not own.issuperset(_tensors(program, equation))
    ]
    seen = set[tuple[str, ...]]()
    for count in range(len(replaceable) + 1):
        for replaced in combinations(replaceable, count):
            part = program.restricted(frozenset(reported) - set(replaced), name)
            given = tuple(tensor.name for tensor in part.inputs if tensor.name not in own)
            if not given and not seen:
                return  # Nothing is reported in the direct reading, so there is none to replace.
            if given not in seen:
                seen.add(given)
                yield given, part


def _tensors(program: Program, equation: Equation) -> set[str]:
    return program.tensors.keys() & set(equation.operands)


def _compare(
    clause: clauses.Clause,
    certified: Enclosure,
    limits: np.ndarray,
    answer: Answer,
    reading: tuple[str, ...],
) -> Comparison:
    # An operand out of range makes a reading undefined, not wrong.
    unknown = answer.excused | ~certified.known
    return Comparison(
        clause.word,
        certified.least_error(answer.value),
        limits,
        certified.sharp(limits),
        certified.center,
        unknown,
        reading,
    )


@dataclass(frozen=True)
class Resolution:
    """How much a pass says: bounds over the quantity's largest |value|."""

    worst: float
    vacuous: float
    """The share of entries whose bound is at least as large as the quantity itself."""


def resolution(answer: Answer, tried: Sequence[Comparison]) -> Resolution:
    """Per entry the smallest bound that was met, over the largest |value|.

    Where every value is 0, a bound of 0 is decisive and Σ|term| is the scale otherwise.
    """
    question, name = answer.question, answer.name
    holding = [comparison for comparison in tried if comparison.holds] or list(tried)
    smallest = np.min([comparison.bound for comparison in holding], axis=0)
    unknown = np.all([comparison.excused for comparison in holding], axis=0)
    unknown = unknown | answer.excused
    certified = question.certified[name]
    # A value that cannot be told from 0 is no scale.
    size = np.where(np.abs(certified.hi) > certified.radius, np.abs(certified.hi), 0.0)
    scale = float(np.nanmax(size, initial=0.0))
    if scale == 0.0:
        scale = float(
            np.nanmax(
                rounding.magnitude(
                    question.program, question.inputs, question.sizes, question.conventions
                )[name]
            )
        )
    # A scale may be as small as a bound on 0 is.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(smallest == 0, 0.0, smallest / scale)
    relative = np.where(unknown | np.isnan(relative), np.inf, relative)
    relative = relative[~question.undefined[name]]
    return Resolution(float(np.max(relative)), float(np.mean(relative >= 1.0)))


def spacing(value: np.ndarray, target: Format) -> np.ndarray:
    """The distance of neighbouring numbers of a format around `value`."""
    exponent = np.frexp(value)[1] - 1
    last = np.maximum(exponent, target.emin) - target.precision + 1
    return np.asarray(np.ldexp(1.0, last))


def format_of(array: np.ndarray) -> Format:
    return next(
        f for name, f in FORMATS.items() if name != "tfloat32" and dtype(name) == array.dtype
    )
