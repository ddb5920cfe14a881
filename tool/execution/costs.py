"""Costs: about how long jobs take, so that shards of a run come out even.

`costs.toml` holds what calls took in a recorded run: by subject and function, since a compiled
mode takes a thousand times as long as NumPy. `python -m qkvac.execution.costs RECORD...` writes it
anew. Only ratios matter, and whole milliseconds are added, so that every machine comes
to the same sums in whatever order it adds.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from statistics import fmean
from typing import TYPE_CHECKING, Final

from qkvac.toml import loads

if TYPE_CHECKING:
    from qkvac.execution.plan import Job

START: Final = 5000
"""Milliseconds for a framework to load."""
CELL: Final = 3
"""Milliseconds for a cell to be judged."""
CALL: Final = 20
"""Milliseconds for a call to a port, or to a backend that was not measured."""
COMPILED: Final = 300
"""The same in a mode that compiles."""
ANY: Final = "*"
"""A function that was not measured."""

HEAD: Final = """\
# Milliseconds that a call takes, by subject and function; "*" is any other function. Shards are
# made even by it: nothing else depends on it, and only the ratios matter.
# Made by python -m qkvac.execution.costs from the record of a run.
"""


@cache
def table() -> Mapping[str, Mapping[str, int]]:
    """Milliseconds of a call, by subject without device and by function."""
    text = (resources.files("qkvac.execution") / "costs.toml").read_text(encoding="utf-8")
    found: dict[str, dict[str, int]] = loads(text)
    return found


def milliseconds(job: Job) -> int:
    """About how long a job takes, its verdicts included."""
    if job.status:
        return 0
    measured = table().get(job.entry.subject.name, {})
    unknown = COMPILED if job.entry.compiled else CALL
    call = measured.get(job.case.profile, measured.get(ANY, unknown))
    return call + CELL * len(job.cells)


def measure(lines: Iterable[str]) -> dict[str, dict[str, int]]:
    """The table that records have the times for, given their lines."""
    calls = dict[tuple[str, str, str], float]()
    for line in lines:
        row = json.loads(line)
        if row["kind"] == "result" and "seconds" in row:
            name = row["subject"].rpartition("@")[0]
            # All cells of a case bear the time of its one call.
            calls[name, row["dtype"], row["case"]] = float(row["seconds"])
    times = defaultdict[str, defaultdict[str, list[float]]](lambda: defaultdict(list))
    for (name, _, case), seconds in calls.items():
        for function in (ANY, case.partition("/")[0]):
            times[name][function].append(1000 * seconds)
    return {
        name: {function: round(fmean(taken)) for function, taken in sorted(functions.items())}
        for name, functions in sorted(times.items())
    }


def to_toml(costs: Mapping[str, Mapping[str, int]]) -> str:
    """The table as the text of `costs.toml`."""
    rows = [
        f'["{name}"]\n' + "".join(f'"{function}" = {cost}\n' for function, cost in row.items())
        for name, row in costs.items()
    ]
    return HEAD + "".join(f"\n{row}" for row in rows)


def main(paths: Iterable[str]) -> None:
    """Prints the table of the records in files."""
    lines = list[str]()
    for path in paths:
        with open(path, encoding="utf-8") as file:
            lines += file
    print(to_toml(measure(lines)), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
