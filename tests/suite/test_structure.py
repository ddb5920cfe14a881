"""What axes mean is read from equations, and relations follow from it, for any text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from qkvac.cells import Status
from qkvac.checks import registry
from qkvac.checks.relations import copied, later_tokens, own_rows, permutations
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.grammar.equations import parse
from qkvac.spec.registry import forward_profiles, known_profiles
from qkvac.spec.symbolic.copies import copies
from qkvac.spec.symbolic.influence import influenced
from qkvac.spec.symbolic.structure import orderless, rows, triangles
from qkvac.tests.suite.own_variants import (
    FUNCTIONS,
    Array,
    Function,
    case_of,
    cross,
    declared,
    differential,
    entry_of,
    found,
    heads,
)


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path) -> Iterator[None]:
    with declared(tmp_path):
        yield


# --- what axes mean --------------------------------------------------------------------------


def axes_without_order(profile: str, variant: str | None = None) -> set[frozenset[str]]:
    """Those along which somebody's rows stand."""
    known = known_profiles()[profile]
    program = known.program(variant)
    own = rows(known, program).keys()
    return {axes for axes in orderless(program) if axes & own}


def test_rows_stand_along_axes_of_what_samples_do_not_share() -> None:
    own = {n: set(rows(p, p.program())) for n, p in forward_profiles().items()}
    assert own["attention"] == {"n"}
    assert own["scaled_dot_product_attention"] == {"h", "L", "g", "S"}
    assert own["embedding"] == {"n"}
    assert own["cross"] == {"n", "m"}
    assert own["heads"] == {"p"}


def test_order_means_nothing_unless_an_operation_goes_by_it() -> None:
    assert axes_without_order("attention") == {frozenset("n")}
    assert axes_without_order("causal_attention") == set()
    assert axes_without_order("embedding") == set()
    assert axes_without_order("scaled_dot_product_attention") == {frozenset("L"), frozenset("S")}
    assert axes_without_order("scaled_dot_product_attention", "causal") == set()
    assert axes_without_order("cross") == {frozenset("n"), frozenset("m")}
    assert axes_without_order("heads") == {frozenset("p")}


def test_two_names_of_one_axis_go_together() -> None:
    program = parse("X[n, d]\nZ[m, d]\nY[n, d] = X + Z\nS[n, n] = Y @ Z.T")
    assert frozenset({"n", "m"}) in orderless(program)
    assert frozenset("d") in orderless(program)
    program = parse("X[n, d]\nP[p, d]\nY[n, d] = X + first(P, n)")
    assert orderless(program) == (frozenset("d"),)


def test_triangles_are_found_wherever_they_stand() -> None:
    found = {
        name: triangles(p.program(list(p.texts)[-1])) for name, p in forward_profiles().items()
    }
    assert found["causal_attention"] == (("n", "n"),)
    assert found["scaled_dot_product_attention"] == (("L", "S"),)
    assert found["differential"] == (("n", "n"),)
    assert found["heads"] == (("p", "p"),)
    assert found["cross"] == ()


# --- influence and copies are what numbers do ------------------------------------------------


def small(profile: str) -> Iterator[Case]:
    """A case of every variant, masks and all."""
    seen = set()
    for case in cases(profile):
        size = max(case.sizes.values()) < 40 and min(case.sizes.values()) > 1
        if size and case.family == "normal" and not case.layouts and case.variant not in seen:
            seen.add(case.variant)
            yield case


def computed(case: Case, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    with np.errstate(all="ignore"):
        return compute(case.program, inputs, case.bindings, "float64")


NAMES: Final = ("attention", "causal_attention", "scaled_dot_product_attention", "embedding")
OWN: Final = ("multi_head_attention", "cross", "differential", "heads")


@pytest.mark.parametrize("profile", [*NAMES, *OWN])
def test_what_changes_is_what_is_influenced(profile: str) -> None:
    """Not a bit more changes, and hardly less."""
    for case in small(profile):
        inputs, other = case.inputs("float64"), case.drawn(1).inputs("float64")
        before = computed(case, inputs)
        for name in inputs.keys() - case.declared.masks:
            changed = {name: np.zeros(inputs[name].shape, bool)}
            changed[name][..., -1:] = True
            moved = {**inputs, name: np.where(changed[name], other[name], inputs[name])}
            reached = influenced(case.program, inputs, case.bindings, changed)
            for quantity, after in computed(case, moved).items():
                different = after != before[quantity]
                assert different.shape == reached[quantity].shape
                assert not np.any(different & ~reached[quantity]), (case.id, name, quantity)
                if inputs[name].dtype.kind == "f":  # another token may be the same one
                    assert different.sum() >= 0.75 * reached[quantity].sum() - 2


@pytest.mark.parametrize("profile", [*NAMES, *OWN])
def test_what_is_said_to_be_copied_is(profile: str) -> None:
    for case in small(profile):
        inputs = case.inputs("float64")
        outputs = computed(case, inputs)
        known = copies(case.program, inputs, case.bindings, outputs, {})
        for name, copy in known.items():
            same = outputs[name] == copy.value
            assert np.all(same[copy.known]), (case.id, name)
        assert set(copied(case)) == set(known)
        if not case.masked and profile != "embedding":
            assert bool(known) == (bool(triangles(case.program)) and profile != "differential")


# --- relations of any text -------------------------------------------------------------------


def batched(case: Case) -> Case:
    return replace(case, id=f"{case.id}/batch", batch=(2,))


def test_each_text_has_the_relations_that_follow_from_it() -> None:
    def asked(profile: str, variant: str = "") -> set[str]:
        entry, case = entry_of(profile), case_of(profile, variant)
        return {*registry.names(entry, "float64", case)} & RELATIONS

    every = {"sensitivity", "scaling", "signs"}
    assert asked("cross") == every | {"own-row", "permutation"}
    assert asked("differential") == every | {"permutation"}
    assert asked("differential", "causal") == every | {"future"}
    assert asked("heads") == every | {"permutation"}
    assert asked("heads", "causal") == every | {"future", "first-row"}


RELATIONS: Final = {
    "scaling",
    "signs",
    "future",
    "own-row",
    "first-row",
    "sensitivity",
    "permutation",
    "mask-forms",
}


def test_which_rows_are_changed() -> None:
    assert [p.axes for p in permutations(case_of("cross"))] == [{"n"}, {"m"}]
    assert [d.axis for d in own_rows(case_of("cross"))] == ["n"]
    assert not own_rows(case_of("differential"))
    assert {d.axis for d in later_tokens(case_of("heads", "causal"))} == {"p"}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("profile", FUNCTIONS)
def test_right_ports_pass(profile: str, dtype: str) -> None:
    for variant in known_profiles()[profile].texts:
        case = case_of(profile, variant)
        for check in registry.names(entry_of(profile), dtype, case):
            if check in RELATIONS:
                told = found(check, case, FUNCTIONS[profile], dtype)
                assert told.status in (Status.PASSED, Status.NOT_REPORTED), (check, told)
        for check in ("batch", "samples"):
            assert found(check, batched(case), FUNCTIONS[profile], dtype).status == Status.PASSED


def by_place(X: Array, Z: Array, *W: Array) -> Mapping[str, Array]:
    """Later keys count a little less."""
    place = 1 - 1e-6 * np.arange(Z.shape[-2])
    return cross(X, Z * place[:, None], *W)


def queries_mixed(X: Array, *others: Array) -> Mapping[str, Array]:
    return cross(X - X.mean(axis=-2, keepdims=True), *others)


def first_query_for_all(X: Array, *others: Array) -> Mapping[str, Array]:
    found = cross(X, *others)
    return {**found, "C": np.broadcast_to(found["C"][..., :1, :], found["C"].shape)}


def keys_of_queries(X: Array, Z: Array, *W: Array) -> Mapping[str, Array]:
    return cross(X, np.ones_like(Z), *W)


def second_leaks(*arrays: Any, causal: bool = False) -> Mapping[str, Array]:
    return differential(*arrays, causal=causal, leak=1)


def one_attention(*arrays: Any, causal: bool = False) -> Mapping[str, Array]:
    X, W1, U1, W2, U2, Wv, lam = arrays
    return differential(X, W1, U1, W2, U2, Wv, 0 * lam, causal=causal)


def by_position(X: Array, *W: Any, causal: bool = False) -> Mapping[str, Array]:
    return differential(X + 1e-6 * np.arange(len(X))[:, None], *W, causal=causal)


def heads_leak(T: Array, *W: Any, r: int = 1, causal: bool = False) -> Mapping[str, Array]:
    mean = T.mean(axis=-2, keepdims=True)
    return heads(T + 1e-9 * mean, *W, r=r, causal=causal)


def first_value_shrunk(T: Array, *W: Any, r: int = 1, causal: bool = False) -> Any:
    found = dict(heads(T, *W, r=r, causal=causal))
    found["Y"][..., 0, :] *= 1 - 1e-9
    return found


def of_last_sample(function: Function) -> Function:
    """All samples get what the last one gets."""

    def called(*arrays: Array, **keywords: Any) -> Mapping[str, Array]:
        last = (arrays[0][-1] if arrays[0].ndim > 2 else arrays[0])[None]
        return function(0 * arrays[0] + last, *arrays[1:], **keywords)

    return called


def otherwise_in_batches(function: Function) -> Function:
    def called(*arrays: Array, **keywords: Any) -> Mapping[str, Array]:
        found = function(*arrays, **keywords)
        return {n: a * (1 + 1e-6 * (arrays[0].ndim > 2)) for n, a in found.items()}

    return called


def weights_raised(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Mapping[str, Array]:
    return cross(X, Z, Wq, Wk, Wv + 2.0**-20)


def small_numbers_flushed(*arrays: Array, **keywords: Any) -> Mapping[str, Array]:
    """Numbers that may be taken for noise."""
    function: Function = heads if "r" in keywords else differential
    return function(*(np.where(np.abs(a) < 1e-2, 0, a) for a in arrays), **keywords)


def rounded_up(*arrays: Array, **keywords: Any) -> Mapping[str, Array]:
    function: Function = heads if "r" in keywords else cross
    *others, Wv = arrays
    return function(*others, np.nextafter(Wv, np.inf), **keywords)


def of_one_sign(*arrays: Any, **keywords: Any) -> Mapping[str, Array]:
    found = differential(*arrays, **keywords)
    return {**found, "C": np.maximum(found["C"], 0)}


WRONG: Final = [
    ("scaling", "cross", "", weights_raised),
    ("scaling", "heads", "", small_numbers_flushed),
    ("scaling", "differential", "causal", small_numbers_flushed),
    ("signs", "cross", "", rounded_up),
    ("signs", "heads", "causal", rounded_up),
    ("signs", "differential", "", of_one_sign),
    ("permutation", "cross", "", by_place),
    ("permutation", "cross", "", first_query_for_all),
    ("own-row", "cross", "", queries_mixed),
    ("sensitivity", "cross", "", keys_of_queries),
    ("future", "differential", "causal", second_leaks),
    ("sensitivity", "differential", "", one_attention),
    ("permutation", "differential", "", by_position),
    ("future", "heads", "causal", heads_leak),
    ("first-row", "heads", "causal", first_value_shrunk),
    ("batch", "cross", "", of_last_sample(cross)),
    ("batch", "heads", "causal", of_last_sample(heads)),
    ("samples", "differential", "", otherwise_in_batches(differential)),
]


@pytest.mark.parametrize(
    ("check", "profile", "variant", "function"), WRONG, ids=[f"{c}-{p}" for c, p, _, _ in WRONG]
)
def test_wrong_ports_fail(check: str, profile: str, variant: str, function: Function) -> None:
    case = case_of(profile, variant)
    case = batched(case) if check in ("batch", "samples") else case
    assert found(check, case, FUNCTIONS[profile]).status == Status.PASSED
    told = found(check, case, function)
    assert (told.status, told.clause) == (Status.FAILED, "metamorphic")
