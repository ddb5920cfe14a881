"""Faint gradients: on tiny and on fresh weights the usual tolerances pass what is wrong.

Gradients are as small as the weights and the loss make them. A tolerance with an absolute part,
such as the default of `torch.testing.assert_close`, says nothing once they are smaller than that;
a bound that is derived from the data is as sharp there as anywhere.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from qkvac.spec.cases.case import Case
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.verdicts.verdict import judge
from qkvac.tests.suite.bench import FORM, asked, fault_bench

README: Final = Path(__file__).parents[2] / "README.md"
PROFILE: Final = "attention_gradients"
RELATIVE, ABSOLUTE = 1.3e-6, 1e-5
"""The default tolerances of torch for float32."""

FAINT: Final = ("fresh-mean/33x20x7", "tiny/33x20x7")

CONCERNED: Final = [
    fault
    for fault in FAULTS.values()
    if fault.of_gradients and fault.rules and fault.dtype == "float32"
    if fault.fit(PROFILE) == "always"
]

FAMOUS: Final = (
    *("rank-one-term-missing", "rank-one-term-over-queries", "jacobian-diagonal"),
    *("backward-scale-1/√d", "query-path-missing", "key-path-missing", "only-value-path"),
    *("scores-gradient-bfloat16", "softmax-gradient-bfloat16", "row-sums-of-rounded-context"),
)
"""Missed by the usual tolerances on both cases."""

BATCHES: Final = "there is one sample"
FLAT: Final = "hardly any weight differs from 1/33"
UNSEEN: Final = {
    "fresh-mean/33x20x7": {
        **dict.fromkeys(("averaged-over-batch", "of-first-sample", "of-last-sample"), BATCHES),
        "backward-weights-clipped": FLAT,
    },
    "tiny/33x20x7": {
        **dict.fromkeys(("averaged-over-batch", "of-first-sample", "of-last-sample"), BATCHES),
        **dict.fromkeys(
            (
                *("backward-weights-clipped", "mean-not-weighted", "recomputed-without-scale"),
                "weights-gradient-float16",
            ),
            FLAT,
        ),
    },
}
"""What these cases cannot show, and why."""


@cache
def case(name: str) -> Case:
    return next(c for c in cases(PROFILE) if c.id == f"{PROFILE}/{name}")


@cache
def seen(fault: Fault, name: str) -> tuple[bool, bool]:
    """Whether the suite fails the fault's gradients on a case, and whether the tolerances do."""
    question = asked(case(name), "float32", 0, FORM)
    function = fault_bench(fault, profile=PROFILE).answering
    assert function is not None
    with np.errstate(all="ignore"):
        outputs = function(question.case)(question.inputs)
    failed = any(verdict.status == "failed" for verdict in judge(question, outputs).values())
    close = all(
        np.allclose(array, question.certified[quantity].hi, RELATIVE, ABSOLUTE)
        for quantity, array in outputs.items()
    )
    return failed, not close


@pytest.mark.parametrize("name", FAINT)
def test_wrong_gradients_fail_where_they_are_faint(name: str) -> None:
    unseen = {fault.name for fault in CONCERNED if not seen(fault, name)[0]}
    assert unseen == UNSEEN[name].keys()


@pytest.mark.parametrize("fault", FAMOUS)
def test_the_usual_tolerances_pass_them(fault: str) -> None:
    for name in FAINT:
        assert seen(FAULTS[fault], name) == (True, False), name


@pytest.mark.skipif(not README.exists(), reason="needs a checkout, not an installed package")
def test_most_that_fail_on_fresh_weights_pass_the_usual_tolerances() -> None:
    name = FAINT[0]
    missed = [fault for fault in CONCERNED if seen(fault, name) == (True, False)]
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"{len(missed)} catalogued wrong gradients pass the default tolerances" in text


def test_the_tolerances_see_the_same_faults_on_plain_data() -> None:
    """They are no straw man: it is the scale of the gradients that makes them blind."""
    name = "normal/33x20x7"
    assert all(seen(FAULTS[fault], name) == (True, True) for fault in FAMOUS)
