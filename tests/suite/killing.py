"""Killing: which checks catch which faults, over the cases of the default tier.

A fault is demonstrated in one profile, its home: what catches it there is counted over all cases.
In every other profile that has a place for it, cases are tried until one catches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Final

from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.kills import EQUIVALENT
from qkvac.spec.registry import gradient_profiles, known_profiles
from qkvac.tests.suite.bench import Finding, fault_bench

PROFILE: Final = "attention"
FORWARD: Final = (
    *(PROFILE, "scaled_dot_product_attention", "multi_head_attention"),
    *("attention_linear_layers", "embedding", "causal_attention", "dot_product_attention"),
)
BACKWARD: Final = tuple(f"{name}_gradients" for name in FORWARD)
HOMES: Final = (*FORWARD, *BACKWARD)
"""The first of these that has a place for a fault is its home."""

FIRST: Final = (
    *("normal/33x20x7", "ternary/16x16x16", "lookup/33x20x7", "hot/33x20x7", "shift+1000/33x20x7"),
    *("copies/16x16x16", "layout-F/33x20x7", "layout-strided/33x20x7", "normal/1x20x7"),
    *("empty/0x20x7", "normal/causal/2x6x3x5x9x7x4", "normal/causal/2x6x3x9x5x7x4"),
    *("normal/boolean/2x6x3x5x9x7x4", "holes/additive-causal/2x6x3x5x9x7x4"),
    *("mask-Bx1x1xS/additive-causal-scale/2x6x3x5x9x7x4", "empty-row/boolean/2x3x3x5x5x7x7"),
    *("but-first/boolean-causal/2x3x3x5x5x7x7", "normal/additive-scale/2x6x3x5x9x7x4"),
    *("normal/plain/2x6x3x5x9x7x4", "normal/plain/2x6x2x5x7x4x3"),
    *("mask-1xhxLxS/boolean/2x3x3x5x9x7x4", "mask-Bx1xLxS/additive/2x3x3x5x9x7x4"),
)
"""Cases that catch most faults, in the order in which they are looked at."""

AXES: Final = 140
"""Longer cases are left out here: they are slow, and what they catch shorter ones catch, too."""

Row = Mapping[Finding, int]
Table = Mapping[str, Mapping[str, Row]]
"""Profile → fault → finding → number of cases; where it is not at home, of the first case."""


@cache
def examined(profile: str = PROFILE) -> tuple[Case, ...]:
    """The cases of the matrix, those first that catch most faults."""
    longest = 1 << 12 if profile.startswith("embedding") else AXES
    chosen = [c for c in cases(profile) if c.tier == "default" and max(c.sizes.values()) <= longest]
    rank = {f"{profile}/{name}": place for place, name in enumerate(FIRST)}
    return tuple(sorted(chosen, key=lambda case: rank.get(case.id, len(rank))))


@cache
def has_place(name: str, profile: str) -> bool:
    """Whether some text of a profile can be computed with a fault."""
    texts = known_profiles()[profile].texts
    fault = FAULTS[name]
    # What a wrong formula makes of gradients is its adjoint, and not a fault of its own.
    suited = fault.of_gradients == (profile in gradient_profiles())
    return suited and any(fault.fit(profile, text) != "never" for text in texts)


@cache
def home(name: str) -> str:
    """The profile in which a fault is demonstrated."""
    return next(profile for profile in HOMES if has_place(name, profile))


def demonstrable(profile: str = PROFILE) -> list[Fault]:
    """The faults that are demonstrated in a profile."""
    return [fault for fault in FAULTS.values() if home(fault.name) == profile]


def visiting(profile: str) -> list[Fault]:
    """The faults that have a place in a profile, and their home elsewhere."""
    return [
        fault
        for fault in FAULTS.values()
        if home(fault.name) != profile and has_place(fault.name, profile)
    ]


def equivalent(fault: Fault, profile: str) -> str:
    """Why a fault changes nothing that a case of this profile could show; "" where it does."""
    return EQUIVALENT.get(profile, {}).get(fault.name, "")


def kills(fault: Fault, profile: str = PROFILE, *, first: bool = False) -> Counter[Finding]:
    """Findings, and on how many cases, in the dtype that the fault is demonstrated in.

    With `first`, those of the first case that catches it.
    """
    bench = fault_bench(fault, profile=profile)
    found = Counter[Finding]()
    for case in examined(profile):
        if fault.dtype in case.dtypes and fault.concerns(case):
            found.update(bench.findings(case))
            if first and found:
                break
    return found


def _measured(job: tuple[str, str]) -> Counter[Finding]:
    name, profile = job
    return kills(FAULTS[name], profile, first=home(name) != profile)


def measure(workers: int = 1) -> Table:
    """The matrix over all profiles."""
    jobs = [
        (fault.name, profile)
        for profile in HOMES
        for fault in (*demonstrable(profile), *visiting(profile))
    ]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        rows = pool.map(_measured, jobs, chunksize=24)
        table = dict[str, dict[str, Row]]()
        for (name, profile), row in zip(jobs, rows, strict=True):
            table.setdefault(profile, {})[name] = row
    return table
