"""The relations between answers: each profile is asked those that hold, and each can fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from qkvac.cells import CHECKS, Result, Status
from qkvac.checks import relations
from qkvac.checks.relations import IN_ADVANCE, further
from qkvac.cli.exporting import jobs
from qkvac.engine.engine import Engine
from qkvac.spec.cases.catalogue import profiles_with_cases
from qkvac.spec.registry import forward_profiles, known_profiles
from qkvac.subjects.selection import Options, Selection, find_case
from qkvac.tests.suite.profile_ports import write

SDPA: Final = "scaled_dot_product_attention"
MULTI: Final = "multi_head_attention"
LINEAR: Final = "attention_linear_layers"
CAUSAL: Final = "causal_attention"
PLAIN: Final = "dot_product_attention"


def results(
    port: str, *checks: str, profiles: tuple[str, ...] = (), dtype: str = "float64"
) -> Iterator[Result]:
    """What a port is told in some checks."""
    selection = Selection(port=port, profiles=profiles, dtypes=(dtype,))
    with Engine(selection, Options(workers=1)) as engine:
        for cell in engine.cells:
            if cell.quantity in checks:
                yield engine.result(cell)


COMMON_SHIFT = """
    def weights(S, keep=True, empty=0.0):
        keep = np.broadcast_to(keep, S.shape)
        E = np.where(keep, np.exp(S - S[keep].mean()), S.dtype.type(0))
        return E / np.maximum(E.sum(axis=-1, keepdims=True), np.finfo(S.dtype).tiny)
    """
EPSILON = """
    def weights(S, keep=True, empty=0.0):
        S = np.where(keep, S, S.dtype.type(-np.inf))
        E = np.exp(S - np.maximum(S.max(axis=-1, keepdims=True, initial=-np.inf), -1e30))
        return E / (E.sum(axis=-1, keepdims=True) + S.dtype.type(1e-9))
    """
LEAK = """
    def triangle(L, S):
        return np.tri(L, S, 1, dtype=bool)
    """
ZERO = """
    right = {NAME}
    def {NAME}(*arrays, **keywords):
        return {{k: v * 0 if k in "CY" else v for k, v in right(*arrays, **keywords).items()}}
    """
GROWN = """
    right = {NAME}
    def {NAME}(*arrays, **keywords):
        found = right(*arrays, **keywords)
        grow = {WHEN}
        return {{k: v * v.dtype.type(1 + 1e-6) if grow else v for k, v in found.items()}}
    """


def changed(name: str, when: str = "") -> str:
    return (GROWN if when else ZERO).format(NAME=name, WHEN=when)


FAULTS: Final = {
    ("future", SDPA, "a shift by all scores"): COMMON_SHIFT,
    ("future", CAUSAL, "a shift by all scores"): COMMON_SHIFT,
    ("future", MULTI, "a leak"): LEAK,
    ("future", SDPA, "a mask in place of the triangle"): """
        inner = scaled_dot_product_attention
        def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
            return inner(Q, K, V, causal=causal and mask is None, mask=mask, scale=scale)
        """,
    ("first-row", SDPA, "an epsilon"): EPSILON,
    ("first-row", CAUSAL, "an epsilon"): EPSILON,
    ("first-row", MULTI, "a leak"): LEAK,
    ("first-row", SDPA, "the last group for all"): """
        inner = scaled_dot_product_attention
        def scaled_dot_product_attention(Q, K, V, **keywords):
            return inner(Q, K, np.broadcast_to(V[..., -1:, :, :], V.shape), **keywords)
        """,
    ("own-row", SDPA, "queries centred"): """
        inner = scaled_dot_product_attention
        def scaled_dot_product_attention(Q, K, V, **keywords):
            return inner(Q - Q.mean(axis=-2, keepdims=True), K, V, **keywords)
        """,
    ("own-row", SDPA, "a shift by all scores"): COMMON_SHIFT,
    **{
        ("batch", name, "a shift by all scores"): COMMON_SHIFT
        for name in ("attention", CAUSAL, SDPA, MULTI, PLAIN)
    },
    ("batch", "embedding", "the last sample's tokens"): """
        def embedding(tokens, E, P):
            last = tokens.reshape(-1, tokens.shape[-1])[-1]
            return np.broadcast_to(E[last] + P[: len(last)], (*tokens.shape, E.shape[1])).copy()
        """,
    **{("sensitivity", n, "zeros"): changed(n) for n in ("attention", PLAIN, SDPA, MULTI, LINEAR)},
    ("sensitivity", MULTI, "Wo is not used"): """
        inner = multi_head_attention
        def multi_head_attention(X, Wq, Wk, Wv, Wo, **keywords):
            return inner(X, Wq, Wk, Wv, np.ones_like(Wo), **keywords)
        """,
    ("sensitivity", LINEAR, "bk is not used"): """
        inner = attention_linear_layers
        def attention_linear_layers(X, Wq, Wk, Wv, bq, bk, bv):
            return inner(X, Wq, Wk, Wv, bq, None, bv)
        """,
    ("sensitivity", "embedding", "P is not used"): """
        def embedding(tokens, E, P):
            return E[tokens] + np.ones_like(P[: tokens.shape[-1]])
        """,
    ("sensitivity", SDPA, "keys are the queries"): """
        inner = scaled_dot_product_attention
        def scaled_dot_product_attention(Q, K, V, **keywords):
            return inner(Q, np.resize(Q, K.shape), V, **keywords)
        """,
    ("scaling", SDPA, "a constant"): changed(SDPA, "np.abs(arrays[2]).max() > 8"),
    ("scaling", MULTI, "a constant"): changed(MULTI, "np.abs(arrays[4]).max() < 0.25"),
    ("scaling", LINEAR, "a constant"): """
        inner = attention_linear_layers
        def attention_linear_layers(X, Wq, Wk, Wv, *biases):
            return inner(X, Wq, Wk, Wv + Wv.dtype.type(2**-20), *biases)
        """,
    ("scaling", "embedding", "a constant"): """
        def embedding(tokens, E, P):
            return E[tokens] + P[: tokens.shape[-1]] + E.dtype.type(2**-20)
        """,
    ("signs", PLAIN, "a constant"): """
        inner = dot_product_attention
        def dot_product_attention(X):
            return inner(X + X.dtype.type(2**-20))
        """,
    ("signs", SDPA, "rounding up"): """
        inner = scaled_dot_product_attention
        def scaled_dot_product_attention(Q, K, V, **keywords):
            return inner(Q, K, np.nextafter(V, V.dtype.type(np.inf)), **keywords)
        """,
    ("permutation", PLAIN, "a penalty by place"): """
        inner = weights
        def weights(S, *more):
            return inner(S - S.dtype.type(1e-6) * np.arange(S.shape[-1], dtype=S.dtype), *more)
        """,
    ("permutation", SDPA, "the last key dropped"): """
        inner = weights
        def weights(S, keep=True, empty=0.0):
            keep = keep & (np.arange(S.shape[-1]) < max(S.shape[-1] - 1, 1))
            return inner(S, keep, empty)
        """,
    ("samples", "attention", "otherwise in a batch"): changed("attention", "arrays[0].ndim > 2"),
    ("samples", SDPA, "otherwise in a batch"): changed(SDPA, "arrays[0].ndim > 3"),
    ("mask-forms", SDPA, "otherwise with a mask"): changed(
        SDPA, "keywords['mask'] is not None"
    ).replace("keywords['mask']", "keywords.get('mask')"),
    ("mask-forms", SDPA, "a whole mask is transposed"): changed(
        SDPA, "keywords.get('mask') is not None and keywords['mask'].ndim > 3"
    ),
    ("unchanged", SDPA, "scales K in place"): """
        inner = scaled_dot_product_attention
        def scaled_dot_product_attention(Q, K, V, **keywords):
            found = inner(Q, K, V, **keywords)
            K *= 2
            return found
        """,
    ("unchanged", "embedding", "counts tokens from 1"): """
        inner = embedding
        def embedding(tokens, E, P):
            found = inner(tokens, E, P)
            tokens += 1
            return found
        """,
    ("repeat", MULTI, "every other call"): """
        calls = 0
        inner = multi_head_attention
        def multi_head_attention(*arrays, **keywords):
            global calls
            calls += 1
            found = inner(*arrays, **keywords)
            return {**found, "Y": np.nextafter(found["Y"], np.inf, dtype=found["Y"].dtype)
                    if calls % 2 else found["Y"]}
        """,
    ("state", LINEAR, "weights kept by shape"): """
        known = {}
        inner = attention_linear_layers
        def attention_linear_layers(X, *more):
            return inner(*known.setdefault(X.shape, (X.copy(), *more)))
        """,
    ("environment", PLAIN, "rounding left upward"): """
        import ctypes
        inner = dot_product_attention
        def dot_product_attention(X):
            found = inner(X)
            ctypes.CDLL(None).fesetround(0x800)  # upward on x86
            return found
        """,
}
"""By check, profile and what is wrong: a port that only differs from a right one by that."""


@pytest.mark.parametrize(("check", "profile", "what"), FAULTS)
def test_each_relation_finds_its_fault(tmp_path: Path, check: str, profile: str, what: str) -> None:
    port = write(tmp_path, FAULTS[check, profile, what])
    found = list(results(port, check, profiles=(profile,)))
    failed = [result for result in found if result.status == Status.FAILED]
    assert failed, [result.line for result in found]
    assert all(result.clause == "metamorphic" and result.reason for result in failed)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_right_port_passes_them_all(tmp_path: Path, dtype: str) -> None:
    port = write(tmp_path, IN_FLOAT32 if dtype.endswith("16") else "")
    found = list(results(port, *CHECKS, dtype=dtype))
    assert {result.status for result in found} == {Status.PASSED}, [
        result.line for result in found if result.status != Status.PASSED
    ]
    if dtype == "float64":
        made = {(result.cell.profile, result.cell.quantity) for result in found}
        assert made >= {(profile, check) for check, profile, _ in FAULTS}


IN_FLOAT32 = """
    QKVAC["dtypes"] = ["bfloat16", "float16"]
    QKVAC["arithmetic"].update(scores="float32", elementwise="float32")

    def stored(name):
        inner = globals()[name]
        def function(*arrays, **keywords):
            kind = next(a.dtype for a in arrays if a.dtype.kind != "i")
            def wide(a):
                return a if getattr(a, "dtype", bool) in (bool, int) or not hasattr(a, "astype") \\
                    else a.astype(np.float32)
            found = inner(*map(wide, arrays), **{k: wide(v) for k, v in keywords.items()})
            if not isinstance(found, dict):
                return found.astype(kind)
            return {k: v if k == "scores" else v.astype(kind) for k, v in found.items()}
        return function

    globals().update({
        name: stored(name) for name in (
            "attention", "causal_attention", "dot_product_attention", "embedding",
            "attention_linear_layers", "multi_head_attention", "scaled_dot_product_attention",
        )
    })
    """


def test_what_need_not_be_bitwise_is_reported(tmp_path: Path) -> None:
    port = write(tmp_path)
    found = list(results(port, "permutation", "samples", "mask-forms", dtype="float32"))
    reasons = [result.reason or "" for result in found]
    assert all(reason.startswith("bits ") for reason in reasons)
    assert any("as allowed" in reason for reason in reasons)


FUSED = """
    QKVAC["arithmetic"] = {"softmax": "fused"}
    """
UNDECLARED = """
    QKVAC["arithmetic"] = {}
    """


def test_bits_through_the_softmax_are_asked_of_one_form_only(tmp_path: Path) -> None:
    text = EPSILON.replace("1e-9", "1e-15")
    (asked, *_) = results(write(tmp_path, text), "first-row", profiles=(CAUSAL,))
    assert asked.status == Status.FAILED
    (told, *_) = results(write(tmp_path, text + FUSED), "first-row", profiles=(CAUSAL,))
    assert (told.status, told.reason) == (
        Status.PASSED,
        "bits differ in C where a query sees one key alone, as allowed",
    )


TREBLED = """
    {NAME}_before = {NAME}
    def {NAME}(*arrays, **keywords):
        found = {NAME}_before(*arrays, **keywords)
        if keywords.get("causal", True):
            found["C"][..., 0, :] *= 3
        return found
    """


@pytest.mark.parametrize("form", [FUSED, UNDECLARED], ids=["fused", "undeclared"])
@pytest.mark.parametrize("profile", [CAUSAL, SDPA, MULTI])
@pytest.mark.parametrize("fault", [EPSILON, TREBLED], ids=["an epsilon", "three times as large"])
def test_a_first_row_is_held_to_its_bound_whatever_the_softmax(
    tmp_path: Path, fault: str, profile: str, form: str
) -> None:
    text = fault.format(NAME=profile) + form
    found = list(results(write(tmp_path, text), "first-row", profiles=(profile,)))
    assert found
    assert {result.status for result in found} == {Status.FAILED}, [r.line for r in found]
    assert all("by more than rounding allows: " in (r.reason or "") for r in found)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_first_row_that_is_right_passes_in_any_form(tmp_path: Path, dtype: str) -> None:
    text = EPSILON.replace("1e-9", "1e-17") + UNDECLARED
    if dtype.endswith("16"):
        text += IN_FLOAT32
    found = list(results(write(tmp_path, text), "first-row", dtype=dtype))
    assert {result.status for result in found} == {Status.PASSED}, [r.line for r in found]


def test_every_combination_of_flags_is_asked_about_the_future(tmp_path: Path) -> None:
    asked = {result.cell.case for result in results(write(tmp_path), "future")}
    profiles = {case.partition("/")[0] for case in asked}
    assert profiles == {CAUSAL, SDPA, MULTI}
    variants = {find_case(id).variant for id in asked if id.startswith(SDPA)}
    assert variants == {v for v in forward_profiles()[SDPA].texts if "causal" in v}


# --- what is asked in advance ----------------------------------------------------------------


def test_further_inputs_are_of_the_same_shapes_and_dtypes_and_of_other_values() -> None:
    for job in jobs(Selection(dtypes=("float32",))):
        inputs = job.case.inputs(job.dtype)
        for check in IN_ADVANCE & {*job.checks}:
            for other in further(check, job.case, job.dtype, inputs):
                assert other.keys() == inputs.keys()
                for name, array in inputs.items():
                    assert (other[name].dtype, other[name].shape) == (array.dtype, array.shape)
                same = all(np.array_equal(other[n], a) for n, a in inputs.items())
                assert same == (check == "repeat"), (job.case.id, check)


def test_the_future_begins_after_what_is_kept() -> None:
    for job in jobs(Selection(dtypes=("float64",))):
        if "future" not in job.checks:
            continue
        inputs = job.case.inputs("float64")
        asked = further("future", job.case, "float64", inputs)
        for later, other in zip(relations.later_tokens(job.case), asked, strict=True):
            kept = int(np.argmax(later.rows)) - 1
            changed = {n for n in inputs if not np.array_equal(inputs[n], other[n])}
            assert changed == ({"K", "V"} if "K" in inputs else {"X"})
            for name in changed:
                rows = np.any(inputs[name] != other[name], axis=-1)
                assert not rows[..., : kept + 1].any()
                assert rows[..., kept + 1 :].all()


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (7, 7), (5, 6)])
def test_queries_see_the_change_and_do_not_in_both_alignments(queries: int, keys: int) -> None:
    thresholds = relations.last_kept(queries, keys)
    for ahead in (0, keys - queries):
        blind = [kept + 1 - ahead for kept in thresholds]
        assert any(0 < rows < queries for rows in blind)


def test_every_profile_has_relations() -> None:
    made = {(job.case.profile, name) for job in jobs(Selection()) for name in job.checks}
    for profile in profiles_with_cases():
        asked = {name for of, name in made if of == profile}
        assert asked >= {"unchanged", "repeat", "state", "environment"}
        # Of gradients it is asked what a call does, and their values.
        further = set() if known_profiles()[profile].base else {"sensitivity", "signs", "batch"}
        assert asked & {"sensitivity", "signs", "batch"} == further
