"""From an answer and its verdicts to one result per cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkvac.cells import Cell, Result, Status
from qkvac.checks.findings import Finding
from qkvac.engine.judging import Judged
from qkvac.execution.plan import Job
from qkvac.execution.runner import Answer
from qkvac.isolation.process import Outcome
from qkvac.spec.formats import FORMATS
from qkvac.spec.verdicts import statuses


def compose(job: Job, answer: Answer, judged: Judged | None) -> tuple[Result, ...]:
    """The results of a job's cells, in their order; `judged` is None where nothing came back."""
    if judged is None:
        return tuple(_unanswered(job, cell, answer) for cell in job.cells)
    diagnosis = _first_wrong(job, judged.verdicts)
    return tuple(
        checked(cell, answer.findings[cell.quantity], answer.outcome)
        if cell.quantity in answer.findings
        else _judged(job, cell, answer.outcome, judged, diagnosis)
        for cell in job.cells
    )


def _unanswered(job: Job, cell: Cell, answer: Answer) -> Result:
    outcome = answer.outcome
    return Result(
        cell,
        outcome.status,
        reason=outcome.reason or None,
        detail=outcome.traceback or outcome.output or None,
        last=job.offered and _is_last(job, cell),
    )


def checked(cell: Cell, finding: Finding, outcome: Outcome) -> Result:
    """The result of a check."""
    return Result(
        cell,
        finding.status,
        clause=finding.clause,
        reason=finding.reason,
        seconds=outcome.seconds,
        decisive=statuses.named(finding.status).passes,
    )


def _judged(
    job: Job, cell: Cell, outcome: Outcome, judged: Judged, diagnosis: str | None
) -> Result:
    if judged.error:
        return Result(cell, Status.ERROR, reason=judged.error, last=_is_last(job, cell))
    verdict = judged.verdicts[cell.quantity]
    status = verdict["status"]
    failed = status == Status.FAILED
    return Result(
        cell,
        status,
        grade=verdict["grade"],
        clause=verdict["clause"],
        ratio=_number(verdict["ratio"]),
        resolution=_number(verdict["resolution"]),
        ulp=_number(verdict["ulp"]),
        z=_number(verdict["z"]),
        rms=_number(verdict["rms"]),
        bits=_number(verdict["bits"]),
        resembles=verdict["resembles"],
        digest=judged.digests.get(cell.quantity),
        # A missing file says more than that the quantity is missing.
        reason=(outcome.reason if status == Status.MISSING else "") or verdict["reason"],
        diagnosis=_joined(_precision(job, verdict), diagnosis) if failed else None,
        seconds=outcome.seconds,
        worst=verdict["worst"],
        decisive=statuses.named(status).passes and not verdict["empty"],
        last=_is_last(job, cell),
    )


def _joined(*texts: str | None) -> str | None:
    return "; ".join(filter(None, texts)) or None


def _number(value: Any) -> float | None:
    """Numbers that JSON lacks come as text."""
    return None if value is None else float(value)


def _is_last(job: Job, cell: Cell) -> bool:
    return cell.quantity in job.case.results


def _precision(job: Job, verdict: Mapping[str, Any]) -> str | None:
    """That a quantity is less precise than its dtype, in words."""
    if not verdict["resembles"]:
        return None
    claimed = FORMATS[job.entry.arithmetic(job.dtype).storage].precision
    bits = _number(verdict["bits"])
    return f"behaves like {verdict['resembles']}: {bits:.1f} of {claimed} bits"


def _first_wrong(job: Job, verdicts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first equation that goes wrong; None if what goes before it was not reported."""
    program = job.case.program
    absent = (Status.NOT_REPORTED, Status.MISSING)
    reported = {name for name, verdict in verdicts.items() if verdict["status"] not in absent}
    inputs = {tensor.name for tensor in program.inputs}
    for equation in program.equations:
        name = equation.target.name
        if name not in verdicts or verdicts[name]["status"] != Status.FAILED:
            continue
        part = program.restricted(frozenset(reported - {name}), name)
        starts = {tensor.name for tensor in part.inputs}
        if len(part.equations) == 1 or not starts <= inputs:
            return f"the first equation that goes wrong is {equation.text}"
        return None
    return None
