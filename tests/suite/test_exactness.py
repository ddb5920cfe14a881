"""Exactness: every claim of a case is proved, proofs are sound in any order, and no more is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.exactness import Exactly, Exactness, exact, prove
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.enclosures import enclosure
from qkvac.spec.grammar.equations import SpecError, parse
from qkvac.spec.registry import forward_profiles

PROGRAM = forward_profiles()["attention"].program()
CLAIMING = tuple(case for case in cases("attention") if case.exact)
# Cases that differ in layout alone share their inputs.
DISTINCT = tuple({(case.seed, case.exact): case for case in CLAIMING}.values())

PRODUCT = "X[n, d]\nW[d, c]\nQ[n, c] = X @ W"


@cache
def proofs(case: Case, dtype: str) -> Mapping[str, Exactness]:
    return exact(PROGRAM, case.inputs(dtype), case.sizes, Arithmetic.for_dtype(dtype))


def of(text: str, dtype: str = "float32", **inputs: Any) -> Exactness:
    """What is proved of the last quantity of a small program; sizes are those of the inputs."""
    model = Arithmetic.for_dtype(dtype, inputs.pop("declared", {}))
    program = parse(text)
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in inputs.items()}
    sizes = {
        axis.name: size  # type: ignore[union-attr]
        for tensor in program.inputs
        for axis, size in zip(tensor.axes, arrays[tensor.name].shape, strict=True)
    }
    return list(exact(program, arrays, sizes, model).values())[-1]


def product(
    row: Sequence[float], column: Sequence[float], dtype: str = "float32", **declared: Any
) -> bool:
    """Whether the inner product is proved exact; its value is checked where it is."""
    found = of(PRODUCT, dtype, X=[list(row)], W=[[w] for w in column], declared=declared)
    value = sum(Fraction(x) * Fraction(w) for x, w in zip(row, column, strict=True))
    if found.holds[0, 0]:
        assert Fraction(found.value[0, 0]) == value
    return bool(found.holds[0, 0])


# --- the cases' claims -----------------------------------------------------------------------


@pytest.mark.parametrize("case", DISTINCT, ids=lambda case: case.id)
def test_claims_are_proved_in_every_dtype(case: Case) -> None:
    for dtype in case.dtypes:
        prove(PROGRAM, case.inputs(dtype), case.sizes, dtype, case.exact)


@pytest.mark.parametrize("case", DISTINCT, ids=lambda case: case.id)
def test_claims_hold_where_subnormal_numbers_are_flushed(case: Case) -> None:
    for dtype in case.dtypes:
        model = Arithmetic.for_dtype(dtype, {"flushes": True})
        proved = exact(PROGRAM, case.inputs(dtype), case.sizes, model)
        assert all(proved[name].holds.all() for name in case.exact)


@pytest.mark.parametrize("case", DISTINCT, ids=lambda case: case.id)
def test_further_draws_keep_the_claims(case: Case) -> None:
    dtype = case.dtypes[-1]
    for draw in (1, 2):
        prove(PROGRAM, case.inputs(dtype, draw), case.sizes, dtype, case.exact)


@pytest.mark.parametrize("case", DISTINCT, ids=lambda case: case.id)
def test_proved_values_are_the_certified_ones_rounded(case: Case) -> None:
    for dtype in case.dtypes:
        certified = enclosure.certify(
            PROGRAM, case.inputs(dtype), case.sizes, dtype, wanted=case.exact, exact=case.exact
        )
        for name in case.exact:
            bits, certain = certified[name].rounded(dtype)
            proved = proofs(case, dtype)[name].value
            assert np.array_equal(bits.astype(np.float64), proved)
            assert certain.all()


@pytest.mark.parametrize("case", DISTINCT, ids=lambda case: case.id)
def test_no_exact_quantity_goes_unclaimed(case: Case) -> None:
    everywhere = [
        name
        for name in forward_profiles()["attention"].quantities
        if all(proofs(case, dtype)[name].holds.all() for dtype in case.dtypes)
    ]
    assert set(everywhere) == set(case.exact)


def test_only_weights_and_what_follows_are_proved_through_the_softmax() -> None:
    case = next(case for case in CLAIMING if case.family == "lookup")
    through = {name: p.through_softmax for name, p in proofs(case, "float32").items()}
    assert through == dict.fromkeys("QKVΩ", False) | dict.fromkeys("AC", True)


@pytest.mark.parametrize(
    ("family", "claim"),
    [("normal", "Q"), ("hot", "C"), ("copies", "Ω"), ("ternary", "A"), ("uniform", "C")],
)
def test_a_false_claim_is_a_spec_error(family: str, claim: str) -> None:
    case = next(case for case in cases() if case.family == family)
    false = replace(case, exact=(*case.exact, claim))
    with pytest.raises(SpecError, match=f"{claim} is claimed exact in float32: no proof for"):
        prove(PROGRAM, false.inputs("float32"), false.sizes, "float32", false.exact)


def test_a_claim_about_nothing_is_a_spec_error() -> None:
    case = CLAIMING[0]
    with pytest.raises(SpecError, match="not a quantity: Z"):
        prove(PROGRAM, case.inputs("float32"), case.sizes, "float32", ("Z",))


# --- sums ------------------------------------------------------------------------------------


def test_a_sum_is_exact_up_to_2_to_the_p_units() -> None:
    assert product([2.0**23, 2.0**23], [1, 1])
    assert not product([2.0**23, 2.0**23, 1], [1, 1, 1])
    assert product([2.0**52, 1], [1, 1], "float64")
    assert not product([2.0**53, 1], [1, 1], "float64")
    assert product([128, 128], [1, 1], "bfloat16")
    assert not product([128, 128, 1], [1, 1, 1], "bfloat16")


def test_magnitudes_count_even_where_they_cancel() -> None:
    """2**24 + 1 − 2**24 is 1 or 0, depending on the order."""
    assert not product([2.0**24, 1, -(2.0**24)], [1, 1, 1])
    assert product([2.0**22, 1, -(2.0**22)], [1, 1, 1])


def test_units_are_those_of_the_nonzero_terms() -> None:
    assert product([2.0**30, 2.0**-30], [1, 0])
    assert not product([2.0**30, 2.0**-30], [1, 1])
    assert product([3 * 2.0**40, 5 * 2.0**40], [2.0**-40, 2.0**-40])


def test_one_term_is_exact_if_its_product_is_representable() -> None:
    full = 2.0**24 - 1
    assert product([full, 7], [0.25, 0])
    assert not product([full], [3])
    assert not product([2.0**53 - 1], [3], "float64")


def test_results_stay_in_range() -> None:
    assert not product([2.0**100], [2.0**30])
    assert not product([60000], [2], "float16")
    assert product([2.0**-60], [2.0**-66])


def test_subnormal_results_are_exact_unless_flushed() -> None:
    assert product([2.0**-60], [2.0**-70])
    assert not product([2.0**-60], [2.0**-70], flushes=True)
    assert not product([2.0**-80], [2.0**-70])
    assert not product([3 * 2.0**-80], [2.0**-70])
    # A single term is never smaller than itself; a sum may pass through its unit.
    assert product([1.25 * 2.0**-13], [1], "float16", flushes=True)
    assert not product([1.25 * 2.0**-13, 2.0**-13], [1, 1], "float16", flushes=True)


@pytest.mark.parametrize(("truncates", "third"), [(False, np.float32(1 / 3)), (True, np.nan)])
def test_weights_that_are_cut_off_are_exact_where_nothing_is(truncates: bool, third: float) -> None:
    algebra = Exactly(Arithmetic.for_dtype("float32", {"truncates": truncates}))
    np.testing.assert_array_equal([algebra.reciprocal(m) for m in (2, 4, 3)], [0.5, 0.25, third])


def test_the_coarsest_declared_format_decides() -> None:
    row, column = [257, 1], [1, 1]
    assert product(row, column)
    assert not product(row, column, accumulation="bfloat16")
    assert product([256, 1], column, accumulation="float16", storage="float16", operands="float16")
    assert not product([2.0**12 + 1], [1], operands="tfloat32")
    assert product([2.0**10 + 1], [1], operands="tfloat32")


def test_an_exact_zero_covers_an_unknown_factor() -> None:
    text = "X[n, d]\nW[d, c]\nZ[c, c]\nC[n, c] = (X @ W) @ Z"
    x, w = [[1 / 3, 0.7]], [[0.3, 2], [0.1, 0]]
    found = of(text, X=x, W=w, Z=[[0, 0], [0, 0]])
    assert found.holds.all()
    assert not found.value.any()
    assert not of(text, X=x, W=w, Z=[[1, 0], [0, 1]]).holds[0, 0]


def test_a_bias_joins_the_open_sum() -> None:
    text = "X[n, d]\nW[d, c]\nb[c]\nQ[n, c] = X @ W + b"
    assert of(text, X=[[2.0**22]], W=[[1]], b=[1]).holds.all()
    assert not of(text, X=[[2.0**24]], W=[[1]], b=[1]).holds.any()


def test_the_rest_of_the_grammar() -> None:
    x = [[1, 2, 3, 4], [5, 6, 7, 8]]
    for right, expected in (
        ("X - X", 0 * np.array(x)),
        ("X * X", np.square(x)),
        ("-X * 0.5", np.array(x) / -2),
        ("X + 1.5", np.array(x) + 1.5),
        ("sum(X, axis=1) * X", np.sum(x, 1, keepdims=True) * np.array(x)),
        ("merge(split(X, 2))", np.array(x)),
        ("first(X, n)", np.array(x)),
    ):
        found = of(f"X[n, d]\nY[n, d] = {right}", X=x)
        assert found.holds.all(), right
        assert np.array_equal(found.value, expected), right
    assert not of("X[n, d]\nY[n, d] = X / 3", X=x).holds.any()
    assert not of("X[n, d]\nY[n, d] = X * X", X=[[2.0**24 - 1]]).holds.any()


numbers = st.integers(-40, 40)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_proved_is_exact_in_any_order(data: st.DataObject) -> None:
    """Sequential sums in random order, in bfloat16 and float32, against fractions."""
    inner = data.draw(st.integers(1, 6))
    shift = data.draw(st.integers(-3, 3))
    x = np.ldexp(data.draw(st.lists(numbers, min_size=inner, max_size=inner)), shift)
    w = np.array(data.draw(st.lists(numbers, min_size=inner, max_size=inner)), dtype=float)
    order = data.draw(st.permutations(range(inner)))
    for dtype, precision in (("bfloat16", 8), ("float32", 24)):
        found = of(PRODUCT, dtype, X=[x.tolist()], W=[[v] for v in w.tolist()])
        if not found.holds[0, 0]:
            continue
        total = Fraction(0)
        for k in order:
            total += Fraction(x[k]) * Fraction(w[k])
            assert _bits(total) <= precision
        assert total == Fraction(found.value[0, 0])


def _bits(value: Fraction) -> int:
    """Significant bits of a dyadic fraction."""
    odd = abs(value.numerator)
    while odd and odd % 2 == 0:
        odd //= 2
    return odd.bit_length()


# --- softmax ---------------------------------------------------------------------------------

SOFTMAX = "X[n, d]\nA[n, d] = softmax(X / sqrt(d), axis=1)"
UNSCALED = "X[n, d]\nA[n, d] = softmax(X, axis=1)"


def test_ties_share_evenly_and_what_trails_vanishes() -> None:
    found = of(UNSCALED, X=[[1000, 0, 1000], [0, -800, -900], [3, 3, 3]])
    assert found.holds.all()
    third = float(np.float32(1 / 3))
    assert found.value.tolist() == [[0.5, 0, 0.5], [1, 0, 0], [third] * 3]


def test_what_does_not_vanish_is_not_proved() -> None:
    assert not of(UNSCALED, X=[[0, -745]]).holds.any()
    assert of(UNSCALED, X=[[0, -747]]).holds.all()
    # Rounding of scores as large as these may bring them closer than 746.
    assert not of(UNSCALED, "bfloat16", X=[[2.0**17, 2.0**17 - 1024]]).holds.any()
    assert of(UNSCALED, "bfloat16", X=[[2.0**16, 2.0**16 - 2048]]).holds.all()


def test_ties_must_survive_another_place_of_the_scale() -> None:
    """Folded into Q, or split over Q and K, an inexact scale may break a tie by rounding."""
    assert of(SOFTMAX, X=[[7, 7, 7, 7] * 4]).holds.all()
    assert not of(SOFTMAX, X=[[7, 7, 7, 7]]).holds.any()
    assert not of(SOFTMAX, X=[[7, 7, 7]]).holds.any()
    assert of(SOFTMAX, X=[[0, 0, 0]]).holds.all()


def test_a_single_key_has_the_weight_1_whatever_its_score() -> None:
    found = of("X[n, d]\nW[d, c]\nA[n, c] = softmax(X @ W, axis=1)", X=[[1 / 3, 0.1]], W=[[3], [7]])
    assert found.holds.all()
    assert found.value.tolist() == [[1]]


def test_masked_entries_are_0_and_do_not_count() -> None:
    text = "X[n, n]\nA[n, n] = softmax(X, axis=1, where=causal(n, n))"
    found = of(text, X=[[0.1, 9, 9], [5, 5, 9], [1, 1, 1.5]])
    assert found.holds.tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert found.value[:2].tolist() == [[1, 0, 0], [0.5, 0.5, 0]]


def test_thirds_are_settled_but_no_exact_operands() -> None:
    text = "X[n, d]\nV[d, c]\nA[n, d] = softmax(X, axis=1)\nC[n, c] = A @ V"
    assert not of(text, X=[[0, 0, 0]], V=[[3], [3], [3]]).holds.any()
    assert of(text, X=[[0, 0, -800]], V=[[3], [4], [1 / 3]]).value.tolist() == [[3.5]]


@pytest.mark.parametrize("form", ["fused", "reciprocal", "logsumexp", None])
def test_the_proof_itself_does_not_depend_on_the_form(form: str | None) -> None:
    """Whether it binds is for the verdict to say, by `through_softmax`."""
    found = of(UNSCALED, X=[[0, 0]], declared={"softmax": form})
    assert found.holds.all()
    assert found.through_softmax
