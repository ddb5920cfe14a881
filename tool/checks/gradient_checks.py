"""The checks of gradients beside their values: what is wanted must not change what is given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from qkvac.cells import Status
from qkvac.checks.findings import PASSED, Finding, UnansweredError, Visit, failed, listed
from qkvac.checks.metamorphic import alike, bounds_of
from qkvac.spec.cases.case import Case


def wanted(case: Case) -> Iterator[tuple[str, ...]]:
    """Every choice of inputs that leaves some without a gradient, and one of all for none."""
    names = [name.removeprefix("d") for name in case.results]
    for count in range(1, len(names)):
        yield from combinations(names, count)


def subsets(visit: Visit) -> Finding:
    """Where fewer gradients are wanted, those are the same as before, and there are no others."""
    bounds = bounds_of(visit, visit.inputs)
    different: Finding | None = None
    for names in wanted(visit.case):
        outcome = visit.subset(names)
        if outcome.status != "ok":
            raise UnansweredError(outcome)
        results = {f"d{name}" for name in names}
        what = f"the gradients of {listed(names)} alone wanted"
        extra = outcome.outputs.keys() & set(visit.case.results) - results
        if extra:
            return failed(f"with {what}, {listed(sorted(extra))} comes as well")
        first = {name: visit.outputs[name] for name in visit.outputs if name in results}
        finding = alike(visit, outcome.outputs, bounds, what, first, bounds)
        if finding.status != Status.PASSED:
            return finding
        if finding.different:
            different = different or finding
    return different or PASSED
