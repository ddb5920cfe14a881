"""Training: many steps of gradient descent by a backend, each of them judged.

Every step starts from the weights that the backend itself returned, and is judged by what it had
to make of those: errors of earlier steps are nobody's fault any more. Beside that the certified
loss has to fall from step to step, since gradients of the right size in the wrong direction would
pass for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np

from qkvac.cells import Status
from qkvac.spec.attention import Arithmetic
from qkvac.spec.training import AFTER, WEIGHTS, StepQuestion, question, task, verdicts
from qkvac.spec.verdicts.verdict import Verdict
from qkvac.targets.declaration import parse
from qkvac.targets.packages import adapter

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Take = Callable[..., Arrays]
"""take(X, Wq, Wk, Wv, T, rate=…): Wq1, Wk1, Wv1, and the loss and its gradients if it has them."""

STEPS: Final = 20
RATE: Final = Fraction(1, 8)


@dataclass(frozen=True)
class Taken:
    """A step that a backend took."""

    number: int
    """From 1."""
    loss: tuple[float, float]
    """The loss that it started from lies between these: certified."""
    verdicts: Mapping[str, Verdict] = field(hash=False)
    after: Arrays = field(hash=False)
    """The weights that it led to."""

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong with it, one line each."""
        return tuple(
            f"step {self.number}: {name} {verdict.status}, {verdict.reason}"
            for name, verdict in self.verdicts.items()
            if verdict.status in Status.BAD
        )

    @property
    def undecided(self) -> tuple[str, ...]:
        """What its bounds are too wide to tell: gradients of 16 bits, mostly."""
        return tuple(n for n, v in self.verdicts.items() if v.status == Status.INDECISIVE)

    @property
    def ratio(self) -> float:
        """The largest error over its bound."""
        return max(verdict.ratio for verdict in self.verdicts.values())


@dataclass(frozen=True)
class Training:
    """The steps of a backend, and the loss that they ended with."""

    steps: tuple[Taken, ...]
    last: tuple[float, float]
    """The certified loss of the weights at the end."""

    @property
    def losses(self) -> tuple[tuple[float, float], ...]:
        """Before each step, and after the last one."""
        return (*(step.loss for step in self.steps), self.last)

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong: steps that fail, and steps at which the loss does not fall."""
        rising = (
            f"step {number}: the loss does not fall: {before[0]:.6g}, then {after[1]:.6g}"
            for number, (before, after) in enumerate(
                zip(self.losses, self.losses[1:], strict=False), start=1
            )
            if not after[1] < before[0]
        )
        return (*(text for step in self.steps for text in step.failures), *rising)


def train(
    take: Take,
    dtype: str,
    arithmetic: Arithmetic,
    steps: int = STEPS,
    rate: Fraction = RATE,
) -> Training:
    """Lets `take` take steps on the task of `qkvac.spec.training`, and judges them.

    Ends early where there is nothing to go on from.
    """
    inputs = dict(task(dtype))
    taken = list[Taken]()
    asked = question(inputs, rate, dtype, arithmetic)
    for number in range(1, steps + 1):
        found = take(*(inputs[name] for name in ("X", *WEIGHTS, "T")), rate=float(rate))
        outputs = {name: _shaped(name, array) for name, array in found.items()}
        judged = verdicts(asked, outputs)
        after = {name: outputs[name] for name in AFTER if name in outputs}
        taken.append(Taken(number, asked.loss, judged, after))
        if not _goes_on(asked, after):
            return Training(tuple(taken), (np.inf, np.inf))
        inputs |= {name: after[f"{name}1"] for name in WEIGHTS}
        asked = question(inputs, rate, dtype, arithmetic)
    return Training(tuple(taken), asked.loss)


def _shaped(name: str, array: Array) -> Array:
    """The loss may be a number without axes."""
    return array.reshape(1, 1) if name == "loss" and array.size == 1 else array


def _goes_on(asked: StepQuestion, after: Arrays) -> bool:
    """Whether there are weights for another step."""
    return len(after) == len(AFTER) and all(
        array.shape == asked.contract[name]
        and array.dtype.name == asked.dtype
        and bool(np.all(np.isfinite(array.astype(np.float64))))
        for name, array in after.items()
    )


def arithmetic(backend: str, mode: str, dtype: str) -> Arithmetic:
    """The arithmetic that a backend of ours declares on the CPU."""
    declared = parse(adapter(backend).QKVAC, source=backend)
    return Arithmetic.for_dtype(dtype, declared.arithmetic(dtype, mode, "cpu"))


def trained(backend: str, mode: str, dtype: str, steps: int = STEPS) -> Training:
    """The training of a backend of ours, in this process: its framework is imported.

    Raises UnavailableError where the mode cannot run here.
    """
    opened = adapter(backend).open(mode, "cpu")
    return train(opened.training_step, dtype, arithmetic(backend, mode, dtype), steps)


def trainers() -> Iterator[tuple[str, str]]:
    """Backends whose modules can be trained, with their modes."""
    for backend in ("numpy-modules", "torch-modules", "jax-modules", "tensorflow-modules"):
        for mode in adapter(backend).QKVAC["modes"]:
            yield backend, mode
