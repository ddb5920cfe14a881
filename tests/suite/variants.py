"""Correct variants on the bench: how often the suite accuses code that is right.

The variants are the correct ports of the shelf, loaded into this process, each judged by the
arithmetic model that it declares.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from qkvac.cells import Subject
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.inputs import layouts
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.subjects.roster import Entry
from qkvac.targets.arrays import by_quantity, to_numpy
from qkvac.targets.ports import known_functions
from qkvac.tests.suite.shelf import CORRECT, PORTS, Correct

OUTSIDE: Final = ("correct_flushing_declared", "correct_talkative")
"""They change the thread's floating-point environment, and print: not in the judge's process."""

MAIN: Final = "2x6x3x5x9x7x4"
LAYER: Final = "33x30x21x10x3"

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": (
        *("normal/33x20x7", "normal/6x3x2", "hot/33x20x7", "ranged-values/33x20x7"),
        *("row-shift/33x20x7", "cancelling-scores/33x20x7", "lookup/33x20x7", "ternary/16x16x16"),
    ),
    "scaled_dot_product_attention": (
        *(f"normal/plain/{MAIN}", f"normal/boolean/{MAIN}", f"normal/causal/{MAIN}"),
        *(f"row-shift/plain/{MAIN}", f"scale-large/scale/{MAIN}", f"below/causal/{MAIN}"),
        *(f"garbage/boolean/{MAIN}", f"holes/additive-causal/{MAIN}", f"lookup/plain/{MAIN}"),
        *(f"normal/additive-scale/{MAIN}", f"empty-sample/boolean/{MAIN}"),
        *("empty-row/additive/2x3x3x5x9x7x4", "penalty-row/additive/2x3x3x5x9x4x6"),
        *("but-first/boolean-causal/2x3x3x5x5x7x7", "head-id/plain/2x6x3x5x9x7x4"),
    ),
    "multi_head_attention": (
        *(f"normal/plain/{LAYER}", f"hot/causal/{LAYER}", f"lookups/plain/{LAYER}"),
        *("normal/plain/9x5x6x4x6", "ternary/plain/16x16x16x16x4"),
    ),
    "causal_attention": (
        *("normal/33x20x7", "ranked-below/33x20x7", "uniform/33x20x7", "ternary/16x16x16"),
    ),
    "attention_linear_layers": ("normal/bias/33x20x7", "normal/plain/16x16x16"),
    "embedding": ("normal/7x5x11x16", "shuffled/11x11x11x11"),
    "dot_product_attention": ("normal/33x20", "leaders/33x20"),
    "attention_gradients": (
        *("normal/33x20x7", "normal/6x3x2", "hot/33x20x7", "tiny/33x20x7", "row-shift/33x20x7"),
        *("ranged-columns/33x20x7", "cancelling-values/33x20x7", "batch-normal/3x33x20x7"),
        *("fresh/33x20x7", "balanced-few/4x6x16"),
    ),
}
"""Random cases that differ in what they strain, by profile."""


@dataclass(frozen=True)
class Tally:
    """Cells with a verdict, and those among them that failed."""

    name: str
    dtype: str
    draws: int
    cells: int
    alarms: int

    def plus(self, other: Tally) -> Tally:
        counts = (self.draws + other.draws, self.cells + other.cells, self.alarms + other.alarms)
        return Tally(self.name, self.dtype, *counts)


@dataclass(frozen=True)
class Variant:
    """A correct port of the shelf in this process."""

    port: Correct

    @property
    def module(self) -> Any:
        if str(PORTS) not in sys.path:
            sys.path.insert(0, str(PORTS))
        return importlib.import_module(self.port.name)

    @property
    def profiles(self) -> tuple[str, ...]:
        return tuple(
            name
            for name in known_functions()
            if hasattr(self.module, name) and name in known_profiles()
        )

    def arithmetic(self, dtype: str) -> Arithmetic:
        subject = Subject(self.port.name, "default", "cpu", port=str(self.port.path))
        raw = getattr(self.module, "QKVAC", {})
        return Entry(subject, raw, self.profiles, {}).arithmetic(dtype)

    def outputs(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        function = known_functions()[case.profile]
        given = [inputs.get(name) for name in function.positional]
        more = {name: inputs[name] for name in inputs.keys() - set(function.positional)}
        with np.errstate(all="ignore"):
            result = getattr(self.module, case.profile)(*given, **more, **case.attributes)
        named = by_quantity(result, function.returns, function.optional)
        return {name: to_numpy(value) for name, value in named.items()}


def correct() -> list[Variant]:
    """Correct ports that can run in this process."""
    return [Variant(port) for port in CORRECT if port.name not in OUTSIDE]


@cache
def chosen(profile: str) -> tuple[Case, ...]:
    """Random cases of a profile."""
    names = {f"{profile}/{name}" for name in FAMILIES.get(profile, ())}
    return tuple(case for case in cases(profile) if case.id in names)


def tally(variant: Variant, dtype: str, draws: Iterable[int]) -> Tally:
    """Judges a variant on draws of every chosen case that is for the dtype."""
    cells = alarms = count = 0
    for draw in draws:
        count += 1
        for case in (case for profile in variant.profiles for case in chosen(profile)):
            if dtype not in case.dtypes:
                continue
            question = _question(case, dtype, draw, variant.arithmetic(dtype))
            inputs = {n: layouts.apply(a, "C") for n, a in question.inputs.items()}
            verdicts = judge(question, variant.outputs(case, inputs)).values()
            judged = [v for v in verdicts if v.status != "not reported"]
            cells += len(judged)
            alarms += sum(v.status in ("failed", "missing") for v in judged)
    return Tally(variant.port.name.removeprefix("correct_"), dtype, count, cells, alarms)


@lru_cache(maxsize=512)
def _question(case: Case, dtype: str, draw: int, arithmetic: Arithmetic) -> Question:
    return Question(case, dtype, arithmetic, draw)


def measure(seeds: int) -> list[Tally]:
    """All variants in all their dtypes, over `seeds` fresh draws."""
    runs = [(variant, dtype) for variant in correct() for dtype in variant.port.dtypes]
    runs.sort(key=lambda run: run[1])
    totals = [Tally(v.port.name.removeprefix("correct_"), dtype, 0, 0, 0) for v, dtype in runs]
    # Draw by draw, since questions are kept for a while only.
    for draw in range(1, seeds + 1):
        for place, (variant, dtype) in enumerate(runs):
            totals[place] = totals[place].plus(tally(variant, dtype, [draw]))
    return totals if seeds else []
