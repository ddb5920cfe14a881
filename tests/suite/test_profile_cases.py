"""The cases of the profiles around `attention`, and of batches: the list, inputs and claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.exactness import prove
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.enclosures.enclosure import certify
from qkvac.spec.formats import FORMATS, dtype
from qkvac.spec.inputs import families
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.tests.suite.formulas import evaluate
from qkvac.tests.suite.test_cases import digest

NAMES = (
    "dot_product_attention",
    "causal_attention",
    "attention_linear_layers",
    "multi_head_attention",
    "embedding",
)
BATCHES = tuple(c for c in cases("attention") if c.family.startswith(("batch-", "sample-")))
CASES = (*BATCHES, *(case for name in NAMES for case in cases(name)))
DIGEST = "5535730c78f2e6df6927beda3f7d35147505520fda346e64137e7478cad97c25"

LIMITS = {
    "attention": (6, 6, 0),
    "dot_product_attention": (12, 15, 2),
    "causal_attention": (25, 30, 2),
    "attention_linear_layers": (18, 20, 2),
    "multi_head_attention": (25, 30, 3),
    "embedding": (10, 12, 2),
}
"""How many default cases at least and at most, and how many shapes for compiled modes."""

INPUTS = {
    "attention": ["X", "Wq", "Wk", "Wv"],
    "dot_product_attention": ["X"],
    "causal_attention": ["X", "Wq", "Wk", "Wv"],
    "attention_linear_layers": ["X", "Wq", "Wk", "Wv"],
    "multi_head_attention": ["X", "Wq", "Wk", "Wv", "Wo"],
    "embedding": ["tokens", "E", "P"],
}


def named(name: str) -> Case:
    return next(case for case in CASES if case.id == name)


def default(profile: str) -> list[Case]:
    return [case for case in CASES if case.profile == profile and case.tier == "default"]


# --- the list --------------------------------------------------------------------------------


def test_all_inputs_are_the_pinned_bits() -> None:
    assert digest(CASES) == DIGEST


def test_ids_are_unique_and_say_family_variant_and_sizes() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    for case in CASES:
        shape = "x".join(map(str, (*case.batch, *case.sizes.values())))
        varied = len(forward_profiles()[case.profile].texts) > 1
        parts = [case.profile, case.family, *([case.variant] if varied else []), shape]
        assert case.id == "/".join(parts)
        assert not varied or case.variant in forward_profiles()[case.profile].texts


@pytest.mark.parametrize("profile", LIMITS)
def test_the_matrix_stays_affordable(profile: str) -> None:
    least, most, shapes_compiled = LIMITS[profile]
    assert least <= len(default(profile)) <= most
    compiled = {
        (case.variant, tuple(case.sizes.values()), case.batch)
        for case in default(profile)
        if case.compiled
    }
    assert len(compiled) == shapes_compiled
    assert not any(case.compiled for case in CASES if case.tier == "full")


def test_attributes_say_what_the_variant_says() -> None:
    for case in CASES:
        expected: dict[str, Any] = {}
        if case.profile == "multi_head_attention":
            expected["heads"] = case.sizes["h"]
            assert case.sizes["c"] % case.sizes["h"] == 0
        if case.variant == "causal":
            expected["causal"] = True
        assert case.attributes == expected
        assert not case.masked


def test_every_case_says_why_it_exists() -> None:
    for case in CASES:
        assert 4 <= len(case.why) <= 100
        assert "\n" not in case.why


def test_sizes_of_generic_data_hide_no_confusion_of_axes() -> None:
    for case in CASES:
        sizes = list(case.sizes.values())
        if case.compiled and case.generic:
            assert len({*sizes, *case.batch}) == len(sizes) + len(case.batch)
            width = case.sizes.get("c", 1) // case.sizes.get("h", 1)
            assert case.profile == "embedding" or "c" not in case.sizes or width in (7, 10)
    for profile in LIMITS:
        lengths = {case.sizes["n"] for case in CASES if case.profile == profile}
        if profile != "attention":
            assert {0, 1} <= lengths
            assert lengths & {33, 65}
        assert any(len(case.batch) == 1 for case in default(profile))
    heads = [case.sizes["h"] for case in default("multi_head_attention")]
    assert heads.count(1) == 1
    assert any(case.batch == (case.sizes["h"],) for case in default("multi_head_attention"))
    assert any(case.batch == (case.sizes["n"],) for case in default("causal_attention"))


# --- the inputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", LIMITS)
def test_inputs_fit_the_contract_and_are_stored_exactly(profile: str) -> None:
    for case in (case for case in CASES if case.profile == profile):
        biases = ["bq", "bk", "bv"] if case.variant == "bias" else []
        for name in case.dtypes:
            inputs = case.inputs(name)
            assert list(inputs) == [*INPUTS[profile], *biases]
            contract = shapes.contract(
                case.program, dict(case.sizes), given={k: v.shape for k, v in inputs.items()}
            )
            carrier = INPUTS[profile][0]
            for key, array in inputs.items():
                assert array.shape == contract[key]
                assert array.shape[: len(case.batch)] == case.batch or key != carrier
                assert array.flags.c_contiguous
                assert array.flags.writeable
                if key == "tokens":
                    assert array.dtype == np.int64
                    assert np.all((array >= 0) & (array < case.sizes["t"]))
                    continue
                assert array.dtype == dtype(name)
                wide = array.astype(np.float64)
                nonzero = np.abs(wide[wide != 0])
                assert np.all(np.isfinite(wide))
                assert np.all(nonzero >= FORMATS[name].tiny)


@pytest.mark.parametrize("case", [c for c in CASES if c.exact], ids=lambda case: case.id)
def test_claims_of_exactness_are_proved(case: Case) -> None:
    for name in case.dtypes:
        prove(case.program, case.inputs(name), case.bindings, name, case.exact)


def test_a_batch_is_made_of_the_samples_that_are_cases() -> None:
    taken = [case for case in CASES if case.family.startswith("sample-")]
    assert {case.profile for case in taken} == set(LIMITS)
    for case in taken:
        whole = next(c for c in CASES if c.seed == case.seed and c.batch)
        number = int(case.family.removeprefix("sample-"))
        for name in ("float64", "float16"):
            parts, all_ = case.inputs(name), whole.inputs(name)
            carrier = INPUTS[case.profile][0]
            assert np.array_equal(parts[carrier], all_[carrier][number])
            assert all(np.array_equal(parts[k], all_[k]) for k in parts if k != carrier)
        again, further = case.drawn(2).inputs("float32"), whole.drawn(2).inputs("float32")
        assert np.array_equal(again[carrier], further[carrier][number])
        assert not np.array_equal(again[carrier], case.inputs("float32")[carrier])
        assert set(case.exact) == set(whole.exact)
        assert case.why.startswith(f"sample {number} of {whole.family}")


def test_samples_of_a_batch_differ_in_character() -> None:
    for case in CASES:
        if case.family == "batch-normal":
            sizes = [np.abs(x).max() for x in case.inputs("float64")["X"]]
            assert max(sizes) > 8 * min(sizes)


def test_variants_of_a_family_share_their_data() -> None:
    plain, causal = (
        named(f"multi_head_attention/normal/{v}/33x30x21x10x3").inputs("float32")
        for v in ("plain", "causal")
    )
    assert all(np.array_equal(plain[k], causal[k]) for k in plain)
    absent = named("attention_linear_layers/ternary/plain/33x20x7").inputs("float32")
    zero = named("attention_linear_layers/zero-bias/bias/33x20x7").inputs("float32")
    assert all(np.array_equal(absent[k], zero[k]) for k in absent)
    assert not any(zero[k].any() for k in ("bq", "bk", "bv"))


def test_the_worked_examples_reproduce_the_printed_results() -> None:
    """Printed to 4 decimals, so that half a unit of the fourth is their resolution."""
    for profile, variant in (
        ("dot_product_attention", ""),
        ("attention_linear_layers", "plain/"),
    ):
        shape = "6x3" if profile == "dot_product_attention" else "6x3x2"
        case = named(f"{profile}/worked-example/{variant}{shape}")
        printed = families.worked_example()[profile]
        assert not case.random
        for name in case.dtypes:
            certified = certify(case.program, case.inputs(name), case.sizes, name)
            for quantity in set(printed) & {"A", "C"}:
                found = certified[quantity].center
                assert np.all(np.abs(found - np.array(printed[quantity])) <= 0.51e-4)


@pytest.mark.parametrize("name", ["float64", "float32"])
@pytest.mark.parametrize("profile", LIMITS)
def test_a_plain_evaluation_passes_all(profile: str, name: str) -> None:
    """And no verdict is left open."""
    model = Arithmetic.for_dtype(name, {"softmax": "shifted, divided"})
    for case in default(profile):
        if name in case.dtypes:
            outputs = evaluate(case, case.inputs(name))
            verdicts = judge(Question(case, name, model), outputs)
            assert {v.status for v in verdicts.values()} == {"passed"}, case.id
