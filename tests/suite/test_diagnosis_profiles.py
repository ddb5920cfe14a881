"""The diagnosis on profiles with masks, heads, scales and biases, and what failing cases share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from qkvac.api import check
from qkvac.diagnosis.conditions import condition as condition_of
from qkvac.diagnosis.evidence import FAILING, PASSING, explain
from qkvac.diagnosis.samples import Sample
from qkvac.diagnosis.search import diagnose
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.targets.ports import known_functions
from qkvac.tests.suite.profile_ports import EVERYTHING, write

SDPA: Final = "scaled_dot_product_attention"
MULTI: Final = "multi_head_attention"
LINEAR: Final = "attention_linear_layers"

LEAK: Final = """
    def triangle(L, S):
        return np.tri(L, S, 1, dtype=bool)
    """
WRONG: Final = {
    "the scale 1/d instead of 1/√d": (
        SDPA,
        """
    inner = scaled_dot_product_attention
    def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
        return inner(Q, K, V, causal=causal, mask=mask, scale=scale or 1 / Q.shape[-1])
    """,
    ),
    "the mask ignored": (
        SDPA,
        """
    inner = scaled_dot_product_attention
    def scaled_dot_product_attention(Q, K, V, *, causal=False, mask=None, scale=None):
        return inner(Q, K, V, scale=scale)
    """,
    ),
    "a causal mask that shows the next key": (MULTI, LEAK),
    "heads of every h-th column": (
        MULTI,
        """
    def heads_of(x, h):
        *lead, n, c = x.shape
        return x.reshape(*lead, n, c // h, h).swapaxes(-1, -2).swapaxes(-2, -3)
    """,
    ),
}
"""What a diagnosis must say of a port."""


def function(profile: str, text: str = "") -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(EVERYTHING + textwrap.dedent(text), scope)
    found: Callable[..., Any] = scope[profile]
    return found


def samples(profile: str, call: Callable[..., Any], dtype: str = "float32") -> list[Sample]:
    """Answers to generic cases, as the engine keeps them."""
    words, model = known_functions()[profile], Arithmetic.for_dtype(dtype)
    found = list[Sample]()
    for case in cases(profile):
        if not case.generic or dtype not in case.dtypes or case.layouts or case.tier != "default":
            continue
        inputs = case.inputs(dtype)
        keywords = {n: v for n, v in {**case.attributes, **inputs}.items() if n in words.keywords}
        answer = call(*map(inputs.get, words.positional), **keywords)
        outputs = {"Ω" if name == "scores" else name: array for name, array in answer.items()}
        verdicts = judge(Question(case, dtype, model), outputs)
        failing = tuple(name for name, v in verdicts.items() if v.status == "failed")
        alike = sum(bool(sample.failing) == bool(failing) for sample in found)
        if alike < (FAILING if failing else PASSING):
            found.append(Sample(case, dtype, model, outputs, failing))
    return found


@pytest.mark.parametrize("words", WRONG)
def test_a_mistake_in_masks_heads_or_scales_is_named(words: str) -> None:
    profile, text = WRONG[words]
    found = diagnose(samples(profile, function(profile, text)), 60.0)
    assert found is not None
    named = [found.best, *found.others]
    assert any(words in explanation.what for explanation in named), str(found)


def test_a_right_function_has_no_diagnosis() -> None:
    for profile in (SDPA, MULTI, LINEAR):
        kept = samples(profile, function(profile))
        assert not any(sample.failing for sample in kept)
        assert diagnose(kept) is None


def test_what_failing_cases_share_is_said() -> None:
    def beside(condition: Callable[[Mapping[str, Any]], bool]) -> Callable[..., Any]:
        right = function(SDPA)

        def call(Q: Any, K: Any, V: Any, **keywords: Any) -> Any:
            found = right(Q, K, V, **keywords)
            wrong = condition({"Q": Q, "K": K, **keywords})
            factor = found["C"].dtype.type(1.5 if wrong else 1)
            return {**found, "C": np.tanh(found["C"]) * factor if wrong else found["C"]}

        return call

    conditions: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "where a mask is given": lambda a: a.get("mask") is not None,
        "where heads share keys and values": lambda a: a["K"].shape[-3] != a["Q"].shape[-3],
        "where there are not as many keys as queries": (
            lambda a: a["K"].shape[-2] != a["Q"].shape[-2]
        ),
    }
    for words, condition in conditions.items():
        kept = samples(SDPA, beside(condition))
        failing = [sample.case for sample in kept if sample.failing]
        passing = [sample.case for sample in kept if not sample.failing]
        assert words in str(condition_of(failing, passing))
    assert "it fails only" in explain(kept, (), 30.0)


def test_a_failing_port_of_another_profile_is_told_how_to_see_it_again(tmp_path: Path) -> None:
    port = write(tmp_path, LEAK)
    report = check(port, dtypes=["float32"], profiles=[SDPA], cases=["normal/causal/*"], workers=1)
    text = str(report)
    assert "C equals the result with " in text
    assert f"again: qkvac check {port} --case {SDPA}/normal/causal/" in " ".join(text.split())
    assert "or with NumPy alone" in text
    again = check(port, dtypes=["float32"], cases=[report.failures[0].cell.case], workers=1)
    assert again.exit_status == 1
