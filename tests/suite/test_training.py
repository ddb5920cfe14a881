"""Training: every step is judged, the certified loss falls, and faulty steps are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qkvac.backends.libraries import numpy_modules
from qkvac.spec.attention import Arithmetic
from qkvac.spec.enclosures.enclosure import certify
from qkvac.spec.training import AFTER, STEP, WEIGHTS, task
from qkvac.tests.suite.laboratory import DTYPES, Array, inside
from qkvac.tests.suite.test_modules import STORED, Form, need
from qkvac.training import RATE, Training, train, trained, trainers

Arrays = dict[str, Array]
Take = Callable[..., Arrays]

WIDE = ("float64", "float32")
FEW = 8
"""Steps of a faulty variant: it is told long before."""


def model(dtype: str) -> Arithmetic:
    return Arithmetic.for_dtype(dtype, {"softmax": "shifted, divided"})


def correct() -> Take:
    """A step in NumPy."""
    adapter: Any = numpy_modules.open("parameters")
    return lambda *arrays, rate: adapter.training_step(*arrays, rate=rate)


def changed(change: Callable[[Arrays, Arrays, float], Arrays]) -> Callable[[], Take]:
    """A variant that makes something else of the weights before a step and its results."""

    def made() -> Take:
        right = correct()

        def take(X: Array, Wq: Array, Wk: Array, Wv: Array, T: Array, *, rate: float) -> Arrays:
            before = {"Wq": Wq, "Wk": Wk, "Wv": Wv}
            found = dict(right(X, Wq, Wk, Wv, T, rate=rate))
            return {**found, **change(before, found, rate)}

        return take

    return made


def stepped(factor: float) -> Callable[[Arrays, Arrays, float], Arrays]:
    """The weights after a step of `factor` times the rate."""

    def change(before: Arrays, found: Arrays, rate: float) -> Arrays:
        return {
            f"{n}1": (W - found[f"d{n}"] * (rate * factor)).astype(W.dtype)
            for n, W in before.items()
        }

    return change


def unasked(rate: float) -> Callable[[], Take]:
    """A step at a rate of its own, of which it says nothing but the weights."""

    def made() -> Take:
        right = correct()

        def take(*arrays: Array, rate: float) -> Arrays:
            found = right(*arrays, rate=own)
            return {name: found[name] for name in AFTER}

        return take

    own = rate
    return made


def remembering(factor: float, kept: str) -> Callable[[], Take]:
    """Momentum, or gradients that add up: what the last step knew goes into this one."""

    def made() -> Take:
        sums: Arrays = {}

        def change(before: Arrays, found: Arrays, rate: float) -> Arrays:
            for name in WEIGHTS:
                sums[name] = found[f"d{name}"] + factor * sums.get(name, 0)
            after = {f"{n}1": (W - sums[n] * rate).astype(W.dtype) for n, W in before.items()}
            return after if kept == "momentum" else after | {f"d{n}": sums[n] for n in WEIGHTS}

        return changed(change)()

    return made


def at_first() -> Take:
    """Each step starts from the first weights again."""
    right, first = correct(), list[Array]()

    def take(X: Array, *arrays: Array, rate: float) -> Arrays:
        *weights, T = arrays
        first.extend([] if first else weights)
        return right(X, *first, T, rate=rate)

    return take


WRONG: dict[str, Callable[[], Take]] = {
    "ascent": changed(stepped(-1)),
    "half the rate": changed(stepped(0.5)),
    "a rate off by 1e-5": changed(stepped(1 + 1e-5)),
    "a rate of its own, unsaid": unasked(float(RATE) * 1.01),
    "no step": changed(lambda before, found, rate: {f"{n}1": W for n, W in before.items()}),
    "one matrix is left out": changed(lambda before, found, rate: {"Wk1": before["Wk"]}),
    "weight decay": changed(
        lambda before, found, rate: {
            f"{n}1": (found[f"{n}1"] - rate * 1e-3 * W).astype(W.dtype) for n, W in before.items()
        }
    ),
    "all at once, after Wq": changed(lambda before, found, rate: {"Wk1": found["Wq1"]}),
    "momentum": remembering(0.9, "momentum"),
    "gradients add up": remembering(1.0, "gradients"),
    "the first weights again": at_first,
    "a mean for a sum": changed(
        lambda before, found, rate: {
            **{f"d{n}": found[f"d{n}"] / 18 for n in WEIGHTS},
            **stepped(1 / 18)(before, found, rate),
        }
    ),
    "weights in bfloat16": changed(
        lambda before, found, rate: {
            n: found[n].astype(DTYPES["bfloat16"]).astype(found[n].dtype) for n in AFTER
        }
    ),
}


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("fault", WRONG)
def test_faulty_steps_fail(fault: str, dtype: str) -> None:
    found = train(WRONG[fault](), dtype, model(dtype), FEW)
    assert found.failures


def test_what_remembers_fails_at_its_second_step() -> None:
    """A step by itself says nothing about what is carried over."""
    for fault in ("momentum", "gradients add up", "the first weights again"):
        first, second = train(WRONG[fault](), "float64", model("float64"), 2).steps
        assert not first.failures
        assert second.failures


@pytest.mark.parametrize("gone", ["absent", "nan", "flat"])
def test_training_that_leads_nowhere_ends(gone: str) -> None:
    def broken(before: Arrays, found: Arrays, rate: float) -> Arrays:
        value = {"absent": None, "nan": found["Wq1"] * np.nan, "flat": found["Wq1"].ravel()}[gone]
        return {"Wq1": value}  # type: ignore[dict-item]

    right = changed(broken)()

    def take(*arrays: Array, rate: float) -> Arrays:
        return {k: v for k, v in right(*arrays, rate=rate).items() if v is not None}

    found = train(take, "float64", model("float64"))
    assert len(found.steps) == 1
    assert found.failures


def test_the_loss_has_to_fall() -> None:
    """At a rate that is too large every step is right, and training is not."""
    found = train(correct(), "float64", model("float64"), 6, RATE * 64)
    assert not any(step.failures for step in found.steps)
    assert any("does not fall" in text for text in found.failures)


def test_the_gradient_of_the_loss_is_what_the_step_says() -> None:
    """dWq is the slope of the certified loss, by central differences."""
    inputs = {name: array.astype(float) for name, array in task("float64").items()}
    sizes = {"n": 6, "d": 5, "c": 3, "rate": 0}

    def loss(at: Arrays) -> float:
        return float(
            certify(STEP.program(), at, sizes, "float64", wanted=("loss",))["loss"].hi[0, 0]
        )

    slopes = certify(STEP.program(), inputs, sizes, "float64", wanted=("dWq",))["dWq"].hi
    step = 2.0**-13
    for place in np.ndindex(5, 3):
        moved = np.zeros((5, 3))
        moved[place] = step
        up, down = (loss({**inputs, "Wq": inputs["Wq"] + s * moved}) for s in (1, -1))
        np.testing.assert_allclose((up - down) / (2 * step), slopes[place], atol=1e-6)


# --- all forms --------------------------------------------------------------------------------


def _trained(form: Form, dtype: str) -> Training:
    name, mode = form
    return trained(f"{name}-modules", mode, dtype)


def test_every_form_is_trained() -> None:
    assert [(name.removesuffix("-modules"), mode) for name, mode in trainers()] == list(STORED)


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[] if d == "float32" else pytest.mark.long) for d in DTYPES]
)
@pytest.mark.parametrize(
    "form",
    [
        # JAX compiles each; Equinox stands for the linear layers.
        pytest.param(f, id="/".join(f), marks=pytest.mark.long if f[1] == "linear-flax" else [])
        for f in STORED
    ],
)
def test_each_step_of_each_form_is_right_and_the_loss_falls(form: Form, dtype: str) -> None:
    need(form)
    found: Any = inside(form[0], _trained, form, dtype)
    assert found.failures == ()
    assert len(found.steps) == 20
    assert found.last[1] < found.losses[0][0] / 8
    for step in found.steps:
        for name in (*AFTER, *(("dWq", "dWk", "dWv") if dtype in WIDE else ())):
            assert step.verdicts[name].status == "passed", (step.number, name)
