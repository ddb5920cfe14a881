"""The checks of the protocol: what a call does besides answering, and which operations it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Final

import numpy as np

from qkvac.cells import Status
from qkvac.checks.findings import PASSED, Finding, UnansweredError, Visit, answer, compared, failed
from qkvac.digests import same_bits
from qkvac.isolation.process import BackendError, WorkerError, WorkerTimeout
from qkvac.spec.cases.case import Case
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic.cost import cost


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
        raise UnansweredError(other)
    lent = [of.removeprefix("earlier ") for _, of in other.aliases if of.startswith("earlier ")]
    if lent:
        return failed(f"a later call overwrites the {lent[0]} of an earlier one")
    for name, array in visit.outputs.items():
        # An answer without information says nothing about memory: it fails elsewhere.
        if array.size < 2 or np.all(array == array.flat[0]):
            continue
        if name in other.outputs and same_bits(array, other.outputs[name]):
            return failed(f"a call with other values returns the {name} of an earlier call")
    again = answer(visit, visit.inputs)
    return compared(visit.outputs, again, "after a call with other values, the same call")


def environment(visit: Visit) -> Finding:
    """The call leaves rounding mode and treatment of subnormals as they were."""
    found = visit.outcome.fp_environment
    if found == "unchanged":
        return PASSED
    return failed(f"the call leaves the floating-point environment changed: {found}")


def mode(visit: Visit) -> Finding:
    """What the adapter counts shows that the mode ran as named, as its declaration has it."""
    declaration, subject = visit.entry.declaration, visit.entry.subject
    before, after = map(counted, (visit.outcome.evidence_before, visit.outcome.evidence))
    calls = len(visit.outcome.times)
    shown = []
    for pattern, due in declaration.evidence.get(subject.mode, {}).items():
        number, earlier = (_total(numbers, pattern) for numbers in (after, before))
        if number is None:
            return failed(f"there is no evidence that {subject.mode} ran: {pattern} is not told")
        grown = number - (earlier or 0)
        held = {"each call": grown == calls, "some": number > 0, "none": number == 0}[due]
        text = f"{pattern} {number}, {grown} in {calls} calls"
        if not held:
            return failed(f"{subject.mode} did not run as named: {text}, where {due} has to show")
        shown.append(text)
    return Finding(Status.PASSED, "; ".join(shown))


def counted(told: Mapping[str, Any], path: str = "") -> dict[str, int]:
    """What was counted, by name; texts count for nothing, and a list for its length."""
    found = dict[str, int]()
    for name, value in told.items():
        if isinstance(value, Mapping):
            found |= counted(value, f"{path}{name}.")
        elif isinstance(value, int | list):
            found[f"{path}{name}"] = len(value) if isinstance(value, list) else value
    return found


def _total(numbers: Mapping[str, int], pattern: str) -> int | None:
    """The sum of what a pattern names; None where it names nothing."""
    found = [number for name, number in numbers.items() if fnmatchcase(name, pattern)]
    return sum(found) if found else None


# --- the budget ------------------------------------------------------------------------------

REQUIRED: Final = ("eager", "jit")
"""Modes whose operations are those of the adapter's own text."""

Product = tuple[int, int, int]
"""Rows of all results of a product that is made at once, its inner length, and its columns."""


def budget(visit: Visit) -> Finding:
    """The declared matrix products, no more, and the declared number of transpositions.

    Where a profile declares no number, moving heads about takes transpositions: those are told.
    Modes that rewrite the adapter's operations need not meet it: what they do is informational.
    """
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
    try:
        turned = int(recorded["transpositions"])
        found = Counter(_product(product) for product in recorded["contractions"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return Finding(Status.ERROR, f"the record of operations is malformed: {error!r}")
    declared = _declared(visit.case)
    wrong = [f"{n}× {_text(p)} too many" for p, n in (found - declared).items()]
    wrong += [f"{n}× {_text(p)} absent" for p, n in (declared - found).items()]
    allowed = known_profiles()[visit.case.profile].budget
    if allowed is not None and turned > allowed.transpositions:
        wrong.append(f"{turned} transpositions, at most {allowed.transpositions} needed")
    text = f"{found.total()} matrix products, {turned} transpositions"
    if visit.entry.subject.mode not in REQUIRED:
        return Finding(Status.INFORMATIONAL, "; ".join((text, *wrong)))
    return failed("; ".join(wrong)) if wrong else Finding(Status.PASSED, text)


def _product(recorded: Any) -> Product:
    """A recorded product. Heads and samples may be leading axes, or rows; a vector is a column."""
    left, right, out = (tuple(map(int, recorded[side])) for side in ("left", "right", "out"))
    columns = out[-1] if len(right) > 1 else 1
    return prod(out) // max(columns, 1), left[-1], columns


def _declared(case: Case) -> Counter[Product]:
    """The products that the equations declare."""
    declared = cost(case.program, case.bindings, case.batch).products
    return Counter((prod(p.out[:-1]), p.left[-1], p.out[-1]) for p in declared)


def _text(product: Product) -> str:
    rows, inner, columns = product
    return f"{rows}×{inner} @ {inner}×{columns} → {rows}×{columns}"
