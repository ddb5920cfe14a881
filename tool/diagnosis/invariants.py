"""Invariants: what holds and what fails in the answers that no catalogued fault explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qkvac.diagnosis.samples import Sample
from qkvac.diagnosis.symmetries import Symmetry
from qkvac.spec.faults.sites.roles import Roles
from qkvac.spec.formats import FORMATS
from qkvac.spec.symbolic.shapes import contract

Array = np.ndarray[Any, Any]
Outputs = Mapping[str, Array]

SLACK: Final = 64.0
"""In units of √n·u: generous for a correct sum, small beside any fault worth a name."""


def _sums(axis: int) -> Callable[[Outputs, float], bool | None]:
    def test(outputs: Outputs, unit: float) -> bool | None:
        if "A" not in outputs:
            return None
        total = outputs["A"].sum(axis=axis)
        return bool(np.all(np.abs(total - 1) <= SLACK * unit * max(len(total), 1) ** 0.5))

    return test


def _positive(outputs: Outputs, unit: float) -> bool | None:
    return bool(np.all(outputs["A"] >= 0)) if "A" in outputs else None


def _hull(outputs: Outputs, unit: float) -> bool | None:
    """Every context vector lies between the smallest and the largest value of each column."""
    if not {"V", "C"} <= outputs.keys() or not outputs["V"].size:
        return None
    values = outputs["V"]
    low, high = values.min(axis=-2, keepdims=True), values.max(axis=-2, keepdims=True)
    room = SLACK * unit * np.abs(values).max(axis=-2, keepdims=True)
    return bool(np.all((outputs["C"] >= low - room) & (outputs["C"] <= high + room)))


def _symmetric(outputs: Outputs, unit: float) -> bool | None:
    scores = outputs.get("Ω", np.zeros((1, 1)))
    if scores.shape[-1] < 2 or scores.shape[-1] != scores.shape[-2]:
        return None
    room = SLACK * unit * np.abs(scores).max()
    return bool(np.all(np.abs(scores - np.swapaxes(scores, -1, -2)) <= room))


def _finite(outputs: Outputs, unit: float) -> bool | None:
    return all(bool(np.all(np.isfinite(array))) for array in outputs.values())


INVARIANTS: Final[Mapping[str, Callable[[Outputs, float], bool | None]]] = {
    "all results are finite": _finite,
    "rows of A sum to 1": _sums(-1),
    "A has no negative entry": _positive,
    "C lies between the smallest and largest values": _hull,
}
ODDITIES: Final[Mapping[str, Callable[[Outputs, float], bool | None]]] = {
    "columns of A sum to 1": _sums(-2),
    "Ω is symmetric": _symmetric,
}
"""What a correct answer has only by chance."""


def narrowed(samples: Sequence[Sample], symmetries: Sequence[Symmetry] = ()) -> str:
    """Invariants that hold and fail, in words.

    `symmetries` are those that further calls have told about.
    """
    failing = [sample for sample in samples if sample.failing]
    held, broken, odd = list[str](), list[str](), list[str]()
    for name, test in INVARIANTS.items():
        found = [outcome for outcome in _each(test, failing) if outcome is not None]
        if found and all(found):
            held.append(name)
        elif found:
            count = found.count(False)
            some = "" if count == len(found) else f" (in {count} of {len(found)} cases)"
            broken.append(f"{name}{some}")
    for symmetry in symmetries:
        (held if symmetry.holds else broken).append(str(symmetry))
    for name, test in ODDITIES.items():
        several = [s for s in failing if s.case.sizes.get("n", 2) > 1]
        found = [outcome for outcome in _each(test, several) if outcome is not None]
        if found and all(found):
            odd.append(name)
    parts = ["no fault of the catalogue reproduces these results"]
    parts += [f"holds: {', '.join(held)}"] if held else []
    parts += [f"fails: {', '.join(broken)}"] if broken else []
    parts += [f"oddly, {' and '.join(odd)}"] if odd else []
    return "; ".join(parts)


def _each(
    test: Callable[[Outputs, float], bool | None], samples: Sequence[Sample]
) -> list[bool | None]:
    results = []
    for sample in samples:
        case = sample.case
        given = {name: array.shape for name, array in case.inputs(sample.dtype).items()}
        shapes = contract(case.program, dict(case.bindings), given=given)
        # Rows of masked weights may be empty; what is no softmax need not sum to 1.
        weighed = Roles.of(case.program).weights == "A"
        silent = {"A", "V"} if not weighed else {"A"} if case.masked else set[str]()
        wide = {
            name: array.astype(np.float64)
            for name, array in sample.outputs.items()
            if array.shape == shapes.get(name) and name not in silent
        }
        with np.errstate(all="ignore"):
            results.append(test(wide, FORMATS[sample.arithmetic.storage].unit))
    return results
