"""The metamorphic checks: answers to related inputs, compared with each other.

A scaling or a change of signs says nothing about rounding: IEEE arithmetic commutes with both, as
long as no number on the way is subnormal. What a query may not see cannot change a bit of its
result. Where the same value may be computed in another order, two answers may differ by rounding,
each within its bound (clause B); whether their bits are equal is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qkvac.cells import Status
from qkvac.checks.findings import (
    PASSED,
    Finding,
    Visit,
    answer,
    compared,
    failed,
    listed,
    where,
)
from qkvac.checks.relations import (
    Array,
    Disturbance,
    Inputs,
    copied,
    factors,
    further,
    last_sample,
    later_tokens,
    moves,
    own_rows,
    permutations,
)
from qkvac.digests import same_bits
from qkvac.spec.bounds import rounding
from qkvac.spec.conventions import of_values
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.grammar.equations import fold
from qkvac.spec.symbolic.copies import copies
from qkvac.spec.verdicts.verdict import Question

CERTAIN = 4.0
"""A difference of more than so many bounds cannot be due to rounding in two runs."""


# --- powers of two and signs -----------------------------------------------------------------


def scaling(visit: Visit) -> Finding:
    """Powers of two move through every equation without a rounding."""
    return _moved(visit, "scaling")


def signs(visit: Visit) -> Finding:
    """Signs move through every equation without a rounding."""
    return _moved(visit, "signs")


def _moved(visit: Visit, check: str) -> Finding:
    asked = further(check, visit.case, visit.dtype, visit.inputs)
    for move, inputs in zip(moves(check, visit.case), asked, strict=True):
        names = [_factor(n, f) for n, f in factors(check, move.inputs).items()]
        what = f"with {listed(names)}, the call"
        results = factors(check, move.results)
        finding = compared(visit.outputs, answer(visit, inputs), what, results)
        if finding.status != Status.PASSED:
            return finding
    return PASSED


def _factor(name: str, factor: float) -> str:
    if factor == -1:
        return f"−{name}"
    return f"{factor:g}{name}" if factor > 1 else f"{name}/{1 / factor:g}"


# --- what a query may not see ----------------------------------------------------------------


def future(visit: Visit) -> Finding:
    """Where attention is causal, later tokens change no bit of what earlier ones get."""
    return _independent(visit, "future", later_tokens(visit.case))


def own_row(visit: Visit) -> Finding:
    """Another query token changes no row but its own."""
    return _independent(visit, "own-row", own_rows(visit.case))


def _independent(visit: Visit, check: str, disturbances: Sequence[Disturbance]) -> Finding:
    """Whether all entries that some others have no influence on keep their bits."""
    conventions = of_values(visit.entry.declaration.conventions)
    asked = further(check, visit.case, visit.dtype, visit.inputs)
    for disturbance, inputs in zip(disturbances, asked, strict=True):
        other = answer(visit, inputs)
        what = f"with {disturbance.what}, the call"
        reached = disturbance.influenced(visit.case, visit.inputs, conventions)
        if visit.outputs.keys() != other.keys():
            return failed(f"{what} returns other quantities")
        for name, first in visit.outputs.items():
            second = other[name]
            if first.shape != second.shape or first.shape != reached[name].shape:
                return failed(f"{what} returns {name} in another shape")
            kept, found = (
                np.where(reached[name], array.dtype.type(0), array) for array in (first, second)
            )
            if not same_bits(kept, found):
                return failed(f"{what} changes rows of {name} that do not depend on them")
    return PASSED


def batch(visit: Visit) -> Finding:
    """Another sample in a batch changes no bit of the others' results."""
    at = last_sample(visit.case)
    (inputs,) = further("batch", visit.case, visit.dtype, visit.inputs)
    other = answer(visit, inputs)
    what = f"with another sample {list(at)}, the call"
    if visit.outputs.keys() != other.keys():
        return failed(f"{what} returns other quantities")
    for name, first in visit.outputs.items():
        second = other[name]
        if first.shape != second.shape or first.shape[: len(at)] != visit.case.batch:
            return failed(f"{what} returns {name} in another shape")
        others = np.ones(visit.case.batch, bool)
        others[at] = False
        if not same_bits(first[others], second[others]):
            return failed(f"{what} changes {name} of other samples")
    return PASSED


def first_row(visit: Visit) -> Finding:
    """A query that sees one key alone, as the first one does, gets its values as they are."""
    case, outputs = visit.case, visit.outputs
    conventions = of_values(visit.entry.declaration.conventions)
    asked = copied(case, conventions.get("causal_alignment", "top-left"))
    if not asked:
        return Finding(Status.SKIPPED, "no query sees one key alone as causality is declared")
    missing = next((name for name in asked if name not in outputs), "")
    if missing:
        return Finding(Status.NOT_REPORTED, f"{missing} is not returned")
    bounds = bounds_of(visit, visit.inputs)
    found = copies(case.program, visit.inputs, case.bindings, outputs, bounds, conventions)
    if not found.keys() & set(asked):
        return Finding(Status.NOT_REPORTED, "the values are not returned")
    different = []
    for name in (name for name in asked if name in found):
        expected, told = found[name], outputs[name]
        if told.shape != expected.shape:
            return failed(f"{name} has the shape {list(told.shape)}")
        # In float64, which holds all of them: a narrower dtype than asked for has lost digits.
        values = np.where(expected.known, expected.value, 0.0)
        copy = np.where(expected.known, told.astype(np.float64), 0.0)
        if np.array_equal(values, copy):
            continue
        different.append(name)
        place = where(values, copy)
        if visit.entry.arithmetic(visit.dtype).softmax == "shifted, divided":
            return failed(f"{name} is not what its query sees alone{place}")
        if not within(values, copy, expected.room + bounds[name]):
            what = f"{name} differs from what its query sees alone"
            return failed(f"{what} by more than rounding allows{place}")
    if not different:
        return PASSED
    what = f"bits differ in {listed(different)} where a query sees one key alone"
    return Finding(Status.PASSED, f"{what}, as allowed")


# --- sensitivity -----------------------------------------------------------------------------


def sensitivity(visit: Visit) -> Finding:
    """Every input changes what it has to change, by more than rounding can undo."""
    names = [name for name in visit.inputs if name not in visit.case.declared.masks]
    asked = further("sensitivity", visit.case, visit.dtype, visit.inputs)
    before = _evaluated(visit, visit.inputs)
    for name, inputs in zip(names, asked, strict=True):
        after = _evaluated(visit, inputs)
        other = answer(visit, inputs)
        for quantity in reversed(visit.case.quantities):
            if quantity not in visit.outputs:
                continue
            (one, bound), (two, room) = before[quantity], after[quantity]
            certain = np.abs(one - two) > CERTAIN * (bound + room)
            if not certain.any():
                # A key bias, for one, moves all scores of a query alike.
                continue
            if quantity not in other or other[quantity].shape != certain.shape:
                return failed(f"with another {name}, the call returns no such {quantity}")
            if np.any((visit.outputs[quantity] == other[quantity])[certain]):
                return failed(f"{quantity} stays the same where another {name} has to change it")
            break
    return PASSED


def _evaluated(visit: Visit, inputs: Inputs) -> Mapping[str, tuple[Array, Array]]:
    """All quantities as float64, and how far rounding may take them."""
    case, model = visit.case, visit.entry.arithmetic(visit.dtype)
    wide = {
        name: array if array.dtype.kind in "bi" else array.astype(np.float64)
        for name, array in inputs.items()
    }
    chosen = of_values(visit.entry.declaration.conventions)
    with np.errstate(all="ignore"):
        values = compute(case.program, wide, case.bindings, "float64", chosen)
    bounds = rounding.bounds(case.program, inputs, case.bindings, model, conventions=chosen)
    return {name: (values[name], bounds[name]) for name in bounds}


# --- the same value in another way ------------------------------------------------------------


def permutation(visit: Visit) -> Finding:
    """Where nothing goes by it, the order of keys, queries or tokens is none of the result."""
    case, findings = visit.case, []
    asked = further("permutation", case, visit.dtype, visit.inputs)
    tensors = case.program.tensors
    for moved, inputs in zip(permutations(case), asked, strict=True):
        other, bounds = answer(visit, inputs), bounds_of(visit, inputs)
        restored, room = (
            {name: moved.applied(tensors[name], array, back=True) for name, array in found.items()}
            for found in (other, bounds)
        )
        findings.append(alike(visit, restored, room, str(moved)))
    return _all(findings)


def samples(visit: Visit) -> Finding:
    """A sample gives the same in a batch as alone."""
    at = (0,) * len(visit.case.batch)
    shared = visit.case.declared.without_batch
    inputs = {name: array if name in shared else array[at] for name, array in visit.inputs.items()}
    other = answer(visit, inputs)
    first = {name: array[at] for name, array in visit.outputs.items()}
    mine = {name: array[at] for name, array in bounds_of(visit, visit.inputs).items()}
    return alike(visit, other, bounds_of(visit, inputs), "a sample alone", first, mine)


def mask_forms(visit: Visit) -> Finding:
    """A mask that drops nothing is none, and a mask that broadcasts is the whole mask."""
    case, findings = visit.case, []
    bounds = bounds_of(visit, visit.inputs)
    for name in case.declared.masks:
        axes = case.declared.inputs[name].axes
        whole = tuple(int(fold(axis, case.sizes).rational()) for axis in axes)
        mask = visit.inputs.get(name)
        if mask is not None:
            expanded = np.broadcast_to(mask, (*case.batch, *whole)).copy()
            forms = {f"the expanded {name}": expanded}
        else:
            stored = next(a.dtype for a in visit.inputs.values() if a.dtype.kind not in "bi")
            forms = {
                f"a {name} that is all True": np.ones(whole[-2:], bool),
                f"an additive {name} of zeros": np.zeros(whole[-2:], stored),
            }
        for what, form in forms.items():
            other = answer(visit, {**visit.inputs, name: form})
            findings.append(alike(visit, other, bounds, what))
    return _all(findings)


def _all(findings: Sequence[Finding]) -> Finding:
    """The first that failed, or what is told of those that passed."""
    for finding in findings:
        if finding.status != Status.PASSED:
            return finding
    told = [finding.reason or "" for finding in findings if finding.different]
    return Finding(Status.PASSED, "; ".join(dict.fromkeys(told)) or EQUAL)


EQUAL = "bits equal"


def alike(
    visit: Visit,
    other: Mapping[str, Array],
    room: Mapping[str, Array],
    what: str,
    first: Mapping[str, Array] | None = None,
    own: Mapping[str, Array] | None = None,
) -> Finding:
    """Whether two answers lie within the bounds of both; reports whether their bits are equal."""
    first = visit.outputs if first is None else first
    own = bounds_of(visit, visit.inputs) if own is None else own
    different = []
    for name, array in first.items():
        if name not in other or other[name].shape != array.shape:
            return failed(f"with {what}, the call returns no such {name}")
        if same_bits(array, other[name]):
            continue
        different.append(name)
        if not within(array, other[name], own[name] + room[name]):
            return failed(f"with {what}, {name} differs by more than rounding allows")
    if not different:
        return Finding(Status.PASSED, EQUAL)
    reason = f"bits differ in {listed(different)} with {what}, as allowed"
    return Finding(Status.PASSED, reason, different=tuple(different))


def within(first: Array, second: Array, room: Array) -> bool:
    """Whether all entries are equal, or no further apart than `room`; NaN is as good as NaN."""
    one, two = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(one - two) <= room
    return bool(np.all(near | (one == two) | (np.isnan(one) & np.isnan(two))))


def bounds_of(visit: Visit, inputs: Inputs) -> Mapping[str, Array]:
    """How far rounding may take each quantity from its true value."""
    conventions = of_values(visit.entry.declaration.conventions)
    model = visit.entry.arithmetic(visit.dtype)
    question = Question(visit.case, visit.dtype, model, conventions=conventions)
    return question.limits(visit.case.alternatives, inputs)


__all__: Sequence[str] = (
    *("scaling", "signs", "future", "own_row", "batch", "first_row"),
    *("sensitivity", "permutation", "samples", "mask_forms"),
)
