"""Verdicts: each clause passes on a correct answer and fails on one that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from qkvac.spec import formats
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases import catalogue
from qkvac.spec.registry import forward_profiles
from qkvac.spec.verdicts import comparisons
from qkvac.spec.verdicts.verdict import Question, Verdict, judge

Answer = dict[str, np.ndarray]
DTYPES = formats.DTYPES


def attention(inputs: dict[str, np.ndarray], dtype: str, wide: bool = False) -> Answer:
    """A plain implementation: every product accumulates wide and is stored in `dtype`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _attention(inputs, dtype, wide)


def _attention(inputs: dict[str, np.ndarray], dtype: str, wide: bool) -> Answer:
    kind = formats.dtype(dtype)
    work = np.float64 if dtype == "float64" or wide else np.float32

    def store(x: np.ndarray) -> np.ndarray:
        return x.astype(kind)

    def up(x: np.ndarray) -> np.ndarray:
        return x.astype(work)

    X, Wq, Wk, Wv = (inputs[name] for name in ("X", "Wq", "Wk", "Wv"))
    Q, K, V = (store(up(X) @ up(W)) for W in (Wq, Wk, Wv))
    scores = store(up(Q) @ up(K).swapaxes(-1, -2))
    S = up(scores) / work(np.sqrt(Wq.shape[1]))
    weights = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
    A = store(weights / weights.sum(axis=-1, keepdims=True))
    return {"Q": Q, "K": K, "V": V, "Ω": scores, "A": A, "C": store(up(A) @ up(V))}


@cache
def question(case_id: str, dtype: str) -> Question:
    case = next(case for case in catalogue.cases("attention") if case.id == case_id)
    model = Arithmetic.for_dtype(dtype, {"softmax": "shifted, divided"})
    return Question(case, dtype, model)


def answer(case_id: str, dtype: str) -> Answer:
    return attention(dict(question(case_id, dtype).inputs), dtype)


def verdicts(case_id: str, dtype: str, change: Callable[[Answer], None]) -> dict[str, Verdict]:
    outputs = answer(case_id, dtype)
    change(outputs)
    return judge(question(case_id, dtype), outputs)


NORMAL = "attention/normal/33x20x7"


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_answer_passes_every_case(dtype: str) -> None:
    for case in catalogue.cases("attention"):
        if dtype not in case.dtypes or case.tier != "default":
            continue
        if any(layout == "stride0" for layout in case.layouts.values()):
            continue
        for name, verdict in judge(question(case.id, dtype), answer(case.id, dtype)).items():
            assert verdict.status in ("passed", "indecisive"), (case.id, name, verdict)
            assert verdict.grade != "suspicious", (case.id, name, verdict)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Q", "K", "V", "Ω", "A", "C"])
def test_three_bounds_off_in_one_entry_fails(dtype: str, name: str) -> None:
    outputs = answer(NORMAL, dtype)
    asked = question(NORMAL, dtype)
    excused = np.zeros(outputs[name].shape, bool)
    limits = [asked.bounds[name]]
    limits += [
        _reading_bound(asked, name, outputs, given, excused)
        for given in _readings(asked, name, outputs)
    ]
    # The loosest reading is a port's best excuse, so that is the one to exceed.
    limit = np.min([limits[0], np.max(limits[1:], axis=0)], axis=0) if limits[1:] else limits[0]
    index = (5, 3)
    moved = float(outputs[name][index]) + 3 * float(limit[index])
    outputs[name] = outputs[name].copy()
    outputs[name][index] = np.asarray(moved).astype(outputs[name].dtype)
    if dtype in ("bfloat16", "float16"):
        step = comparisons.spacing(np.asarray(moved), formats.FORMATS[dtype])
        assert 3 * limit[index] > step, "a move by less than one step would prove nothing"
    verdict = judge(asked, outputs)[name]
    assert verdict.status == "failed"
    assert verdict.clause in ("local", "bound")
    assert verdict.worst is not None
    assert verdict.worst.index == index
    assert verdict.ratio > 1


def _readings(asked: Question, name: str, outputs: Answer) -> list[tuple[str, ...]]:
    reported = frozenset(outputs) - {name}
    return [given for given, _ in comparisons.readings(asked.program, name, reported)]


def _reading_bound(
    asked: Question, name: str, outputs: Answer, given: tuple[str, ...], excused: np.ndarray
) -> np.ndarray:
    kept = {key: outputs[key] for key in given}
    comparison = comparisons.local(comparisons.Answer(asked, name, outputs[name], kept))
    assert comparison is not None
    assert comparison.reading == given
    return comparison.bound


def test_readings_never_start_from_the_inputs_of_the_scores() -> None:
    program = forward_profiles()["attention"].program()
    everything = frozenset("QKVΩA")
    named = {
        name: [g for g, _ in comparisons.readings(program, name, everything - {name})]
        for name in "QKVΩAC"
    }
    assert named["Q"] == named["K"] == named["V"] == []
    assert named["Ω"] == [("Q", "K")]
    assert named["A"] == [("Ω",), ("Q", "K")]
    assert named["C"] == [("V", "A"), ("V", "Ω"), ("Q", "K", "V")]


def test_readings_of_a_kernel_end_at_its_inputs() -> None:
    program = forward_profiles()["scaled_dot_product_attention"].program()
    named = {
        name: [g for g, _ in comparisons.readings(program, name, frozenset("ΩA") - {name})]
        for name in "ΩAC"
    }
    assert named == {"Ω": [], "A": [("Ω",)], "C": [("A",), ("Ω",)]}
    alone = [g for g, _ in comparisons.readings(program, "C", frozenset("A"))]
    assert alone == [("A",), ()]


def test_weights_and_context_may_come_from_different_paths() -> None:
    """A from float32 scores near 30000, C from float64: only the second reading of C holds."""
    case_id = next(
        c.id for c in catalogue.cases("attention") if "shift" in c.id and "30000" in c.id
    )
    inputs = dict(question(case_id, "float32").inputs)
    outputs = attention(inputs, "float32")
    outputs["C"] = attention(inputs, "float32", wide=True)["C"]
    verdict = judge(question(case_id, "float32"), outputs)["C"]
    assert verdict.status == "passed"


def test_local_clause_names_the_equation_that_goes_wrong() -> None:
    def base_two(outputs: Answer) -> None:
        S = outputs["Ω"] / np.sqrt(7)
        weights = np.exp2(S - S.max(axis=1, keepdims=True, initial=-np.inf))
        outputs["A"] = weights / weights.sum(axis=1, keepdims=True)
        outputs["C"] = outputs["A"] @ outputs["V"]

    result = verdicts(NORMAL, "float64", base_two)
    assert [result[name].status for name in "QKVΩ"] == ["passed"] * 4
    assert (result["A"].status, result["A"].clause) == ("failed", "local")
    assert (result["C"].status, result["C"].clause) == ("failed", "bound")


def test_float32_inside_float64_fails_the_local_clause() -> None:
    def narrow(outputs: Answer) -> None:
        outputs["A"] = outputs["A"].astype(np.float32).astype(np.float64)

    result = verdicts(NORMAL, "float64", narrow)
    assert (result["A"].status, result["A"].clause) == ("failed", "local")
    assert result["A"].bits is not None
    assert result["A"].bits < 30


CONTRACT: dict[str, Callable[[Answer], None]] = {
    "dtype": lambda out: out.update(C=out["C"].astype(np.float64)),
    "shape": lambda out: out.update(C=out["C"].T.copy()),
    "axes": lambda out: out.update(C=out["C"][None]),
    "nan": lambda out: out["C"].__setitem__((0, 0), np.nan),
    "inf": lambda out: out["C"].__setitem__((0, 0), np.inf),
}


@pytest.mark.parametrize("fault", CONTRACT)
def test_contract(fault: str) -> None:
    verdict = verdicts(NORMAL, "float32", CONTRACT[fault])["C"]
    assert (verdict.status, verdict.clause) == ("failed", "contract")
    assert verdict.reason is not None
    assert "C" in verdict.reason


def test_absent_quantities() -> None:
    def withhold(outputs: Answer) -> None:
        del outputs["C"], outputs["Q"]

    result = verdicts(NORMAL, "float32", withhold)
    assert result["C"].status == "missing"
    assert result["Q"].status == "not reported"
    assert result["A"].status == "passed"


def test_context_alone_is_judged_by_the_bound() -> None:
    outputs = answer(NORMAL, "float32")
    verdict = judge(question(NORMAL, "float32"), {"C": outputs["C"]})["C"]
    assert verdict.status == "passed"
    assert verdict.reading == ()
    full = judge(question(NORMAL, "float32"), outputs)["C"]
    assert full.resolution < verdict.resolution


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bit_off_fails_the_exact_clause(dtype: str) -> None:
    found = set[str]()
    for case in catalogue.cases("attention"):
        if not case.exact or dtype not in case.dtypes or case.tier != "default":
            continue
        outputs = answer(case.id, dtype)
        for name in case.exact:
            changed = dict(outputs)
            flat = changed[name].copy()
            largest = np.unravel_index(np.argmax(np.abs(flat.astype(np.float64))), flat.shape)
            flat[largest] = np.nextafter(flat[largest], flat.dtype.type(np.inf))
            changed[name] = flat
            verdict = judge(question(case.id, dtype), changed)[name]
            assert (verdict.status, verdict.clause) == ("failed", "exact"), (case.id, name)
            found.add(name)
    assert found == {*forward_profiles()["attention"].quantities}


def test_bits_through_the_softmax_bind_only_the_plain_form() -> None:
    case_id = next(
        c.id for c in catalogue.cases("attention") if "A" in c.exact and "float32" in c.dtypes
    )
    asked = question(case_id, "float32")
    fused = replace(asked, arithmetic=replace(asked.arithmetic, softmax="fused"))
    assert asked.asks_bits("A")
    assert not fused.asks_bits("A")
    assert fused.asks_bits("Q") == asked.asks_bits("Q")
    graded = judge(fused, answer(case_id, "float32"))["A"]
    assert graded.status == "passed"
    assert graded.grade == "exact"


def test_negative_zero_equals_zero() -> None:
    case_id = next(
        c.id for c in catalogue.cases("attention") if "C" in c.exact and "float32" in c.dtypes
    )
    outputs = answer(case_id, "float32")
    outputs = {name: np.where(x == 0, -np.float32(0), x) for name, x in outputs.items()}
    for verdict in judge(question(case_id, "float32"), outputs).values():
        assert verdict.status == "passed"


def test_a_vacuous_bound_is_indecisive() -> None:
    """Accumulating 512 terms in bfloat16 is allowed errors as large as the values themselves."""
    asked = question(NORMAL, "bfloat16")
    pure = Arithmetic.for_dtype("bfloat16", {"accumulation": "bfloat16"})
    long = max(
        (c for c in catalogue.cases("attention") if c.generic and "bfloat16" in c.dtypes),
        key=lambda c: c.sizes["n"],
    )
    inputs = long.inputs("bfloat16")
    verdict = judge(replace(asked, case=long, arithmetic=pure), attention(inputs, "bfloat16"))["C"]
    assert verdict.status == "indecisive"
    assert verdict.reason is not None
    assert verdict.resolution >= 1


def test_empty_arrays_pass_without_being_evidence() -> None:
    case_id = next(c.id for c in catalogue.cases("attention") if c.sizes["n"] == 0)
    for verdict in judge(question(case_id, "float32"), answer_empty(case_id)).values():
        assert verdict.status == "passed"
        assert verdict.empty


def answer_empty(case_id: str) -> Answer:
    sizes = question(case_id, "float32").sizes
    shape = dict.fromkeys("QKVC", (0, sizes["c"])) | {"Ω": (0, 0), "A": (0, 0)}
    return {name: np.zeros(s, np.float32) for name, s in shape.items()}


def test_zeros_fail() -> None:
    """Smoke tests pass zeros; no clause may."""

    def silence(outputs: Answer) -> None:
        for name in outputs:
            outputs[name] = np.zeros_like(outputs[name])

    result = verdicts(NORMAL, "float32", silence)
    assert {verdict.status for verdict in result.values()} == {"failed"}
