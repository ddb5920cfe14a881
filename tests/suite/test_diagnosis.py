"""The diagnosis: faults are recognised, in any framework; what is no known fault is not named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvac import evidence, invariants, precision
from qkvac.api import check
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
        if dtype not in case.dtypes or not case.sizes["n"] or not fits(case):
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


def named(diagnosis: Diagnosis | None) -> list[set[str]]:
    """Names of the faults of each explanation, the best first."""
    if diagnosis is None:
        return []
    found = (diagnosis.best, *diagnosis.others)
    return [{fault.name for fault in explanation.faults} for explanation in found]


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
    return compute(ATTENTION, inputs, sizes_in(ATTENTION)(inputs), "float32")


def _changed(name: str, change: Callable[[Array], Array]) -> Function:
    """Attention with a quantity changed before the equations after it are computed."""

    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = _plain(inputs)
        found[name] = change(found[name]).astype(np.float32)
        targets = [equation.target.name for equation in ATTENTION.equations]
        for target in targets[max(targets.index(name), targets.index("V")) + 1 :]:
            part = ATTENTION.restricted(frozenset(found) - {target}, target)
            sizes = sizes_in(ATTENTION)(inputs)
            found[target] = compute(part, {**inputs, **found}, sizes, "float32")[target]
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


def test_what_failing_cases_have_in_common_is_said() -> None:
    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = _plain(inputs)
        return {**found, "C": found["C"] * (len(found["C"]) != 1)}

    cases = [case for case in examined() if case.family in ("normal", "hot")]
    assert "only for a single token" in invariants.narrowed(samples(function, cases=cases))


def test_correct_ports_get_no_diagnosis() -> None:
    for variant in variants.correct()[::4]:
        assert diagnose(samples(variant.outputs, cases=variants.chosen()[:4])) is None


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


def test_misbehaviour_is_told_by_the_check_that_it_breaks() -> None:
    found = texts("stale_cache")
    assert any("'state'" in text and "cache" in text for text in found["C"])
    assert found["state"] == {evidence.BROKEN["state"]}
    assert texts("weights_scaled_in_place")["unchanged"] == {evidence.BROKEN["unchanged"]}


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
