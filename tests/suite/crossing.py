"""The rows of `spec/cases/crossed.json`: `python -m qkvac.tests.suite.crossing` makes them anew.

A row is kept if right results pass in it, and if it proves something: the profile's result is
decided by it, or every gradient that is not 0 whatever the data are.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.covering import Array, Row, Space, Wanted, covering
from qkvac.spec.cases.crossed import STORE, Crossing, places_of, to_json, triples
from qkvac.spec.cases.dimensions import Dimensions
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.profile import Profile
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts import statuses
from qkvac.spec.verdicts.verdict import Question, judge


def found_statuses(case: Case, dtype: str) -> dict[str, str]:
    """What becomes of right results, by quantity."""
    inputs = case.inputs(dtype)
    outputs = compute(case.program, inputs, case.bindings, dtype)
    question = Question(case, dtype, Arithmetic.for_dtype(dtype))
    # The evaluator gives every mask all its axes, and its gradient, too.
    shapes = question.contract
    given = {name: outputs[name].reshape(shapes[name]) for name in case.quantities}
    found = judge(question, given)
    return {name: found[name].status for name in case.quantities}


def trouble(case: Case) -> str:
    """Why a case proves nothing in its first dtype; raises AssertionError for a false alarm."""
    found = found_statuses(case, case.dtypes[0])
    wrong = {
        name
        for name, status in found.items()
        if status not in (statuses.PASSED.name, statuses.INDECISIVE.name)
    }
    assert not wrong, (case.id, found)
    open_ = [name for name in case.results if found[name] != statuses.PASSED.name]
    if not open_ or (len(open_) < len(case.results) and min(case.sizes.values()) <= 1):
        return ""
    return f"the bound of {open_[0]} says nothing"


def pruned(space: Space, rows: Sequence[Row], wanted: Sequence[Wanted]) -> list[Row]:
    """The rows without those all of whose pairs, and what was wanted besides, others have."""
    pairs = Counter(pair for row in rows for pair in space.of(row))
    holders = [{i for i, row in enumerate(rows) if _has(row, parts)} for parts in wanted]
    kept = dict(enumerate(rows))
    for i, row in enumerate(rows):
        alone = any(pairs[pair] == 1 for pair in space.of(row)) or {i} in holders
        if not alone:
            pairs.subtract(space.of(row))
            holders = [held - {i} for held in holders]
            del kept[i]
    return list(kept.values())


def _has(row: Row, parts: Wanted) -> bool:
    return any(part.items() <= row.items() for part in parts)


def lightened(space: Space, rows: Sequence[Row], holds: Callable[[Row], str]) -> list[Row]:
    """The rows in float32 wherever other rows have all their pairs with float64, too.

    Certifying float64 takes several times as long.
    """
    pairs = Counter(pair for row in rows for pair in space.of(row))
    found = list[Row]()
    for row in rows:
        light = {**row, "dtype": "float32"}
        own = [pair for pair in space.of(row) if ("dtype", row["dtype"]) in pair]
        heavy = row["dtype"] == "float64" and all(pairs[pair] > 1 for pair in own)
        if heavy and not space.excludes(light) and not holds(light):
            pairs.subtract(own)
            pairs.update(pair for pair in space.of(light) if ("dtype", "float32") in pair)
            row = light
        found.append(row)
    return found


def made(profile: Profile) -> tuple[Dimensions, Array, Callable[[Row], Case]]:
    """The array of a profile, and what makes the case of a row."""
    dimensions = Dimensions(profile.of or profile, profile.of is not None)
    crossing = Crossing(dimensions)
    known = dict[str, Case]()

    def holds(row: Row) -> str:
        case = crossing.case(row)
        if case is None:
            return "no inputs have both"
        if case.id in known:
            return "the same inputs in another dtype"
        reason = trouble(case)
        if not reason:
            known[case.id] = case
        return reason

    def case_of(row: Row) -> Case:
        found = crossing.case(row, ())
        assert found is not None
        return known[found.id]

    wanted = tuple(dict(triples(dimensions)).values())
    array = covering(dimensions.space, holds, wanted)
    return dimensions, replace(array, rows=shortened(dimensions, array.rows, case_of)), case_of


def shortened(
    dimensions: Dimensions, rows: Sequence[Row], case_of: Callable[[Row], Case]
) -> tuple[Row, ...]:
    """The rows that are needed, in the dtype that takes least."""

    def holds(row: Row) -> str:
        case = case_of(row)
        rest = tuple(dtype for dtype in case.dtypes if dtype != row["dtype"])
        return trouble(replace(case, dtypes=(row["dtype"], *rest)))

    few = pruned(dimensions.space, rows, tuple(dict(triples(dimensions)).values()))
    return tuple(lightened(dimensions.space, few, holds))


def main(names: list[str]) -> None:
    """Writes the rows of profiles, by default of all."""
    store = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for name in names or known_profiles():
        dimensions, array, case_of = made(known_profiles()[name])
        store[name] = {
            "dimensions": to_json(dimensions.space.dimensions),
            "rows": [[places_of(dimensions, row), [*case_of(row).exact]] for row in array.rows],
            "missing": [
                [*map(list, pair), reason]
                for pair, reason in array.missing.items()
                if not dimensions.space.excludes(dict(pair))
            ],
        }
        print(name, len(array.rows), Counter(array.missing.values()).most_common(8), flush=True)
        lines = (f"{json.dumps(n)}: {json.dumps(store[n], ensure_ascii=False)}" for n in store)
        STORE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
