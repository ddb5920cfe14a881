"""The diagnosis: faults are recognised, in any framework; what is no known fault is not named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac import diagnosis, evidence, invariants, precision, symmetries
from qkvac.api import check
from qkvac.cells import Cell, Result, Subject
from qkvac.diagnosis import Diagnosis, Sample, diagnose
from qkvac.spec import families
from qkvac.spec.attention import PROFILES
from qkvac.spec.case import Case, attention_case
from qkvac.spec.faults import FAULTS, Fault
from qkvac.spec.faulty import compute
from qkvac.spec.rewriting import rewritten
from qkvac.spec.verdict import judge
from qkvac.tests.suite import variants
from qkvac.tests.suite.bench import FORM, asked, fault_bench, sizes_in
from qkvac.tests.suite.engine_ports import write
from qkvac.tests.suite.kill_matrix import demonstrable, examined
from qkvac.tests.suite.laboratory import inside, needs
from qkvac.tests.suite.shelf import PORTS

Array = np.ndarray[Any, Any]
Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]

ATTENTION = PROFILES["attention"].program()
FAILING, PASSING = 5, 2
"""Answers that a diagnosis is made from here; a run keeps more."""

UNSEEN = tuple(
    attention_case(family, sizes, recipe, "a shape and a seed that the catalogue never saw")
    for family, sizes, recipe in (
        ("unseen", (21, 17, 11), families.normal),
        ("unseen", (5, 14, 6), families.normal),
        ("unseen-hot", (26, 19, 5), lambda f: families.normal(f, query=2)),
    )
)


def samples(
    function: Function,
    dtype: str = "float32",
    cases: Iterable[Case] = (),
    reported: Sequence[str] = (),
    fits: Callable[[Case], bool] = lambda case: True,
) -> list[Sample]:
    """Answers of a function on the first cases that it fails, and on some that it passes."""
    failing, passing = list[Sample](), list[Sample]()
    for case in cases or examined():
        if dtype not in case.dtypes or 0 in case.sizes.values() or not fits(case):
            continue
        question = asked(case, dtype, 0, FORM)
        with np.errstate(all="ignore"):
            outputs = dict(function(question.inputs))
        outputs = {name: outputs[name] for name in reported or outputs}
        verdicts = judge(question, outputs)
        wrong = tuple(name for name, verdict in verdicts.items() if verdict.status == "failed")
        kept = failing if wrong else passing
        if len(kept) < (FAILING if wrong else PASSING):
            kept.append(Sample(case, dtype, question.arithmetic, outputs, wrong))
        if len(failing) == FAILING:
            break
    return [*failing, *passing]


def named(found: Diagnosis | None) -> list[set[str]]:
    """Names of the faults of each explanation, the best first."""
    if found is None:
        return []
    explanations = (found.best, *found.others)
    return [{fault.name for fault in explanation.faults} for explanation in explanations]


REPRODUCIBLE = [fault for fault in demonstrable() if fault.rules]


@pytest.mark.parametrize("fault", REPRODUCIBLE[::2], ids=lambda fault: fault.name)
def test_a_fault_is_diagnosed_as_itself(fault: Fault) -> None:
    """Or as one that the same answers cannot tell from it: it is named beside it then."""
    function = fault_bench(fault).function
    found = samples(function, fault.dtype, fits=lambda case: fault.fits(ATTENTION, case.sizes))
    assert {fault.name} in named(diagnose(found))


@pytest.mark.parametrize(
    "name", ["no-scale", "softmax-over-queries", "value-of-key-weights", "context-residual"]
)
def test_the_result_alone_is_enough(name: str) -> None:
    fault = FAULTS[name]
    found = samples(
        fault_bench(fault).function,
        reported=["C"],
        fits=lambda case: fault.fits(ATTENTION, case.sizes),
    )
    assert {name} in named(diagnose(found))


@pytest.mark.parametrize("name", ["query-key-swapped", "query-value-swapped", "key-value-swapped"])
def test_swapped_weights_are_recognised_without_scores(name: str) -> None:
    """A is right about a Q and a K that are wrong; that must not count against the fault."""
    found = samples(
        fault_bench(FAULTS[name]).function,
        reported=["Q", "K", "V", "A", "C"],
        fits=lambda case: FAULTS[name].fits(ATTENTION, case.sizes),
    )
    assert {name} in named(diagnose(found))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("scale-1/d", "value-of-key-weights"),
            "the scale 1/d instead of 1/√c and the key weights",
        ),
        (("softmax-over-queries", "no-scale"), "scores that are not scaled and a softmax over"),
    ],
)
def test_two_faults_at_once_are_told_apart(names: tuple[str, str], words: str) -> None:
    first = FAULTS[names[0]].program(ATTENTION)
    assert first is not None
    both = rewritten(first, FAULTS[names[1]].rules)
    assert both is not None

    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return compute(both, inputs, sizes_in(both)(inputs), "float32")

    found = diagnose(samples(function))
    assert named(found)[:1] == [set(names)]
    assert words in str(found)


def test_the_sentence_says_what_the_result_equals() -> None:
    function = fault_bench(FAULTS["scale-1/√d"]).function
    found = diagnose(samples(function))
    assert str(found) == "C equals the result with the scale 1/√d instead of 1/√c"


# --- ports by hand, in another framework -----------------------------------------------------


def _torch_scale(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], V[None], scale=1 / X.shape[1])[0]


def _torch_rows(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch

    return torch.softmax(torch.einsum("ie,je->ij", Q, K) * Q.shape[1] ** -0.5, dim=0) @ V


def _torch_causal(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], V[None], is_causal=True)[0]


def _torch_keys(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], K[None])[0]


def _torch_transposed(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch

    A = torch.softmax(torch.einsum("ie,je->ij", Q, K) / Q.shape[1] ** 0.5, dim=-1)
    return torch.einsum("ij,ie->je", A, V)


def _torch_residual(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], V[None])[0] + X[:, : V.shape[1]]


TORCH = {
    "scale-1/d": _torch_scale,
    "softmax-over-queries": _torch_rows,
    "causal-unasked": _torch_causal,
    "context-of-keys": _torch_keys,
    "context-of-transposed-weights": _torch_transposed,
    "context-residual": _torch_residual,
}


def _in_torch(function: Callable[..., Any], inputs: dict[str, Array]) -> dict[str, Array]:
    import torch

    X, Wq, Wk, Wv = (torch.from_numpy(array) for array in inputs.values())
    Q, K, V = (torch.einsum("nd,dc->nc", X, W) for W in (Wq, Wk, Wv))
    C = function(Q, K, V, X)
    return {"Q": Q.numpy(), "K": K.numpy(), "V": V.numpy(), "C": C.numpy()}


def test_ports_in_another_framework_are_diagnosed() -> None:
    needs("torch")
    for name, port in TORCH.items():

        def function(inputs: Mapping[str, Array], port: Any = port) -> Mapping[str, Array]:
            result: dict[str, Array] = inside("torch", _in_torch, port, dict(inputs))
            return result

        assert {name} in named(diagnose(samples(function, cases=UNSEEN)))[:2], name


# --- outside the catalogue --------------------------------------------------------------------


def _plain(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return compute(ATTENTION, inputs, sizes_in(ATTENTION)(inputs), inputs["X"].dtype.name)


def _changed(name: str, change: Callable[[Array], Array]) -> Function:
    """Attention with a quantity changed before the equations after it are computed."""

    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = _plain(inputs)
        dtype = inputs["X"].dtype
        found[name] = change(found[name]).astype(dtype)
        targets = [equation.target.name for equation in ATTENTION.equations]
        for target in targets[max(targets.index(name), targets.index("V")) + 1 :]:
            part = ATTENTION.restricted(frozenset(found) - {target}, target)
            sizes = sizes_in(ATTENTION)(inputs)
            found[target] = compute(part, {**inputs, **found}, sizes, dtype.name)[target]
        return found

    return function


OUTSIDE: dict[str, Function] = {
    "weights to the fourth power": _changed("A", lambda a: a**4),
    "a constant added to C": _changed("C", lambda c: c + 0.1),
    "negative scores set to 0": _changed("Ω", lambda s: np.maximum(s, 0)),
    "queries rotated": _changed("Q", lambda q: np.roll(q, 1, axis=-1) * 0.5 + q * 0.25),
    "keys clipped to ±1": _changed("K", lambda k: np.clip(k, -1, 1)),
    "values rounded to quarters": _changed("V", lambda v: np.round(v * 4) / 4),
    "weights of odd keys lost": _changed("A", lambda a: a * (np.arange(a.shape[1]) % 2 == 0)),
    "scores squared": _changed("Ω", lambda s: s * s),
    "a cubic of C": _changed("C", lambda c: c - c**3 / 10),
    "Q off by one part in 10³": _changed("Q", lambda q: q * np.float32(1.001)),
}


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
        return {**_plain(inputs), "V": inputs["X"], "A": inputs["X"][0]}

    words = invariants.narrowed(samples(function))
    assert "holds: all results are finite" in words
    assert "rows of A" not in words


def test_what_failing_cases_have_in_common_is_said() -> None:
    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = _plain(inputs)
        return {**found, "C": found["C"] * (len(found["C"]) != 1)}

    cases = [case for case in examined() if case.family in ("normal", "hot")]
    assert "only for a single token" in invariants.narrowed(samples(function, cases=cases))


ORDER = "a permutation of the tokens permutes the results"
SHIFT = "a common shift of a query's scores leaves A and C as they are"
DOUBLE = "V and C double with Wv"
SUM = "V and C are additive in Wv"

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


FURTHER = {**OUTSIDE, "magnitudes of the values": _changed("V", np.abs)}


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


# --- in a run -----------------------------------------------------------------------------------

FEW = ("attention/normal/6x3x2", "attention/normal/33x20x7", "attention/hot/33x20x7")


def texts(port: str, cases: Sequence[str] = FEW, dtype: str = "float32") -> dict[str, set[str]]:
    """Diagnoses by quantity or check."""
    report = check(PORTS / f"{port}.py", dtypes=[dtype], cases=cases, workers=1)
    found: dict[str, set[str]] = {}
    for result in report.results:
        if not result.ok:
            found.setdefault(result.cell.quantity, set()).add(result.diagnosis or "")
    return found


def test_a_run_ends_with_the_diagnosis_and_the_first_wrong_equation() -> None:
    for text in texts("scaled_by_token_width")["C"]:
        assert text.startswith("C equals the result with the scale 1/√d instead of 1/√c")
        assert "the first equation that goes wrong is A[n, n]" in text


@pytest.mark.parametrize(
    ("port", "dtype", "words"),
    [
        ("tensor_float_products", "float32", "rounded to TF32; behaves like TF32: "),
        ("bfloat16_pairs", "float32", "effective precision: 18 of 24 bits in Q, K, V, "),
        ("float32_softmax", "float64", "in float32; behaves like float32: "),
    ],
)
def test_poor_arithmetic_is_diagnosed_with_the_effective_precision(
    port: str, dtype: str, words: str
) -> None:
    for text in texts(port, dtype=dtype)["C"]:
        assert words in text
        assert f" of {24 if dtype == 'float32' else 53} bits in " in text


def test_wrong_formulas_are_given_no_precision() -> None:
    assert not any("bits in" in text for text in texts("scaled_by_token_width")["C"])


def test_misbehaviour_is_told_by_the_check_that_it_breaks() -> None:
    found = texts("stale_cache")
    assert any("'state'" in text and "cache" in text for text in found["C"])
    assert found["state"] == {evidence.BROKEN["state"]}
    assert texts("weights_scaled_in_place")["unchanged"] == {evidence.BROKEN["unchanged"]}


CLIPPED = """
def attention(X, Wq, Wk, Wv):
    {habit}
    Q, K, V = X @ Wq, np.clip(X @ Wk, -1, 1), X @ Wv
    S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
    E = np.exp(S - S.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, A, A @ V
"""


def clipped(folder: Path, habit: str = "pass") -> str:
    return write(folder, CLIPPED.format(habit=habit))


def said(port: Any, **options: Any) -> set[str]:
    report = check(port, dtypes=["float32"], cases=FEW, workers=1, **options)
    return {r.diagnosis or "" for r in report.results if r.status == "failed" and r.worst}


def test_a_port_without_a_match_is_called_again(tmp_path: Path) -> None:
    for text in said(clipped(tmp_path)):
        _, _, rest = text.partition("no fault of the catalogue")
        holds, _, fails = rest.partition("; fails: ")
        assert all(what in holds for what in (ORDER, DOUBLE, SUM))
        assert SHIFT in fails


@pytest.mark.parametrize(
    "habit", ["os.abort()", "time.sleep(1000)", "raise ValueError", "return 1"]
)
def test_misbehaviour_in_further_calls_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, habit: str
) -> None:
    monkeypatch.setattr(diagnosis, "diagnose", lambda samples, patience: None)
    monkeypatch.setattr(precision, "resembling", lambda samples, patience: None)
    monkeypatch.setattr(evidence, "SECONDS", 4.0)
    usual = check(clipped(tmp_path), dtypes=["float32"], cases=FEW, workers=1)
    port = clipped(tmp_path, f"if len(X) > 1 and np.all(X[:, -1] == 1): {habit}")
    report = check(port, dtypes=["float32"], cases=FEW, workers=1)
    assert [r.status for r in report.results] == [r.status for r in usual.results]
    for text in {r.diagnosis or "" for r in report.results if r.worst and r.status == "failed"}:
        assert all(what in text for what in (ORDER, DOUBLE, SUM))
        assert SHIFT not in text


def test_a_diagnosis_that_goes_wrong_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(samples: Sequence[Sample], patience: float) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(diagnosis, "diagnose", broken)
    for text in texts("scaled_by_token_width")["C"]:
        assert text.startswith("there is no diagnosis: ZeroDivisionError: a fault of ours")
        assert "the first equation that goes wrong is A[n, n]" in text


def test_a_port_in_this_process_is_not_called_again() -> None:
    def attention(X: Array, Wq: Array, Wk: Array, Wv: Array) -> Mapping[str, Array]:
        return OUTSIDE["scores squared"]({"X": X, "Wq": Wq, "Wk": Wk, "Wv": Wv})

    texts = said(attention)
    assert texts
    for text in texts:
        assert "no fault of the catalogue" in text
        assert ORDER not in text


def test_a_conforming_port_has_nothing_to_explain() -> None:
    assert texts("correct_plain") == {}


def test_the_record_holds_the_diagnosis(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    port = PORTS / "scaled_by_token_width.py"
    check(port, dtypes=["float32"], cases=FEW, workers=1, record=path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    failed = [line for line in lines if line.get("status") == "failed"]
    assert failed
    assert all("the scale 1/√d instead of 1/√c" in line["diagnosis"] for line in failed)
