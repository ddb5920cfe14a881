"""Fresh calls: a failing port asked again at the end of a run, for what its answers leave open.

They are made in a process of their own, as all calls are, and within a limit of time. What a port
does then, a crash or a hang included, changes no result; what it does not answer is not known.
A port in the calling process cannot be kept from ending that, and a folder of outputs answers
nothing new: these are not asked. Neither are modes that compile every shape.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvac.cells import COMMAND, FOLDER, LOADED
from qkvac.execution.batches import CommandRunner
from qkvac.execution.plan import Job
from qkvac.execution.runner import Runner
from qkvac.spec.cases.case import Case
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options
from qkvac.usage import UsageError

Outputs = Mapping[str, np.ndarray[Any, Any]]


def answers(
    entry: Entry, options: Options, dtype: str, cases: Mapping[str, Case], patience: float
) -> dict[str, Outputs]:
    """What a subject returns for some cases, by their names; those without an answer are absent.

    After `patience` seconds its process is ended.
    """
    form = entry.subject.form
    if form in (FOLDER, LOADED) or entry.compiled:
        return {}
    jobs = {name: Job(entry, dtype, case, case.quantities) for name, case in cases.items()}
    runner: Runner | CommandRunner
    if form == COMMAND:
        runner = CommandRunner(entry, options)
        runner.expect(jobs.values())
    else:
        runner = Runner(entry, options)
    limit = threading.Timer(patience, runner.interrupt)
    limit.daemon = True
    limit.start()
    found = dict[str, Outputs]()
    try:
        for name, job in jobs.items():
            outcome = runner.answer(job).outcome
            if outcome.status == "ok" and outcome.outputs:
                found[name] = outcome.outputs
    except (OSError, UsageError):
        # A program that has been deleted since, or a disk that is full.
        pass
    finally:
        limit.cancel()
        runner.close()
    return found
