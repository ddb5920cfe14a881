"""Faults × conditions: `python -m qkvac.tests.suite.product` measures how many are caught.

A mutant is a fault of the catalogue that is there only under a condition: where a length is a
multiple of 32, with more than eight heads, in batches of one. It is caught by a case in which the
condition holds and the fault shows, so that the product follows from two tables, fault × case and
condition × case. A mutant counts if some admissible input shows it at all: a case, or one of the
further rows that are drawn for its condition. The document is `docs/conditions.md`.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.case import WIDE, Case
from qkvac.spec.cases.catalogue import crossed_cases
from qkvac.spec.cases.covering import Row, drawn
from qkvac.spec.cases.crossed import Crossing
from qkvac.spec.cases.dimensions import Dimensions
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.profile import PLAIN
from qkvac.spec.registry import forward_profiles
from qkvac.spec.verdicts.verdict import Question
from qkvac.tests.suite.killing import FORWARD, examined, has_place

Holds = Callable[[Case, str], bool]

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "conditions.md"
FURTHER: Final = 6
"""Rows that are drawn for each condition, besides the cases."""
TILES: Final = (8, 16, 32, 64)
BEYOND: Final = (8, 32, 64, 128)


# --- conditions ------------------------------------------------------------------------------


def conditions(profile: str) -> dict[str, Holds]:
    """Conditions that the dimensions of a profile can make, by what they say."""
    dimensions = Dimensions(forward_profiles()[profile])
    found = dict[str, Holds]()
    for axis in (*dimensions.anatomy.lengths, *dimensions.widths):
        found |= {f"{axis} is 1": partial(_is, axis, 1)}
        found |= {f"{axis} is a multiple of {t}": partial(_multiple, axis, t) for t in TILES}
        found |= {f"{axis} is no multiple of 8": partial(_no_multiple, axis, 8)}
        found |= {f"{axis} > {beyond}": partial(_beyond, axis, beyond) for beyond in BEYOND}
    for axis in dimensions.counts:
        found |= {f"{axis} is 1": partial(_is, axis, 1), f"{axis} > 1": partial(_beyond, axis, 1)}
        found |= {f"{axis} > 8": partial(_beyond, axis, 8)}
    for kind in (dimensions.anatomy.lengths, dimensions.widths, dimensions.counts):
        for one, other in combinations(kind, 2):
            found |= {f"{one} = {other}": partial(_compared, one, other, 0)}
            found |= {f"{one} < {other}": partial(_compared, one, other, -1)}
            found |= {f"{one} > {other}": partial(_compared, one, other, 1)}
    if "leading" in dimensions.space.dimensions:
        found |= {
            "no leading axis": lambda case, dtype: not case.batch,
            "a batch of one": lambda case, dtype: case.batch == (1,),
            "a batch of several": lambda case, dtype: len(case.batch) == 1 and case.batch[0] > 1,
            "several leading axes": lambda case, dtype: len(case.batch) > 1,
        }
    for text in forward_profiles()[profile].texts:
        if text != PLAIN and "-" not in text:
            found |= {f"{text}": partial(_flag, text), f"no {text}": partial(_no_flag, text)}
    for layout in dimensions.layouts[1:]:
        if ":" not in layout:
            found |= {f"an input lies {layout}": partial(_laid, layout)}
    found |= {f"in {dtype}": partial(_in, dtype) for dtype in WIDE}
    return found


def _is(axis: str, size: int, case: Case, dtype: str) -> bool:
    return case.sizes.get(axis) == size


def _multiple(axis: str, of: int, case: Case, dtype: str) -> bool:
    return case.sizes.get(axis, 1) % of == 0 < case.sizes.get(axis, 0)


def _no_multiple(axis: str, of: int, case: Case, dtype: str) -> bool:
    return case.sizes.get(axis, 0) % of > 0


def _beyond(axis: str, size: int, case: Case, dtype: str) -> bool:
    return case.sizes.get(axis, 0) > size


def _compared(one: str, other: str, sign: int, case: Case, dtype: str) -> bool:
    return bool(np.sign(case.sizes.get(one, 0) - case.sizes.get(other, 0)) == sign)


def _flag(word: str, case: Case, dtype: str) -> bool:
    return word in case.variant.split("-")


def _no_flag(word: str, case: Case, dtype: str) -> bool:
    return not _flag(word, case, dtype)


def _laid(layout: str, case: Case, dtype: str) -> bool:
    return layout in case.layouts.values()


def _in(name: str, case: Case, dtype: str) -> bool:
    return dtype == name


# --- what is caught --------------------------------------------------------------------------


def tried(profile: str) -> list[Fault]:
    """The faults that are wrong equations of a profile."""
    return [
        fault
        for fault in FAULTS.values()
        if fault.structural
        and fault.wrap is None
        and not fault.of_gradients
        and has_place(fault.name, profile)
    ]


def dtype_of(case: Case) -> str:
    """The first dtype of a case in which machines compute as they are declared.

    "" where there is none, or where there is nothing to compute.
    """
    if 0 in (*case.sizes.values(), *case.batch):
        return ""
    return next((dtype for dtype in case.dtypes if dtype in WIDE), "")


def caught(case: Case, faults: Sequence[Fault]) -> frozenset[str]:
    """The faults whose result is beyond the bound around the true value somewhere."""
    dtype, last = dtype_of(case), case.declared.last
    question = Question(case, dtype, Arithmetic.for_dtype(dtype))
    true, bound = question.certified[last], question.bounds[last]
    found = set[str]()
    for fault in faults:
        if not fault.concerns(case):
            continue
        try:
            with np.errstate(all="ignore"):
                value = np.asarray(fault.answering(case)(question.inputs)[last], np.float64)
                if value.shape != bound.shape or _is_beyond(true.least_error(value), value, bound):
                    found.add(fault.name)
        except (IndexError, ValueError, ZeroDivisionError):
            # It takes or divides by what is not there: as a port, it would be an error.
            continue
    return frozenset(found)


def _is_beyond(error: Any, value: Any, bound: Any) -> bool:
    lost = ~np.isfinite(value) & np.isfinite(bound)
    return bool(np.any(error > bound) or np.any(lost))


# --- the product -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """What is caught of the mutants of a profile."""

    profile: str
    mutants: int
    named: int
    """Those that the named cases of the default tier catch."""
    all: int
    """Those that these and the crossed ones catch."""
    alive: Counter[str]
    """By condition, those that none of them catches."""


def further(profile: str, conditions: Mapping[str, Holds], seed: int = 1) -> Iterator[Case]:
    """Rows that no array has, some for each condition."""
    dimensions = Dimensions(forward_profiles()[profile])
    crossing, chance = Crossing(dimensions), random.Random(seed)
    pool = list[Case]()
    for _ in range(40 * FURTHER):
        row: Row | None = drawn(dimensions.space, {}, chance)
        case = crossing.case(row) if row is not None else None
        if case is not None and dtype_of(case) and min(case.sizes.values()) > 0 and all(case.batch):
            pool.append(replace(case, id=f"{case.id}/further", seed=f"{case.seed}/further"))
    wanted = set[str]()
    for holds in conditions.values():
        own = [case for case in pool if holds(case, dtype_of(case))]
        wanted |= {case.id for case in own[:FURTHER]}
    yield from (case for case in pool if case.id in wanted)


def product(profile: str) -> Product:
    """The product of a profile."""
    every = conditions(profile)
    faults = tried(profile)
    groups = {
        "named": [c for c in examined(profile) if dtype_of(c)],
        "crossed": [c for c in crossed_cases(profile) if dtype_of(c)],
        "further": list(further(profile, every)),
    }
    shown = {name: [(case, caught(case, faults)) for case in own] for name, own in groups.items()}

    def pairs(group: str) -> set[tuple[str, str]]:
        return {
            (name, words)
            for case, found in shown[group]
            for words, holds in every.items()
            if holds(case, dtype_of(case))
            for name in found
        }

    named, crossed, more = pairs("named"), pairs("crossed"), pairs("further")
    total = named | crossed | more
    alive = Counter(words for _, words in total - named - crossed)
    return Product(profile, len(total), len(named), len(named | crossed), alive)


def document(products: Sequence[Product]) -> str:
    """The tables as Markdown."""
    mutants = sum(p.mutants for p in products)
    share = sum(p.all for p in products) / mutants
    before = sum(p.named for p in products) / mutants
    lines = [
        "# Faults under conditions",
        "",
        "Every wrong equation of the catalogue × every condition that the dimensions of a profile",
        "make: a port that is wrong only there. What some admissible input shows counts. Judged by",
        "the bound around the result alone. Made by `python -m qkvac.tests.suite.product`.",
        "",
        f"**{share:.1%} of {mutants:,} are caught by `qkvac check`; by the named cases alone "
        f"{before:.1%}.**",
        "",
        "| profile | mutants | named cases | and crossed ones |",
        "|---|---:|---:|---:|",
        *(
            f"| {p.profile} | {p.mutants:,} | {p.named / p.mutants:.1%} | {p.all / p.mutants:.1%} |"
            for p in products
        ),
        "",
        "Alive, by condition:",
        "",
        *(
            f"* {p.profile}: "
            + (", ".join(f"{words} ({n})" for words, n in p.alive.most_common(12)) or "none")
            for p in products
        ),
    ]
    return "\n".join(lines) + "\n"


def main(profiles: Sequence[str]) -> None:
    """Measures the products of profiles, by default of the suite's own, and writes them down."""
    found = []
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for p in pool.map(product, profiles or FORWARD):
            found.append(p)
            shares = f"{p.named / p.mutants:.1%} {p.all / p.mutants:.1%}"
            print(p.profile, p.mutants, shares, flush=True)
    text = document(found)
    if not profiles:
        DOCUMENT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
