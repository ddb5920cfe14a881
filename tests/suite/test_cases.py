"""The cases: the same everywhere, storable as they are, and of the promised kinds."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.enclosures.enclosure import certify
from qkvac.spec.formats import DTYPES, FORMATS, dtype
from qkvac.spec.grammar.equations import SpecError
from qkvac.spec.inputs import draws, families
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic import shapes

ATTENTION = tuple(
    case for case in cases("attention") if not case.family.startswith(("batch-", "sample-"))
)
"""Batches are tested with the cases of the other profiles."""
DIGEST = "a3bde83bfbc36e18b3f0fe85706b7e1c09853dfcde2381f4a800047069c5bf9f"


def digest(selected: tuple[Case, ...]) -> str:
    """SHA-256 over dtype, shape and bytes of all inputs of all cases in all their dtypes."""
    total = hashlib.sha256()
    for case in selected:
        for name in case.dtypes:
            for key, array in case.inputs(name).items():
                total.update(f"{case.id} {key} {array.dtype.name} {array.shape}\n".encode())
                little = array.view(f"u{array.itemsize}").astype(f"<u{array.itemsize}")
                total.update(little.tobytes())
    return total.hexdigest()


def test_all_inputs_are_the_pinned_bits() -> None:
    assert digest(ATTENTION) == DIGEST


def test_two_processes_collect_the_same_list_whatever_their_hash_seed() -> None:
    script = (
        "import json; from qkvac.spec.cases.catalogue import cases;"
        "print(json.dumps([[c.id, c.seed, c.why, c.dtypes, c.tier, c.exact] for c in cases()]))"
    )
    lists = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert lists[0] == lists[1]
    assert [row[0] for row in json.loads(lists[0])] == [case.id for case in cases("attention")]


def test_a_case_does_not_depend_on_those_before_it() -> None:
    forwards = {case.id: case.inputs("float64") for case in _some() if "float64" in case.dtypes}
    for case in reversed(_some()):
        if "float64" in case.dtypes:
            alone = case.inputs("float64")
            assert all(np.array_equal(alone[k], forwards[case.id][k]) for k in alone)


def _some() -> tuple[Case, ...]:
    return ATTENTION[::3]


def test_ids_are_unique_and_say_profile_family_and_sizes() -> None:
    assert len({case.id for case in ATTENTION}) == len(ATTENTION)
    for case in ATTENTION:
        n, d, c = (case.sizes[axis] for axis in ("n", "d", "c"))
        assert case.id == f"attention/{case.family}/{n}x{d}x{c}"


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.id)
def test_inputs_fit_the_contract_and_are_stored_exactly(case: Case) -> None:
    contract = shapes.contract(forward_profiles()[case.profile].program(), case.sizes)
    for name in case.dtypes:
        inputs = case.inputs(name)
        assert list(inputs) == ["X", "Wq", "Wk", "Wv"]
        for key, array in inputs.items():
            assert array.dtype == dtype(name)
            assert array.shape == contract[key]
            assert array.flags.c_contiguous
            assert array.flags.writeable
            wide = array.astype(np.float64)
            assert np.all(np.isfinite(wide))
            assert np.array_equal(wide.astype(dtype(name)), array)
            if case.family != "subnormal":
                nonzero = np.abs(wide[wide != 0])
                assert np.all(nonzero >= FORMATS[name].tiny)


def test_the_matrix_stays_affordable() -> None:
    default = [case for case in ATTENTION if case.tier == "default"]
    assert 60 <= len(default) <= 95
    assert len({tuple(case.sizes.values()) for case in default}) <= 12
    for name in DTYPES:
        compiled = {
            tuple(case.sizes.values()) for case in default if case.compiled and name in case.dtypes
        }
        assert len(compiled) <= 4
        long = [c for c in default if name in c.dtypes and c.sizes["n"] >= 512]
        assert 1 <= len(long) <= 2


def test_compiled_modes_meet_the_most_telling_families() -> None:
    for name in DTYPES:
        families_met = {c.family for c in ATTENTION if c.compiled and name in c.dtypes}
        assert families_met >= {"normal", "hot", "ternary", "uniform", "lookup", "lookup-below"}
        assert name == "float16" or any("cliff" in family for family in families_met)
    wide = {case.family for case in ATTENTION if case.compiled and "float32" in case.dtypes}
    assert wide >= {"worked-example", "shift+1000", "shift-30000", "row-shift"}


def test_sizes_of_generic_data_hide_no_confusion_of_axes() -> None:
    for case in ATTENTION:
        n, d, c = (case.sizes[axis] for axis in ("n", "d", "c"))
        if case.generic and case.family != "normal":
            assert len({n, d, c}) == 3
            assert int(c**0.5) ** 2 != c
    normal = [case.sizes for case in ATTENTION if case.family == "normal"]
    for axis in ("n", "d", "c"):
        assert any(sizes[axis] == 1 for sizes in normal)
    assert any(case.sizes["n"] == 0 for case in ATTENTION)


def test_every_case_says_why_it_exists() -> None:
    for case in ATTENTION:
        assert 8 <= len(case.why) <= 100
        assert "\n" not in case.why


def test_layout_cases_vary_all_operands_and_one_at_a_time() -> None:
    laid_out = [case.layouts for case in ATTENTION if case.layouts]
    for layout in ("F", "strided", "reversed", "offset", "readonly"):
        assert dict.fromkeys(("X", "Wq", "Wk", "Wv"), layout) in laid_out
    for name in ("X", "Wq", "Wk", "Wv"):
        assert {name: "F"} in laid_out
    assert all(case.needs == {"layouts"} for case in ATTENTION if case.layouts)
    assert [case.id for case in ATTENTION if "empty" in case.needs] == ["attention/empty/0x20x7"]


def test_draws_are_fresh_and_named() -> None:
    case = next(case for case in ATTENTION if case.id == "attention/normal/33x20x7")
    second = case.drawn(2)
    assert second.id == "attention/normal/33x20x7/s2"
    assert np.array_equal(second.inputs("float32")["X"], case.inputs("float32", draw=2)["X"])
    assert not np.array_equal(case.inputs("float32")["X"], case.inputs("float32", draw=2)["X"])
    assert case.drawn(0) is case
    worked = next(case for case in ATTENTION if case.family == "worked-example")
    assert not worked.random
    with pytest.raises(ValueError, match="fixed inputs"):
        worked.drawn(1)


def test_the_dtypes_hold_the_same_data_to_their_own_precision() -> None:
    case = next(case for case in ATTENTION if case.id == "attention/normal/33x20x7")
    wide = case.inputs("float64")["X"]
    for name in ("float32", "bfloat16", "float16"):
        narrow = case.inputs(name)["X"].astype(np.float64)
        # Cutting off loses less than one unit in the last place.
        assert np.all(np.abs(narrow) <= np.abs(wide))
        lost = np.abs(wide - narrow)
        assert np.all(lost <= 2 * FORMATS[name].unit * np.abs(wide) + FORMATS[name].tiny)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SpecError, match="unknown profile"):
        cases("atention")
    case = next(case for case in ATTENTION if case.family == "worked-example")
    with pytest.raises(ValueError, match="is for float64, float32, not for float16"):
        case.inputs("float16")


# --- draws -----------------------------------------------------------------------------------


def test_normal_draws_look_normal() -> None:
    drawn = draws.normal("a normal sample", (200, 100), "float64")
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.02
    assert abs(np.mean(drawn**4) - 2.9) < 0.15  # twelve uniforms: kurtosis 3 − 1.2/12
    assert 3.5 < np.abs(drawn).max() < 6


def test_a_few_draws_by_hand() -> None:
    """The same numbers from plain Python integers."""
    stream = hashlib.shake_256(b"by hand").digest(8 * 12 * 3)
    drawn = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") >> 7 for i in range(36)]
    for k, value in enumerate(draws.normal("by hand", (3,), "float32")):
        total = 2 * sum(drawn[12 * k : 12 * k + 12]) - 12 * (2**57 - 1)
        drop = max(abs(total).bit_length() - 24, 0)
        kept = (abs(total) >> drop << drop) * (1 if total > 0 else -1)
        assert value == kept / 2**58


@pytest.mark.parametrize("name", DTYPES)
def test_full_mantissas_use_their_last_bit(name: str) -> None:
    form = FORMATS[name]
    drawn = draws.full_mantissa("full", (100,), name, -2, 2)
    fraction, exponent = np.frexp(drawn)
    significand = np.ldexp(fraction, form.precision)
    assert np.all(significand % 2 == 1)
    assert set(exponent) == {-1, 0, 1, 2, 3}
    assert np.array_equal(draws.stored(drawn, name).astype(np.float64), drawn)


def test_what_is_below_the_smallest_normal_number_is_cut_off_to_0() -> None:
    drawn = draws.normal("low", (1000,), "float16", -14)
    assert np.all((drawn == 0) | (np.abs(drawn) >= FORMATS["float16"].tiny))
    assert 0 < np.mean(drawn == 0) < 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 33])
def test_permutations_are_no_involutions(n: int) -> None:
    order = draws.permutation("order", n)
    assert sorted(order) == list(range(n))
    if n > 2:
        assert np.any(order[order] != np.arange(n))


def test_integers_cover_their_range_evenly() -> None:
    drawn = draws.integers("dice", (6000,), 1, 6)
    counts = np.bincount(drawn, minlength=7)
    assert counts[0] == 0
    assert counts[1:].min() > 850


def test_a_number_that_the_dtype_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="not representable in float16"):
        draws.stored(np.array([1 / 3]), "float16")


def test_the_worked_example_reproduces_the_printed_results() -> None:
    """Printed to 4 decimals, so that half a unit of the fourth is their resolution."""
    case = next(case for case in ATTENTION if case.family == "worked-example")
    example = families.worked_example()
    assert "Raschka" in example["source"]
    program = forward_profiles()["attention"].program()
    for name in case.dtypes:
        certified = certify(program, case.inputs(name), case.sizes, name)
        printed = example["attention"]
        for found, expected in (
            (certified["Q"].center[1], printed["Q_row_1"]),
            (certified["Ω"].center[1], printed["scores_row_1"]),
            (certified["A"].center[1], printed["A_row_1"]),
            (certified["C"].center, printed["C"]),
        ):
            assert np.all(np.abs(found - np.array(expected)) <= 0.51e-4)
