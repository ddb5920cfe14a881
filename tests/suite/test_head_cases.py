"""The cases of attention with heads: the same everywhere, and of the promised kinds."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest

from qkvac.spec.bounds import exactness
from qkvac.spec.cases import mask_cases
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.formats import DTYPES, FORMATS, dtype
from qkvac.spec.inputs import mask_families
from qkvac.spec.inputs.families import Frame
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic import shapes
from qkvac.tests.suite.test_cases import digest

PROFILE = "scaled_dot_product_attention"
CASES = cases(PROFILE)
DEFAULT = tuple(case for case in CASES if case.tier == "default")
BY_ID = {case.id: case for case in CASES}
DIGEST = "08389d0c22905858b87912e97e82ad9731caa11a681a29bff93c82d057c1903a"

MAIN, UNGROUPED, SQUARE = "2x6x3x5x9x7x4", "2x3x3x5x9x7x4", "2x3x3x5x5x7x7"


def case_of(text: str) -> Case:
    """The case "family/variant/shape"."""
    return BY_ID[f"{PROFILE}/{text}"]


# --- what the cases are ----------------------------------------------------------------------


def test_all_inputs_are_the_pinned_bits() -> None:
    assert digest(CASES) == DIGEST


def test_ids_are_unique_and_say_family_variant_and_shape() -> None:
    assert len(BY_ID) == len(CASES)
    for case in CASES:
        shape = "x".join(map(str, (*case.batch, *case.sizes.values())))
        assert list(case.sizes) == ["h", "g", "L", "S", "d", "v"]
        assert case.id == f"{PROFILE}/{case.family}/{case.variant}/{shape}"
        assert re.fullmatch(r"[a-zA-Z0-9-]+", case.family)


def test_attributes_and_masks_are_those_of_the_variant() -> None:
    for case in CASES:
        words = case.variant.split("-")
        assert case.masked == bool({"boolean", "additive"} & set(words))
        assert ("causal" in words) == (case.attributes.get("causal", False) is True)
        assert ("scale" in words) == ("scale" in case.attributes)
        assert case.attributes.keys() <= {"causal", "scale"}
        kind = np.bool_ if "boolean" in words else dtype(case.dtypes[0])
        mask = case.inputs(case.dtypes[0]).get("mask")
        assert (mask is not None) == case.masked
        assert mask is None or mask.dtype == kind


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id.partition("/")[2])
def test_inputs_fit_the_contract_and_are_stored_exactly(case: Case) -> None:
    for name in case.dtypes:
        inputs = case.inputs(name)
        given = {key: array.shape for key, array in inputs.items()}
        contract = shapes.contract(case.program, dict(case.bindings), given=given)
        h, g, L, S, d, v = case.sizes.values()
        assert given["Q"] == (*case.batch, h, L, d)
        assert given["K"] == (*case.batch, g, S, d)
        assert given["V"] == (*case.batch, g, S, v)
        assert contract["C"] == (*case.batch, h, L, v)
        for key, array in inputs.items():
            assert array.flags.c_contiguous
            assert array.flags.writeable
            if array.dtype == np.bool_:
                continue
            assert array.dtype == dtype(name)
            wide = array.astype(np.float64)
            low = -np.inf if key == "mask" else -FORMATS[name].largest
            assert np.all((wide >= low) & (wide <= FORMATS[name].largest))
            nonzero = np.abs(wide[wide != 0])
            assert np.all(nonzero >= FORMATS[name].tiny)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, id=f"{case.id.partition('/')[2]}-{name}")
        for case in CASES
        if case.exact
        for name in case.dtypes
    ],
)
def test_exact_claims_are_proved(case: Case, name: str) -> None:
    exactness.prove(case.program, case.inputs(name), case.bindings, name, case.exact)


def test_every_case_says_what_a_failure_means() -> None:
    for case in CASES:
        assert 8 <= len(case.why) <= 100
        assert "\n" not in case.why


# --- how many, and which ---------------------------------------------------------------------


def test_the_matrix_stays_affordable() -> None:
    assert 80 <= len(DEFAULT) <= 90
    assert len({(case.batch, *case.sizes.values()) for case in DEFAULT}) <= 20
    compiled = set[tuple[str, object, object]]()
    for case in DEFAULT:
        if case.compiled:
            given = {name: array.shape for name, array in case.inputs(case.dtypes[0]).items()}
            compiled.add((case.variant, tuple(given.items()), case.attributes.get("scale")))
    variants = sorted(variant for variant, *_ in compiled)
    assert variants == ["additive-scale", "boolean", "causal", "plain"]
    weights = [(*case.batch, *(case.sizes[axis] for axis in "hLS")) for case in DEFAULT]
    assert max(map(prod, weights)) < 2**13


def test_every_variant_has_a_case_and_the_most_telling_ones_are_compiled() -> None:
    assert {case.variant for case in DEFAULT} == set(
        forward_profiles()["scaled_dot_product_attention"].texts
    )
    for name in DTYPES:
        met = {(c.family, c.variant) for c in DEFAULT if c.compiled and name in c.dtypes}
        assert met >= {
            ("normal", "plain"),
            ("lookup", "plain"),
            ("hot", "plain"),
            ("normal", "causal"),
            ("below", "causal"),
            ("later-ahead", "causal"),
            ("garbage", "causal"),
            ("normal", "boolean"),
            ("one-kept", "boolean"),
            ("last-ahead", "boolean"),
            ("normal", "additive-scale"),
            ("penalty", "additive-scale"),
        }


def test_needs_are_what_a_simple_port_lacks() -> None:
    simple = {case.variant for case in DEFAULT if case.needs <= {"masks", "scale"}}
    assert simple >= {"plain", "causal", "boolean", "additive", "boolean-causal"}
    words = set().union(*(case.needs for case in DEFAULT))
    assert words == {
        *("layouts", "empty", "grouped_heads", "masks", "scale", "cross_length", "value_width")
    }
    for case in CASES:
        h, g, L, S, d, v = case.sizes.values()
        assert ("grouped_heads" in case.needs) == (g != h)
        assert ("cross_length" in case.needs) == (L != S)
        assert ("value_width" in case.needs) == (v != d)
        assert ("empty" in case.needs) == (0 in (*case.batch, *case.sizes.values()))


def test_sizes_hide_no_confusion_of_axes() -> None:
    assert {len(case.batch) for case in DEFAULT} == {0, 1, 2}
    sizes = [tuple(case.sizes.values()) for case in DEFAULT if "empty" not in case.needs]
    assert {(h // g, g) for h, g, *_ in sizes} >= {(6, 1), (3, 2), (2, 3), (1, 3)}
    assert {(L > S) - (L < S) for _, _, L, S, _, _ in sizes} == {-1, 0, 1}
    assert any(L == 1 < S for _, _, L, S, _, _ in sizes)
    squares = {int(d**0.5) ** 2 == d for *_, d, v in sizes if d != v}
    assert squares == {True, False}
    main = case_of(f"normal/plain/{MAIN}")
    assert len({*main.batch, *main.sizes.values()}) == 7


def test_each_axis_is_empty_once() -> None:
    empty = [case for case in DEFAULT if "empty" in case.needs]
    assert [case.batch for case in empty if 0 in case.batch] == [(0,)]
    for axis in ("h", "g", "L", "S", "v"):
        assert [case.sizes[axis] for case in empty].count(0) == 1


def test_masks_come_in_every_shape_that_broadcasts() -> None:
    for kind, among in (("boolean", DEFAULT), ("additive", CASES)):
        found = {case.family for case in among if kind in case.variant}
        found |= {"mask-LxS"} if kind == "boolean" else set()
        assert found >= {f"mask-{axes}" for axes in mask_cases.SHAPES}
        for axes in mask_cases.SHAPES:
            if axes == "BxhxLxS":
                continue
            small = case_of(f"mask-{axes}/{kind}/{UNGROUPED}")
            full = case_of(f"mask-{axes}-expanded/{kind}/{UNGROUPED}")
            given, expanded = small.inputs("float32"), full.inputs("float32")
            frame = Frame("", FORMATS["float32"], small.sizes, small.batch)
            assert given["mask"].shape == mask_families.shape_of(frame, axes)
            assert expanded["mask"].shape == (2, 3, 5, 9)
            whole = np.broadcast_to(given["mask"], (2, 3, 5, 9))
            assert np.array_equal(whole, expanded["mask"])
            for name in "QKV":
                assert np.array_equal(given[name], expanded[name])


def test_what_asks_for_the_same_results_has_the_same_data() -> None:
    plain = case_of(f"normal/plain/{UNGROUPED}").inputs("float32")
    for other in ("all-kept/boolean", "zero-bias/additive", "mask-Bx1xLxS/boolean"):
        inputs = case_of(f"{other}/{UNGROUPED}").inputs("float32")
        assert all(np.array_equal(inputs[name], plain[name]) for name in "QKV")
    assert case_of(f"all-kept/boolean/{UNGROUPED}").inputs("float32")["mask"].all()
    assert not case_of(f"zero-bias/additive/{UNGROUPED}").inputs("float32")["mask"].any()
    kept = case_of(f"normal/boolean/{SQUARE}").inputs("float32")["mask"]
    bias = case_of(f"as-bias/additive/{SQUARE}").inputs("float32")["mask"]
    assert np.array_equal(np.where(kept, 0, -np.inf), bias)


def test_masks_keep_some_keys_other_ones_for_each_query_and_not_as_a_triangle() -> None:
    for case in CASES:
        if case.family != "normal" or "boolean" not in case.variant:
            continue
        mask = case.inputs("float32")["mask"]
        count = mask.sum(-1)
        assert np.all((count >= 1) & (count < mask.shape[-1]))
        rows = {row.tobytes() for row in mask.reshape(-1, mask.shape[-1])}
        assert len(rows) > mask.shape[-2] // 2
        assert not np.array_equal(mask, np.tril(mask))
    one = case_of(f"one-kept/boolean/{SQUARE}").inputs("float32")["mask"]
    assert np.all(one.sum(-1) == 1)
    assert not np.array_equal(one, one.T)


def test_layouts_are_of_all_operands_and_of_one_at_a_time() -> None:
    laid_out = [case.layouts for case in CASES if case.layouts]
    for layout in ("heads", "F", "strided", "reversed", "offset", "readonly"):
        assert dict.fromkeys("QKV", layout) in laid_out
        for name in ("Q", "K", "V", "mask"):
            assert {name: layout} in laid_out
    for where in ({"K": "stride0", "V": "stride0"}, {"mask": "stride0"}, {"V": "stride0"}):
        assert where in laid_out
    kinds = {name for c in DEFAULT for name in c.layouts.values()}
    assert kinds == {"heads", "F", "strided", "readonly", "stride0"}
    for case in CASES:
        if case.layouts and "mask" not in case.layouts:
            assert case.exact[-1] == "C"
