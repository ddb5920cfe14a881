"""Reports to look at: of a run, of several environments, of a stranger, and of many cells."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.publication.archive import Archive, Environment, Line, read
from qkvac.publication.html import render
from qkvac.spec.cases.catalogue import cases
from qkvac.tests.suite.records import (
    HOSTILE,
    JIT,
    TORCH,
    entry,
    environment,
    lines,
    result,
    write,
)

PORT: Final = Subject("my_port", "default", "cpu", port="my_port.py")
SNIPPET: Final = 'import numpy as np\nQ = np.array([1.0])\nprint("C[0, 1] should be", Q @ Q)'
FAILING: Final = "my_port@cpu-float32-attention/normal/33x20x7-C"

MARKUP: Final = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</script><script>window.hacked = 1</script>",
    "</title></style><svg onload=window.hacked=1>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "javascript:window.hacked=1",
    "{{ 7 * 7 }}{% raw %}",
    "' onmouseover='window.hacked=1",
)
"""What would do something if it became markup."""


def mixed(subjects: Sequence[Subject], names: int = 4) -> list[Result]:
    """Results of every status, in several cases, dtypes and quantities."""
    found = []
    ids = [case.id for case in islice(cases("attention"), names)]
    for subject, case, dtype in product(subjects, ids, ("float64", "float32")):
        for number, quantity in enumerate(("Q", "K", "V", "A", "C", "repeat")):
            ratio = round(0.05 + 0.07 * number, 3)
            found.append(result(quantity, case, dtype, subject, ratio=ratio))
    for place, status in enumerate(Status.ALL[2:], 1):
        found[place * 5] = _of(found[place * 5], status)
    return found


def _of(old: Result, status: str, **changes: Any) -> Result:
    cell = old.cell
    return result(cell.quantity, cell.case, cell.dtype, cell.subject, status, **changes)


def failing(results: Sequence[Result]) -> list[Result]:
    """The results with one failure that has everything a failure can have."""
    found = [
        _of(old, Status.FAILED, detail=SNIPPET) if old.cell.id == FAILING else old
        for old in results
    ]
    assert any(old.cell.id == FAILING for old in results)
    return found


def single(folder: Path) -> Archive:
    results = failing(mixed((TORCH, JIT, PORT)))
    return read(write(folder / "single.jsonl", detailed(results)))


def detailed(results: Sequence[Result], **given: Any) -> Iterator[dict[str, Any]]:
    """The lines of a record, with the details of failures, as a run writes them."""
    details = {r.cell.id: r.detail for r in results if r.detail}
    for line in lines(results, **given):
        if line["kind"] == "result":
            id = "{subject}-{dtype}-{case}-{quantity}".format_map(line)
            line |= {"detail": details[id]} if id in details else {}
        yield line


def merged(folder: Path) -> Archive:
    """Two versions on one machine, with other bits in places, and a third on another machine."""
    old = mixed((TORCH, JIT))
    new = [replace(r, digest="c" * 64) if r.cell.quantity == "A" and r.digest else r for r in old]
    sections = [
        lines(
            results,
            environment(versions={"torch": version, "numpy": "2.4.6"}, cpu_features=features),
            [entry(TORCH, version), entry(JIT, "0.10.2")],
        )
        for results, version, features in (
            (old, "2.4.1", ["AVX2", "FMA3"]),
            (new, "2.13.0", ["AVX2", "FMA3"]),
            (old, "2.14.0", ["AVX2", "AVX512F", "FMA3"]),
        )
    ]
    return read(write(folder / "merged.jsonl", *sections))


def passing(folder: Path) -> Archive:
    results = [result(q, subject=s) for s in (TORCH, JIT) for q in ("Q", "K", "V", "A", "C")]
    return read(write(folder / "passing.jsonl", lines(results)))


def hostile(folder: Path) -> Archive:
    """A record whose every free text would like to be something else."""
    results, entries = list[Result](), []
    for number, text in enumerate((*MARKUP, *HOSTILE)):
        subject = Subject(
            f"port{number} {text[:60]}", "default", "cpu", port=text, declare=shlex.quote(text)
        )
        entries.append(entry(subject, text, raw={"version": text[:60], "supports": "all"}))
        status = (Status.FAILED, Status.ERROR, Status.KNOWN_DEVIATION, Status.UNSUPPORTED)
        for each in status:
            texts = {"reason": text, "diagnosis": text, "detail": text, "resembles": text}
            case = f"attention/{text[:60]}/{each}"
            results.append(result("C", case, "float32", subject, each, **texts))
    settings = {text[:50]: text for text in MARKUP}
    surroundings = environment(cpu=MARKUP[0], system=MARKUP[1], settings=settings)
    given = {"surroundings": surroundings, "entries": entries, "notes": list(MARKUP)}
    return read(write(folder / "hostile.jsonl", detailed(results, **given)))


def many(count: int) -> Archive:
    """A long run: so many cells, each with other numbers and bits."""
    subjects = [Subject(f"backend{number}", "eager", "cpu") for number in range(20)]
    ids = [case.id for name in ("attention", "causal_attention") for case in cases(name)]
    every = product(range(9), subjects, ids, ("float64", "float32"), ("Q", "K", "V", "Ω", "A", "C"))
    header = next(lines(entries=[entry(subject) for subject in subjects], cells=count))
    environment = Environment(header["environment_id"], header)
    found = []
    for number, (draw, subject, case, dtype, quantity) in enumerate(islice(every, count)):
        ratio = 0.001 + (number * 7919 % 99_991) / 100_000
        cell = Cell(subject, dtype, f"{case}/s{draw}" if draw else case, quantity)
        worst = {"index": [number % 33, number % 7], "value": ratio, "certified": ratio / 3}
        made = Result(
            cell,
            Status.PASSED,
            grade="conforming",
            ratio=ratio,
            ulp=9 * ratio,
            bits=23 + ratio,
            digest=f"{number * 2654435761 % 2**64:016x}" * 4,
            seconds=ratio / 9,
            worst={**worst, "error": ratio / 7e6, "bound": 1 / 7e6},
            decisive=True,
            last=quantity == "C",
        )
        found.append(Line(environment.id, made))
    return Archive((environment,), tuple(found), {environment.id: {}})


def page(archive: Archive, path: Path) -> Path:
    path.write_text(render(archive), encoding="utf-8")
    return path
