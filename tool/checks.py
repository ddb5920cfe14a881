"""The checks: what is asked of an implementation besides values (clause M, and the protocol).

Each compares answers with answers, bit by bit, or looks at what a call did besides answering. A
scaling or a change of signs says nothing about rounding: IEEE arithmetic commutes with both, as
long as no number on the way is subnormal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np

from qkvac.cells import Status
from qkvac.digests import same_bits
from qkvac.process import BackendError, Outcome, WorkerError, WorkerTimeout
from qkvac.relations import Array, Inputs, further, times
from qkvac.roster import Entry
from qkvac.spec.attention import PROFILES, Arithmetic
from qkvac.spec.cases import Case, cases
from qkvac.spec.cost import cost
from qkvac.spec.formats import FORMATS

Ask = Callable[[Inputs], Outcome]
"""Calls the implementation once more, in the same process."""
Record = Callable[[], Mapping[str, Any] | None]
"""The operations of a call, None where they are not recorded; raises what `Worker` raises."""


@dataclass(frozen=True)
class Finding:
    """What became of a check."""

    status: str
    reason: str | None = None
    clause: str | None = None


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


PASSED: Final = Finding(Status.PASSED)


def failed(reason: str) -> Finding:
    return Finding(Status.FAILED, reason, "M")


def names(entry: Entry, dtype: str, case: Case) -> tuple[str, ...]:
    """The checks that a subject's answer to a case is put to; few cases have any."""
    return tuple(name for name, check in CHECKS.items() if check.suits(entry, dtype, case))


# --- which cases ---------------------------------------------------------------------------


@cache
def _main(profile: str) -> str:
    """Id of the profile's plainest case: generic, in plain arrays, of more than one token."""
    plain = (c for c in cases(profile) if c.generic and c.compiled and not c.needs)
    return next((case.id for case in plain if min(case.sizes.values()) > 1), "")


def _is_main(entry: Entry, dtype: str, case: Case) -> bool:
    return case.id == _main(case.profile)


def _on_adapter(entry: Entry, dtype: str, case: Case) -> bool:
    return entry.subject.port is None and _is_main(entry, dtype, case)


def _in_named_mode(entry: Entry, dtype: str, case: Case) -> bool:
    """Where there is but one way to run, there is nothing to prove about it."""
    return entry.subject.mode != "default" and _on_adapter(entry, dtype, case)


def _scalable(entry: Entry, dtype: str, case: Case) -> bool:
    few = case.generic or PROFILES[case.profile].last in case.exact
    return case.compiled and few and stays_normal(case, dtype)


MARGIN: Final = 2.0**6
"""What scaling may divide a number by before it may be subnormal."""


@cache
def stays_normal(case: Case, dtype: str) -> bool:
    """Whether scaling by powers of two up to 8 keeps every number on the way normal.

    Rounded or not, a sum of multiples of g is a multiple of g. So no number on the way to a
    product X @ Y is smaller than the granule of X times that of Y, unless it is 0.
    """
    form = FORMATS[dtype]
    real = {name: array.astype(np.float64) for name, array in case.inputs(dtype).items()}
    projected = {name: real["X"] @ real[f"W{name.lower()}"] for name in ("Q", "K", "V")}
    if real["X"].size == 0:
        return False
    of_inputs = granule(real["X"]) * min(granule(real[name]) for name in ("Wq", "Wk", "Wv"))
    of_stored = {name: _stored(array, real, dtype, of_inputs) for name, array in projected.items()}
    scores = projected["Q"] @ projected["K"].T
    logits = scores / math.sqrt(projected["K"].shape[1])
    spread = float(np.max(logits.max(axis=1) - logits.min(axis=1)))
    weight = math.exp(-min(spread, 700.0)) / len(scores) * 2.0 ** (1 - form.precision)
    smallest = (of_inputs, of_stored["Q"] * of_stored["K"], weight * of_stored["V"])
    largest = max(float(np.max(np.abs(x))) for x in (*real.values(), *projected.values(), scores))
    return min(smallest) >= MARGIN * form.tiny and largest <= form.largest / MARGIN


def granule(array: Array) -> float:
    """The largest power of two of which every entry is a multiple; 1 for all zeros."""
    values = array[array != 0]
    if not values.size:
        return 1.0
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    trailing = np.log2((whole & -whole).astype(np.float64))
    return float(2.0 ** np.min(exponent - 53 + trailing))


def _stored(array: Array, inputs: Inputs, dtype: str, least: float) -> float:
    """A granule of a projection as an implementation stores it; `least` is that of its terms.

    Entries that no rounding brings near 0 keep their magnitude, and have p bits.
    """
    form = FORMATS[dtype]
    terms = np.abs(inputs["X"]) @ np.max([np.abs(inputs[w]) for w in ("Wq", "Wk", "Wv")], axis=0)
    accumulator = FORMATS[Arithmetic.for_dtype(dtype).accumulation]
    error = inputs["X"].shape[1] * accumulator.unit * terms
    nonzero = np.abs(array[array != 0])
    if nonzero.size and np.all(np.abs(array) > 2 * error):
        return max(least, float(2.0 ** np.floor(np.log2(nonzero.min() / 2))) * 2 * form.unit)
    return least


# --- the checks ----------------------------------------------------------------------------


def unchanged(visit: Visit) -> Finding:
    """The inputs have the same bits after the call, and no result lies in an input's memory."""
    if visit.outcome.mutated:
        return failed(f"the call changes its input {', '.join(visit.outcome.mutated)}")
    shared = [f"{out} in {of}" for out, of in visit.outcome.aliases if of in visit.inputs]
    if shared:
        return failed(f"a result lies in the memory of an input: {', '.join(shared)}")
    return PASSED


def repeat(visit: Visit) -> Finding:
    """The same call again gives the same bits, and leaves the first results alone."""
    outcome = visit.outcome
    if outcome.overwritten:
        return failed(f"a second call overwrites {', '.join(outcome.overwritten)} of the first")
    if not outcome.unstable:
        return PASSED
    text = f"the same call again gives other bits in {', '.join(outcome.unstable)}"
    if not visit.entry.declaration.deterministic:
        return Finding(Status.PASSED, f"{text}, as declared")
    return failed(text)


def state(visit: Visit) -> Finding:
    """A call with other values gives other results in other memory, and changes nothing."""
    other = visit.ask(visit.case.drawn(1).inputs(visit.dtype))
    if other.status != "ok":
        return Finding(other.status, other.reason)
    lent = [of.removeprefix("earlier ") for _, of in other.aliases if of.startswith("earlier ")]
    if lent:
        return failed(f"a later call overwrites the {lent[0]} of an earlier one")
    for name, array in visit.outcome.outputs.items():
        # An answer without information says nothing about memory: it fails elsewhere.
        if array.size < 2 or np.all(array == array.flat[0]):
            continue
        if name in other.outputs and same_bits(array, other.outputs[name]):
            return failed(f"a call with other values returns the {name} of an earlier call")
    again = visit.ask(visit.inputs)
    if again.status != "ok":
        return Finding(again.status, again.reason)
    return _compare(visit, again, {}, "after a call with other values, the same call")


def scaling(visit: Visit) -> Finding:
    """Powers of two move through every equation without a rounding."""
    moved, spread = further("scaling", visit.inputs)
    finding = _transformed(visit, moved, {}, "with 4X and W/4, the call")
    if finding.status != Status.PASSED:
        return finding
    results = {"Q": 2.0, "K": 0.5, "V": 8.0, "C": 8.0}
    return _transformed(visit, spread, results, "with 2Wq, Wk/2 and 8Wv, the call")


def signs(visit: Visit) -> Finding:
    """Signs move through every equation without a rounding."""
    both, values = further("signs", visit.inputs)
    finding = _transformed(visit, both, {"Q": -1.0, "K": -1.0}, "with −Wq and −Wk, the call")
    if finding.status != Status.PASSED:
        return finding
    return _transformed(visit, values, {"V": -1.0, "C": -1.0}, "with −Wv, the call")


def environment(visit: Visit) -> Finding:
    """The call leaves rounding mode and treatment of subnormals as they were."""
    found = visit.outcome.fp_environment
    if found == "unchanged":
        return PASSED
    return failed(f"the call leaves the floating-point environment changed: {found}")


def mode(visit: Visit) -> Finding:
    """The adapter proves that the mode ran as named; one that did not is an error already."""
    evidence = visit.outcome.evidence
    if not evidence:
        return failed("there is no evidence of how this mode ran")
    return Finding(Status.PASSED, ", ".join(f"{k} {v}" for k, v in evidence.items()))


def budget(visit: Visit) -> Finding:
    """The declared matrix products, no more, and the declared number of transpositions."""
    try:
        recorded = visit.record()
    except BackendError as error:
        return Finding(error.status, str(error))
    except WorkerTimeout as error:
        return Finding(Status.TIMEOUT, str(error))
    except WorkerError as error:
        return Finding(Status.CRASH, str(error))
    if recorded is None:
        return Finding(Status.NOT_REPORTED, "operations are not recorded")
    allowed = PROFILES[visit.case.profile].budget
    assert allowed is not None
    try:
        turned = int(recorded["transpositions"])
        found = Counter(
            tuple(tuple(map(int, product[side])) for side in ("left", "right", "out"))
            for product in recorded["contractions"]
        )
    except (KeyError, TypeError, ValueError) as error:
        return Finding(Status.ERROR, f"the record of operations is malformed: {error!r}")
    wrong = [f"{n}× {_product(p)} too many" for p, n in (found - _declared(visit.case)).items()]
    wrong += [f"{n}× {_product(p)} absent" for p, n in (_declared(visit.case) - found).items()]
    if turned > allowed.transpositions:
        wrong.append(f"{turned} transpositions, at most {allowed.transpositions} needed")
    text = f"{found.total()} matrix products, {turned} transpositions"
    if not wrong:
        return Finding(Status.PASSED, text)
    if visit.entry.subject.mode not in REQUIRED:
        return Finding(Status.PASSED, f"for information: {text} ({'; '.join(wrong)})")
    return failed("; ".join(wrong))


REQUIRED: Final = ("eager", "jit")
"""Modes whose operations are those of the adapter's own text."""

Product = tuple[tuple[int, ...], ...]


def _declared(case: Case) -> Counter[Product]:
    """Shapes (left, right, out) of the products that the equations declare."""
    declared = cost(PROFILES[case.profile].program(), case.sizes)
    return Counter((product.left, product.right, product.out) for product in declared.products)


def _product(product: Product) -> str:
    left, right, out = ("×".join(map(str, side)) for side in product)
    return f"{left} @ {right} → {out}"


def _transformed(visit: Visit, inputs: Inputs, results: Mapping[str, float], what: str) -> Finding:
    outcome = visit.ask(inputs)
    if outcome.status != "ok":
        return Finding(outcome.status, outcome.reason)
    return _compare(visit, outcome, results, what)


def _compare(visit: Visit, outcome: Outcome, factors: Mapping[str, float], what: str) -> Finding:
    """Whether the second answer is the first, each quantity times its power of two."""
    first, second = visit.outcome.outputs, outcome.outputs
    if first.keys() != second.keys():
        return failed(f"{what} returns other quantities")
    for name, array in first.items():
        expected = times(array, factors.get(name, 1.0))
        if not same_bits(expected, second[name]):
            scaled = f", not {factors[name]:g} times the first" if name in factors else ""
            return failed(
                f"{what} gives other bits in {name}{scaled}{_where(expected, second[name])}"
            )
    return PASSED


def _where(expected: Array, found: Array) -> str:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f": {found.dtype.name}{list(found.shape)}"
    wrong = np.argwhere(~((expected == found) | ((expected != expected) & (found != found))))
    index = tuple(int(i) for i in wrong[0])
    return f": {float(found[index])!r} at {list(index)}, expected {float(expected[index])!r}"


Suits = Callable[[Entry, str, Case], bool]


@dataclass(frozen=True)
class Check:
    """A check, and the cases that it is made on."""

    run: Callable[[Visit], Finding]
    suits: Suits


def _unchanged_suits(entry: Entry, dtype: str, case: Case) -> bool:
    return _is_main(entry, dtype, case) or bool(case.layouts)


def _repeat_suits(entry: Entry, dtype: str, case: Case) -> bool:
    return case.compiled and (case.generic or case.family == "ternary")


def _environment_suits(entry: Entry, dtype: str, case: Case) -> bool:
    return case.compiled and not case.exact


def _signs_suit(entry: Entry, dtype: str, case: Case) -> bool:
    on_cpu = entry.subject.device.partition(":")[0] == "cpu"
    return on_cpu and _scalable(entry, dtype, case)


CHECKS: Final[Mapping[str, Check]] = {
    "unchanged": Check(unchanged, _unchanged_suits),
    "repeat": Check(repeat, _repeat_suits),
    "state": Check(state, _is_main),
    "scaling": Check(scaling, _scalable),
    "signs": Check(signs, _signs_suit),
    "environment": Check(environment, _environment_suits),
    "budget": Check(budget, _on_adapter),
    "mode": Check(mode, _in_named_mode),
}
