"""A step of plain gradient descent, as equations: what training has to do to the weights.

The loss ½ Σ (C − T)² has the cotangent dC = C − T; from there the equations are those of the
gradients, and W − rate · dW is the weight after the step. All of it lies in the grammar, so that
certified values and rounding bounds come from the same interpretations as everywhere.

A step is judged from the weights that an implementation itself had before it. So nothing adds up
from step to step, and the last one is judged as sharply as the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qkvac.spec.attention import ATTENTION, Arithmetic
from qkvac.spec.cases.case import Case
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.inputs.draws import normal, stored
from qkvac.spec.profile import Parameter, Profile
from qkvac.spec.registry import forward_profiles
from qkvac.spec.verdicts.verdict import Question, Verdict, judge

Array = NDArray[Any]
Arrays = Mapping[str, Array]

WEIGHTS: Final = ("Wq", "Wk", "Wv")
AFTER: Final = tuple(f"{name}1" for name in WEIGHTS)
"""The weights after a step."""


def _text() -> str:
    """The equations of attention, of the loss, of its gradients, and of the step."""
    forward = forward_profiles()["attention"]
    equations = forward.gradients.program().equations
    derived = equations[len(forward.program().equations) :]
    return "\n".join(
        [
            ATTENTION.strip(),
            "T[n, c]",
            "rate",
            "dC[n, c] = C - T",
            "loss[1, 1] = sum(sum(dC * dC, axis=1), axis=0) / 2",
            *(equation.text for equation in derived),
            *(f"{name}1[d, c] = {name} - d{name} * rate" for name in WEIGHTS),
        ]
    )


STEP: Final = Profile(
    "training_step",
    "a step of gradient descent towards given context vectors",
    _text(),
    takes=("X", *WEIGHTS, "T"),
    returns=AFTER,
    reports="loss, dWq, dWk, dWv",
    keywords={"rate": Parameter("rate")},
    shared=WEIGHTS,
)


@dataclass(frozen=True)
class Step(Case):
    """A step from given weights; the inputs are those of `recipe`, whatever the seed."""

    rate: Fraction = field(default=Fraction(0), compare=False)

    @property
    def declared(self) -> Profile:
        return STEP

    @property
    def results(self) -> tuple[str, ...]:
        return AFTER

    @property
    def bindings(self) -> Mapping[str, int | Scalar]:
        return {**self.sizes, "rate": Scalar.of(self.rate)}


@dataclass(frozen=True)
class StepQuestion(Question):
    """A step, put to an implementation."""

    @cached_property
    def profile(self) -> Profile:
        return STEP

    @property
    def loss(self) -> tuple[float, float]:
        """The loss before the step lies between these: certified."""
        found = self.certified["loss"]
        return float((found.hi - found.radius).item()), float((found.hi + found.radius).item())


def question(inputs: Arrays, rate: Fraction, dtype: str, arithmetic: Arithmetic) -> StepQuestion:
    """A step from X [n, d], Wq, Wk, Wv [d, c] towards T [n, c], all of the dtype."""
    (n, d), c = inputs["X"].shape, inputs["T"].shape[1]
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    step = Step(
        *("training_step", STEP.name, "given", {"n": n, "d": d, "c": c}),
        *("a step of training", lambda _: wide, "", (dtype,)),
        rate=rate,
    )
    return StepQuestion(step, dtype, arithmetic)


def verdicts(asked: StepQuestion, outputs: Arrays) -> dict[str, Verdict]:
    """A verdict for the loss, the gradients and the weights after the step."""
    return judge(asked, outputs)


def task(dtype: str, n: int = 6, d: int = 5, c: int = 3) -> dict[str, Array]:
    """What to learn: X [n, d], T [n, c] as other weights make it of X, and weights to start from.

    The same bits on every machine. T can be reached, so that the loss can go to 0.
    """
    X = normal("training/X", (n, d), dtype)
    learnt = {name: normal(f"training/{name}/learnt", (d, c), dtype, -1) for name in WEIGHTS}
    start = {name: normal(f"training/{name}", (d, c), dtype, -1) for name in WEIGHTS}
    program = forward_profiles()["attention"].program()
    C = compute(program, {"X": X, **learnt}, {"n": n, "d": d, "c": c}, "float64")["C"]
    # Few bits, so that no platform's exponential can round them another way.
    given = {"X": X, **start, "T": np.round(C * 64) / 64}
    return {name: stored(values, dtype) for name, values in given.items()}
