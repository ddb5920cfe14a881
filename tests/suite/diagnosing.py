"""Diagnosing: answers of functions as a run keeps them, and the names in what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qkvac.diagnosis.samples import Sample
from qkvac.diagnosis.search import Diagnosis
from qkvac.spec.cases.case import Case, attention_case
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.inputs import families
from qkvac.spec.registry import forward_profiles
from qkvac.spec.verdicts.verdict import judge
from qkvac.tests.suite.bench import FORM, asked, sizes_in
from qkvac.tests.suite.kill_matrix import examined

Array = np.ndarray[Any, Any]
Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]

ATTENTION = forward_profiles()["attention"].program()
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


def plain(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return compute(ATTENTION, inputs, sizes_in(ATTENTION)(inputs), inputs["X"].dtype.name)


def changed(name: str, change: Callable[[Array], Array]) -> Function:
    """Attention with a quantity changed before the equations after it are computed."""

    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = plain(inputs)
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
    "weights to the fourth power": changed("A", lambda a: a**4),
    "a constant added to C": changed("C", lambda c: c + 0.1),
    "negative scores set to 0": changed("Ω", lambda s: np.maximum(s, 0)),
    "queries rotated": changed("Q", lambda q: np.roll(q, 1, axis=-1) * 0.5 + q * 0.25),
    "keys clipped to ±1": changed("K", lambda k: np.clip(k, -1, 1)),
    "values rounded to quarters": changed("V", lambda v: np.round(v * 4) / 4),
    "weights of odd keys lost": changed("A", lambda a: a * (np.arange(a.shape[1]) % 2 == 0)),
    "scores squared": changed("Ω", lambda s: s * s),
    "a cubic of C": changed("C", lambda c: c - c**3 / 10),
    "Q off by one part in 10³": changed("Q", lambda q: q * np.float32(1.001)),
}


ORDER = "a permutation of the tokens permutes the results"
SHIFT = "a common shift of a query's scores leaves A and C as they are"
DOUBLE = "V and C double with Wv"
SUM = "V and C are additive in Wv"
