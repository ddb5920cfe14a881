"""What is no fault of the catalogue is given no name: its symmetries and precision are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from qkvac.cells import Cell, Result, Subject
from qkvac.diagnosis import invariants, precision, symmetries
from qkvac.diagnosis.evidence import explain
from qkvac.diagnosis.search import diagnose
from qkvac.spec.faults.evaluator import compute
from qkvac.tests.suite import variants
from qkvac.tests.suite.bench import sizes_in
from qkvac.tests.suite.diagnosing import (
    ATTENTION,
    DOUBLE,
    ORDER,
    OUTSIDE,
    SHIFT,
    SUM,
    Array,
    Function,
    changed,
    plain,
    samples,
)
from qkvac.tests.suite.kill_matrix import examined


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_no_catalogued_fault_is_given_no_name(name: str) -> None:
    found = samples(OUTSIDE[name])
    assert any(sample.failing for sample in found)
    assert diagnose(found, patience=3.0) is None


def test_without_a_match_invariants_narrow_it_down() -> None:
    words = invariants.narrowed(samples(OUTSIDE["weights of odd keys lost"]))
    assert "no fault of the catalogue" in words
    assert "fails: rows of A sum to 1" in words
    words = invariants.narrowed(samples(OUTSIDE["keys clipped to ±1"]))
    assert "holds: all results are finite, rows of A sum to 1" in words


def test_results_of_a_wrong_shape_tell_nothing_about_invariants() -> None:
    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {**plain(inputs), "V": inputs["X"], "A": inputs["X"][0]}

    words = invariants.narrowed(samples(function))
    assert "holds: all results are finite" in words
    assert "rows of A" not in words


def test_what_failing_cases_have_in_common_is_said() -> None:
    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = plain(inputs)
        return {**found, "C": found["C"] * (len(found["C"]) != 1)}

    cases = [case for case in examined() if case.family in ("normal", "hot")]
    assert "it fails only where n = 1" in explain(samples(function, cases=cases), (), 20.0)


BROKEN: dict[str, set[str]] = {
    "weights to the fourth power": set(),
    "queries rotated": set(),
    "Q off by one part in 10³": set(),
    "weights of odd keys lost": {ORDER},
    "negative scores set to 0": {SHIFT},
    "keys clipped to ±1": {SHIFT},
    "scores squared": {SHIFT},
    "a constant added to C": {DOUBLE, SUM},
    "values rounded to quarters": {DOUBLE, SUM},
    "a cubic of C": {DOUBLE, SUM},
    "magnitudes of the values": {SUM},
}
"""The symmetries that faults outside the catalogue break."""


def symmetric(
    function: Function, dtype: str = "float32", reported: Sequence[str] = ()
) -> dict[str, bool]:
    """Whether each symmetry holds for a function; those without evidence are absent."""
    sample = symmetries.suitable(samples(function, dtype, reported=reported))
    assert sample is not None
    answers = {}
    for name, case in symmetries.posed(sample).items():
        outputs = function(case.inputs(dtype))
        answers[name] = {key: outputs[key] for key in reported or outputs}
    return {found.what: found.holds for found in symmetries.judged(sample, answers)}


FURTHER = {**OUTSIDE, "magnitudes of the values": changed("V", np.abs)}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", BROKEN)
def test_further_calls_tell_which_symmetries_a_fault_breaks(name: str, dtype: str) -> None:
    found = symmetric(FURTHER[name], dtype)
    assert found == {what: what not in BROKEN[name] for what in (ORDER, SHIFT, DOUBLE, SUM)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["weights to the fourth power", "scores squared", "a cubic of C"])
def test_in_narrow_formats_no_symmetry_is_said_to_fail_that_holds(name: str, dtype: str) -> None:
    found = symmetric(FURTHER[name], dtype)
    failing = {what for what, holds in found.items() if not holds}
    assert failing <= BROKEN[name]
    assert bool(failing) == bool(BROKEN[name])


def test_the_result_alone_shows_symmetries() -> None:
    found = symmetric(OUTSIDE["weights of odd keys lost"], reported=["C"])
    assert found == {ORDER: False, SHIFT: True, DOUBLE: True, SUM: True}


def test_nothing_is_said_of_answers_that_did_not_come_or_are_not_finite() -> None:
    sample = symmetries.suitable(samples(OUTSIDE["scores squared"]))
    assert sample is not None
    assert symmetries.judged(sample, {}) == []
    broken = {name: array * np.nan for name, array in sample.outputs.items()}
    answers = dict.fromkeys(symmetries.posed(sample), broken)
    assert symmetries.judged(sample, answers) == []


def test_correct_ports_get_no_diagnosis() -> None:
    for variant in variants.correct()[::4]:
        answers = [
            sample
            for profile in variant.profiles
            for case in variants.chosen(profile)[:4]
            for sample in samples(partial(variant.outputs, case), cases=[case])
        ]
        assert diagnose(answers) is None


def test_poor_precision_is_told_by_the_model_that_it_conforms_to() -> None:
    """Not bit for bit what the catalogue computes: another order, another form."""

    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = compute(ATTENTION, inputs, sizes_in(ATTENTION)(inputs), "float64")
        scores = (found["Ω"] / np.sqrt(inputs["Wq"].shape[1])).astype(np.float32)
        top = scores.max(axis=1, keepdims=True)
        total = sum(
            np.exp2((scores[:, [k]] - top) * np.float32(np.log2(np.e))) for k in range(len(scores))
        )
        weights = np.exp2((scores - top) * np.float32(np.log2(np.e))) / total
        A = weights.astype(np.float64)
        return {**found, "A": A, "C": A @ found["V"]}

    cases = [case for case in examined() if case.family == "normal"][:4]
    found = samples(function, "float64", cases=cases)
    assert diagnose(found, patience=3.0) is None
    assert precision.resembling(found) == "a softmax in float32"


def test_flushed_subnormals_are_told_from_poor_precision() -> None:
    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = compute(ATTENTION, inputs, sizes_in(ATTENTION)(inputs), "float32")
        return {name: np.where(np.abs(x) < 2.0**-126, 0, x) for name, x in found.items()}

    found = samples(function, cases=[c for c in examined() if c.family == "hotter"])
    assert precision.resembling(found) == precision.FLUSHED


def test_results_that_are_cut_off_are_told_from_poor_precision() -> None:
    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        wide = {name: x.astype(np.float32) for name, x in inputs.items()}
        found = dict[str, Array]()
        for name, factors in (("Q", "Wq"), ("K", "Wk"), ("V", "Wv")):
            bits = (wide["X"] @ wide[factors]).view(np.uint32) & 0xFFFF0000
            found[name] = bits.view(np.float32).astype(ml_dtypes.bfloat16)
        return found

    found = samples(function, dtype="bfloat16", reported=("Q", "K", "V"))
    assert precision.resembling(found) == precision.TRUNCATED


def _result(quantity: str, bits: float | None, resembles: str | None = None) -> Result:
    cell = Cell(Subject("bench", "default", "cpu"), "float32", "attention/normal/6x3x2", quantity)
    return Result(cell, "failed", bits=bits, resembles=resembles)


def test_effective_precision_is_stated_by_quantity() -> None:
    like = [_result(name, 11.2, "tfloat32") for name in "QKV"]
    results = [*like, _result("Q", 10.8, "tfloat32"), _result("A", 8, "bfloat16"), _result("C", 24)]
    found = samples(OUTSIDE["scores squared"])
    words = precision.stated(found, results)
    assert words == (
        "behaves like TF32: 11 of 24 bits in Q, K, V; behaves like bfloat16: 8 of 24 bits in A"
    )
    lost = [_result("Ω", 16), _result("A", 15), _result("C", 23.1), _result("V", None)]
    words = precision.stated(found, lost)
    assert words == "effective precision: 16 of 24 bits in Ω and 15 of 24 bits in A"
    assert precision.stated(found, [_result("C", 23)]) is None
