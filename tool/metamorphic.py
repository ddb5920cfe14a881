"""The metamorphic checks: answers to related inputs, compared with each other.

A scaling or a change of signs says nothing about rounding: IEEE arithmetic commutes with both, as
long as no number on the way is subnormal. What a query may not see cannot change a bit of its
result. Where the same value may be computed in another order, two answers may differ by rounding,
each within its bound (clause B); whether their bits are equal is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkvac.cells import Status
from qkvac.digests import same_bits
from qkvac.findings import (
    PASSED,
    Finding,
    Visit,
    answer,
    compared,
    failed,
    listed,
    where,
)
from qkvac.relations import (
    MOVES,
    Array,
    Inputs,
    further,
    last_kept,
    last_sample,
    one_query,
    order,
)
from qkvac.spec import rounding
from qkvac.spec.faulty import compute
from qkvac.spec.presentation import of_values
from qkvac.spec.verdict import Question
from qkvac.spec.visibility import visible

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
    moves = MOVES[visit.case.profile][check]
    asked = further(check, visit.case, visit.dtype, visit.inputs)
    for move, inputs in zip(moves, asked, strict=True):
        names = [_factor(n, f) for n, f in move.inputs.items() if n in inputs]
        what = f"with {listed(names)}, the call"
        finding = compared(visit.outputs, answer(visit, inputs), what, move.results)
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
    case, sizes = visit.case, visit.case.sizes
    ahead = sizes["S"] - sizes["L"] if _alignment(visit) == "bottom-right" and "S" in sizes else 0
    asked = further("future", case, visit.dtype, visit.inputs)
    for kept, inputs in zip(last_kept(case), asked, strict=True):
        rows = slice(0, max(kept + 1 - ahead, 0))
        what = f"with other tokens after {kept}, the call"
        finding = _rows(visit, answer(visit, inputs), rows, what, _blind(visit))
        if finding.status != Status.PASSED:
            return finding
    return PASSED


def own_row(visit: Visit) -> Finding:
    """Another query token changes no row but its own."""
    row = one_query(visit.case)
    rows = np.arange(visit.case.sizes["L"]) != row
    (inputs,) = further("own-row", visit.case, visit.dtype, visit.inputs)
    return _rows(visit, answer(visit, inputs), rows, f"with another query {row}, the call")


def _blind(visit: Visit) -> Array:
    """Queries without keys, where those get the mean of all values, later ones included."""
    mean = visit.entry.declaration.conventions["empty_row"] == "mean"
    if not (mean and visit.case.masked):
        return np.array(False)
    return np.asarray(~_kept(visit).any(-1))


def _rows(
    visit: Visit,
    other: Mapping[str, Array],
    rows: Any,
    what: str,
    blind: Array = np.array(False),  # noqa: B008
) -> Finding:
    """Whether some rows of the weights, and of all that follows, have the same bits."""
    quantities = visit.case.quantities
    for name in quantities[quantities.index("A") :]:
        if name not in visit.outputs:
            continue
        if name not in other:
            return failed(f"{what} returns other quantities")
        first, second = visit.outputs[name], other[name]
        if first.shape != second.shape or first.ndim < 2:
            return failed(f"{what} returns {name} in another shape")
        excused = np.broadcast_to(blind[..., None], first.shape)
        kept, found = (
            np.where(excused, array.dtype.type(0), array)[..., rows, :] for array in (first, second)
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
    """A first query that sees the first key alone gets its values as they are."""
    case = visit.case
    values = visit.inputs.get("V", visit.outputs.get("V"))
    if values is None:
        return Finding(Status.NOT_REPORTED, "V is not returned")
    result = visit.outputs.get("C")
    if result is None:
        return Finding(Status.NOT_REPORTED, "C is not returned")
    expected = values[..., 0, :]
    alone = np.array(True)
    if "h" in case.sizes and "V" in visit.inputs:
        expected = np.repeat(values, case.sizes["h"] // case.sizes["g"], -3)[..., 0, :]
        alone = _kept(visit)[..., 0, :]
        alone = (alone.sum(-1) == 1) & alone[..., 0]
    found = result[..., 0, :]
    if found.shape != expected.shape:
        return failed(f"C has the shape {list(result.shape)}")
    which = np.broadcast_to(alone[..., None], found.shape)
    if not which.any():
        return Finding(Status.SKIPPED, "no first query sees the first key alone")
    # A plain 0 has no common dtype with bfloat16 in NumPy 1.
    kept = np.where(which, expected, expected.dtype.type(0))
    copied = np.where(which, found, found.dtype.type(0))
    if same_bits(kept, copied):
        return PASSED
    place = where(kept, copied)
    if visit.entry.arithmetic(visit.dtype).softmax == "shifted, divided":
        return failed(f"C[0] is not V[0], the only values that its query sees{place}")
    bounds = bounds_of(visit, visit.inputs)
    room = bounds["C"][..., 0, :]
    if "V" not in visit.inputs:
        room = room + bounds["V"][..., 0, :]
    if not within(kept, copied, room):
        return failed(f"C[0] differs from V[0] by more than rounding allows{place}")
    return Finding(Status.PASSED, "bits of C[0] and V[0] differ, as allowed")


def _alignment(visit: Visit) -> str:
    return visit.entry.declaration.conventions["causal_alignment"]


def _kept(visit: Visit) -> Array:
    """Which keys each query sees, for all heads and samples."""
    return visible(visit.case, visit.inputs, visit.entry.declaration.conventions)


# --- sensitivity -----------------------------------------------------------------------------


def sensitivity(visit: Visit) -> Finding:
    """Every input changes what it has to change, by more than rounding can undo."""
    names = [name for name in visit.inputs if name != "mask"]
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
    with np.errstate(all="ignore"):
        values = compute(case.program, wide, case.bindings, "float64")
    bounds = rounding.bounds(case.program, inputs, case.bindings, model)
    return {name: (values[name], bounds[name]) for name in bounds}


# --- the same value in another way ------------------------------------------------------------


def permutation(visit: Visit) -> Finding:
    """Without a causal mask the order of the keys, or of all tokens, is none of the result."""
    (inputs,) = further("permutation", visit.case, visit.dtype, visit.inputs)
    other = answer(visit, inputs)
    changed = {name: array for name, array in inputs.items() if array is not visit.inputs[name]}
    tokens = next(iter(changed.values())).shape[-2]
    by_rows = "X" in changed

    def back(name: str, array: Array) -> Array:
        if name in ("Ω", "A"):
            array = np.take(array, np.argsort(order(tokens)), -1)
        return np.take(array, np.argsort(order(tokens)), -2) if by_rows else array

    restored = {name: back(name, array) for name, array in other.items()}
    bounds = {name: back(name, array) for name, array in bounds_of(visit, inputs).items()}
    return alike(visit, restored, bounds, "permuted tokens")


def samples(visit: Visit) -> Finding:
    """A sample gives the same in a batch as alone."""
    count = len(visit.case.batch)
    at = (0,) * count
    inputs = {
        name: array[at] if name not in ("mask",) and _is_batched(name, array, visit) else array
        for name, array in visit.inputs.items()
    }
    other = answer(visit, inputs)
    first = {name: array[at] for name, array in visit.outputs.items()}
    mine = {name: array[at] for name, array in bounds_of(visit, visit.inputs).items()}
    return alike(visit, other, bounds_of(visit, inputs), "a sample alone", first, mine)


def _is_batched(name: str, array: Array, visit: Visit) -> bool:
    rank = next(t.rank for t in visit.case.program.inputs if t.name == name)
    return array.ndim > rank


def mask_forms(visit: Visit) -> Finding:
    """A mask that drops nothing is none, and a mask that broadcasts is the whole mask."""
    sizes = visit.case.sizes
    whole = (*visit.case.batch, sizes["h"], sizes["L"], sizes["S"])
    mask = visit.inputs.get("mask")
    if mask is not None:
        forms = {"the expanded mask": np.broadcast_to(mask, whole).copy()}
    else:
        forms = {
            "a mask that is all True": np.ones(whole[-2:], bool),
            "an additive mask of zeros": np.zeros(whole[-2:], visit.inputs["Q"].dtype),
        }
    bounds = bounds_of(visit, visit.inputs)
    different = []
    for what, form in forms.items():
        other = answer(visit, {**visit.inputs, "mask": form})
        finding = alike(visit, other, bounds, what)
        if finding.status != Status.PASSED:
            return finding
        if finding.different:
            different.append(f"{finding.reason} with {what}")
    return Finding(Status.PASSED, "; ".join(different) or EQUAL)


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
    reason = f"bits differ in {listed(different)}, as allowed"
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
