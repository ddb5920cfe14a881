"""Merging: many records become one, the same in any order, and none that contradict each other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkvac.cells import Result, Status
from qkvac.cli.main import main
from qkvac.publication.archive import Archive, read
from qkvac.publication.merging import merged, read_all, written
from qkvac.tests.suite.records import (
    JIT,
    TORCH,
    entry,
    environment,
    lines,
    result,
    write,
)
from qkvac.usage import UsageError

ROSTER = (entry(TORCH), entry(JIT, "0.10.2"))

CELLS = tuple(
    result(quantity, case=f"attention/{family}/33x20x7", dtype=dtype, subject=subject)
    for subject in (TORCH, JIT)
    for dtype in ("float64", "float32")
    for family in ("normal", "hot")
    for quantity in ("Q", "A", "C")
)


def shard(number: int, of: int, plan: str = "p" * 16, cells: int = len(CELLS)) -> dict[str, Any]:
    return {"shard": {"number": number, "of": of, "cells": cells, "plan": plan}}


def timeless(archive: Archive) -> list[Any]:
    """What a record says, times aside, in the order of a merged record."""
    found = [json.loads(line) for line in written(merged([archive]))]
    for line in found:
        line.pop("seconds", None)
        line.pop("started", None)
    return found


def groups(results: Sequence[Result]) -> list[list[Result]]:
    """What a split of a run keeps together."""
    keys = dict.fromkeys((r.cell.subject, r.cell.dtype) for r in results)
    return [[r for r in results if (r.cell.subject, r.cell.dtype) == key] for key in keys]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_shards_become_what_one_run_gives(tmp_path: Path, data: st.DataObject) -> None:
    """However the groups are dealt out, whatever their statuses, in any order of files."""
    statuses = data.draw(
        st.lists(st.sampled_from(Status.ALL), min_size=len(CELLS), max_size=len(CELLS))
    )
    cells = [
        result(r.cell.quantity, r.cell.case, r.cell.dtype, r.cell.subject, status)
        for r, status in zip(CELLS, statuses, strict=True)
    ]
    count = data.draw(st.integers(1, 4))
    dealt: list[list[Result]] = [[] for _ in range(count)]
    for group in groups(cells):
        dealt[data.draw(st.integers(0, count - 1))] += group
    paths = [
        write(tmp_path / f"{n}.jsonl", lines(own, entries=ROSTER, **shard(n + 1, count)))
        for n, own in enumerate(dealt)
    ]
    whole = read(
        write(tmp_path / "whole.jsonl", lines(data.draw(st.permutations(cells)), entries=ROSTER))
    )
    found = read_all(tuple(data.draw(st.permutations(paths))))
    assert timeless(found) == timeless(whole)
    assert "shard" not in found.environments[0].run


def test_environments_keep_their_headers_in_any_order(tmp_path: Path) -> None:
    versions = ("3.10.1", "3.11.7", "3.12.0")
    sections = [lines(CELLS, environment(python=version), ROSTER) for version in versions]
    paths = [write(tmp_path / f"{n}.jsonl", own) for n, own in enumerate(sections)]
    texts = {"".join(written(read_all(order))) for order in itertools.permutations(paths)}
    assert len(texts) == 1
    out = tmp_path / "merged.jsonl"
    out.write_text(texts.pop(), encoding="utf-8")
    found = read(out)
    assert {e.surroundings["python"] for e in found.environments} == set(versions)
    assert len(found.lines) == 3 * len(CELLS)
    assert len(found.footers) == 3
    again = read_all((out,))
    assert "".join(written(again)) == out.read_text(encoding="utf-8")


def test_parts_of_one_environment_become_one(tmp_path: Path) -> None:
    first, second = CELLS[: len(CELLS) // 2], CELLS[len(CELLS) // 2 :]
    a = write(tmp_path / "a.jsonl", lines(first, left_out={JIT.id: 2}, profiles=["attention"]))
    b = write(tmp_path / "b.jsonl", lines(second, left_out={JIT.id: 3}, notes=["no jax"]))
    found = read_all((a, b))
    (known,) = found.environments
    assert known.run["cells"] == len(CELLS)
    assert known.run["left_out"] == {JIT.id: 5}
    assert known.run["notes"] == ["no jax"]
    assert known.run["profiles"] == [], "one of them selected all"
    assert set(known.subjects) == {TORCH.id, JIT.id}
    assert found.footers[known.id]["cells"] == len(CELLS)


def test_what_shards_say_of_the_whole_run_is_counted_once(tmp_path: Path) -> None:
    paths = [
        write(
            tmp_path / f"{n}.jsonl",
            lines(own, entries=ROSTER, left_out={JIT.id: 7}, **shard(n, 2)),
        )
        for n, own in enumerate((CELLS[:12], CELLS[12:]), 1)
    ]
    assert read_all(tuple(paths)).environments[0].run["left_out"] == {JIT.id: 7}


def test_a_failure_in_one_shard_fails_the_run(tmp_path: Path) -> None:
    bad = result("C", dtype="float32", status=Status.FAILED)
    a = write(tmp_path / "a.jsonl", lines([bad], entries=ROSTER, **shard(1, 2)))
    b = write(tmp_path / "b.jsonl", lines(CELLS[12:], entries=ROSTER, **shard(2, 2)))
    found = read_all((a, b))
    assert [footer["exit_status"] for footer in found.footers.values()] == [1]


# --- what is refused ------------------------------------------------------------------------------


def refusal(*paths: Path, allow_truncated: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        read_all(paths, allow_truncated=allow_truncated)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_cell_that_is_in_two_records_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS[:3]))
    b = write(tmp_path / "b.jsonl", lines(CELLS[2:5]))
    message = refusal(a, b)
    assert CELLS[2].cell.id in message
    assert "a.jsonl" in message
    assert "b.jsonl" in message


def test_the_same_cell_of_two_environments_is_no_duplicate(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS))
    b = write(tmp_path / "b.jsonl", lines(CELLS, environment(threads=2)))
    assert len(read_all((a, b)).lines) == 2 * len(CELLS)


def test_versions_of_the_spec_are_not_mixed(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS))
    old = list(lines(CELLS, environment(threads=2)))
    old[0]["spec_version"] = "0.9"
    message = refusal(a, write(tmp_path / "b.jsonl", old))
    assert "0.9" in message
    assert "report diff" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strict": True}, "--strict"),
        ({"entries": [entry(raw={"dtypes": ["float32"], "deterministic": False})]}, "torch/eager"),
    ],
)
def test_records_of_one_environment_that_contradict_each_other_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS[:3]))
    b = write(tmp_path / "b.jsonl", lines(CELLS[3:6], **changes))
    assert said in refusal(a, b)


def test_versions_of_the_suite_are_not_mixed_in_one_environment(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS[:3]))
    other = list(lines(CELLS[3:6]))
    other[0]["qkvac_version"] = "9.9"
    assert "qkvac" in refusal(a, write(tmp_path / "b.jsonl", other))


def test_shards_without_the_others_are_refused_or_said_to_be_torn(tmp_path: Path) -> None:
    parts = groups(CELLS)
    paths = [
        write(tmp_path / f"{n}.jsonl", lines(own, entries=ROSTER, **shard(n, 4)))
        for n, own in enumerate(parts, 1)
    ]
    assert "no shard 2, 4" in refusal(paths[0], paths[2])
    found = read_all((paths[0], paths[2]), allow_truncated=True)
    assert found.truncated
    assert not found.footers
    assert not read_all(tuple(paths)).truncated


def test_shards_of_different_machines_belong_together(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS[:12], entries=ROSTER, **shard(1, 2)))
    b = write(
        tmp_path / "b.jsonl",
        lines(CELLS[12:], environment(cpu="Another"), entries=ROSTER, **shard(2, 2)),
    )
    found = read_all((a, b))
    assert not found.truncated
    assert [len(results) for results in found.by_environment.values()] == [12, 12]


def test_of_two_runs_that_were_split_alike_no_shard_stands_for_the_other(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS[:12], entries=ROSTER, **shard(1, 2)))
    b = write(tmp_path / "b.jsonl", lines(CELLS[12:], entries=ROSTER, **shard(2, 2)))
    c = write(
        tmp_path / "c.jsonl",
        lines(CELLS[:12], environment(cpu="Another"), entries=ROSTER, **shard(1, 2)),
    )
    assert "no shard 2" in refusal(a, b, c)


def test_a_run_that_ended_early_is_refused_or_has_no_footer(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS))
    b = write(tmp_path / "b.jsonl", lines(CELLS[:3], environment(threads=2), footer=False))
    assert "ended early" in refusal(a, b)
    found = read_all((a, b), allow_truncated=True)
    assert found.truncated
    out = tmp_path / "out.jsonl"
    out.write_text("".join(written(found)), encoding="utf-8")
    assert "ended early" in refusal(out)
    assert len(read(out, allow_truncated=True).lines) == len(CELLS) + 3


# --- the command ----------------------------------------------------------------------------------


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["report", "merge", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_writes_a_record(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS))
    b = write(tmp_path / "b.jsonl", lines(CELLS, environment(threads=2)))
    out = tmp_path / "out.jsonl"
    assert run(str(a), str(b), "-o", str(out)) == 0
    assert run(str(b), str(a)) == 0
    assert capsysbinary.readouterr().out == out.read_bytes()
    assert run(str(out), "--max-size", "1K") == 2
    assert run(str(a), str(b), "-o", str(tmp_path / "no" / "out.jsonl")) == 2
    assert run(str(a), str(a)) == 2
    errors = capsysbinary.readouterr().err.decode().splitlines()
    assert len(errors) == 3
    assert "--max-size" in errors[0]
    assert "cannot be written" in errors[1]


def test_a_record_may_be_replaced_by_what_it_is_merged_into(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines(CELLS))
    b = write(tmp_path / "b.jsonl", lines(CELLS, environment(threads=2)))
    assert run(str(a), str(b), "-o", str(a)) == 0
    assert len(read(a).lines) == 2 * len(CELLS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]
