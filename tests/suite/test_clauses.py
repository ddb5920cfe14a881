"""Clauses and statuses are defined once: one that is added is asked, told, listed and recorded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from qkvac.cells import Result, Status
from qkvac.diagnosis import failures
from qkvac.publication import archive, validation
from qkvac.publication.html import render
from qkvac.publication.marks import mark
from qkvac.pytest_matrix.matrix import brief, to_property
from qkvac.records.deviations import read as deviations
from qkvac.records.record import FORMAT, from_json, to_json
from qkvac.records.report import Report
from qkvac.records.summary import plain
from qkvac.records.tables import style, worst_status
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.verdicts import clauses, comparisons, statuses
from qkvac.spec.verdicts.comparisons import Answer, Comparison
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.tests.suite.killing import FORWARD
from qkvac.tests.suite.records import TORCH, lines, result, write
from qkvac.usage import UsageError

EVEN: Final = clauses.Clause(
    "even",
    "V",
    "every entry is an even number",
    "an entry is odd",
    "an even number",
    "{count} of {size} entries are odd",
)
POSTPONED: Final = statuses.Status(
    "postponed", "nobody had the time", "skipped", "open", "magenta", "later", 9, required=False
)


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clause and a status more than there are."""

    def even(answer: Answer) -> Comparison:
        none = np.zeros(answer.value.shape, bool)
        error = np.asarray(answer.value.astype(np.float64) % 2)
        return Comparison(EVEN.word, error, np.zeros(error.shape), ~none, answer.value, none)

    monkeypatch.setattr(clauses, "CLAUSES", (*clauses.CLAUSES, EVEN))
    monkeypatch.setattr(statuses, "STATUSES", (*statuses.STATUSES, POSTPONED))
    monkeypatch.setitem(comparisons.COMPARE, EVEN.word, even)
    caches = (validation.schema, validation.accepts)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


NEW: Final = pytest.mark.usefixtures("_registered")


# --- what there is ---------------------------------------------------------------------------


def test_names_are_unmistakable() -> None:
    names = [*clauses.words(), *clauses.letters(), *statuses.names()]
    assert max(Counter(names).values()) == 1
    assert len({status.rank for status in statuses.STATUSES}) == len(statuses.STATUSES)
    with pytest.raises(ValueError, match="'X' is no clause: contract, exact, local"):
        clauses.named("X")
    with pytest.raises(ValueError, match="'X' is no status: passed, failed"):
        statuses.named("X")


def test_what_is_about_values_is_compared_and_nothing_else() -> None:
    assert {c.word for c in clauses.CLAUSES if c.about_values} == comparisons.COMPARE.keys()


def test_the_schema_lists_what_is_defined() -> None:
    """Where this fails, the file is to be written anew with what `schema` puts into it."""
    text = (resources.files("qkvac.records") / "record.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == validation.schema()


@pytest.mark.parametrize("clause", clauses.CLAUSES, ids=lambda clause: clause.word)
def test_people_read_words(clause: clauses.Clause) -> None:
    failed = result(status=Status.FAILED, clause=clause.word)
    told = (failures.what(failed), failed.line, brief(to_property(failed)))
    assert all(f"failed, {clause.word}" in text for text in told)
    assert not any(f"clause {clause.letter}" in text for text in told)


def test_older_records_name_clauses_by_letters(tmp_path: Path) -> None:
    """They are read, and merged ones are written with words."""
    given = [result(q, status=Status.FAILED, clause="bound") for q in "QKVC"]
    old = [dict(line) for line in lines(given)]
    old[0]["format"] = 2
    for line, letter in zip(old[1:], ["E", "L", "B", "M"], strict=False):
        line["clause"] = letter
    found = archive.read(write(tmp_path / "old.jsonl", old))
    assert [r.clause for r in found.results] == ["exact", "local", "bound", "metamorphic"]
    assert found.environments[0].header["format"] == FORMAT


def test_known_deviations_take_words_and_letters() -> None:
    text = "[[deviation]]\nbackend='b'\nreason='r'\nlink='l'\nclause='{}'\n"
    for clause in clauses.CLAUSES:
        for name in filter(None, (clause.word, clause.letter)):
            (entry,) = deviations(text.format(name), "f.toml")
            assert entry.clause == clause.word


# --- one more --------------------------------------------------------------------------------


@NEW
def test_a_further_clause_is_asked_of_every_quantity() -> None:
    case = next(c for c in cases(FORWARD[0]) if c.generic and c.tier == "default")
    question = Question(case, "float64", Arithmetic.for_dtype("float64"))
    outputs = {name: value.hi for name, value in question.certified.items()}
    found = judge(question, outputs)["C"]
    assert (found.status, found.clause) == ("failed", "even")
    size = outputs["C"].size
    assert found.reason == f"{size} of {size} entries are odd"
    twice = {**outputs, "C": outputs["C"] * 4}
    assert judge(question, twice)["C"].clause == "local", "the first clause that fails is named"


@NEW
def test_a_further_clause_is_told_listed_and_recorded(tmp_path: Path) -> None:
    failed = result(status=Status.FAILED, clause="even", reason="3 of 9 entries are odd")
    assert failures.what(failed) == "failed, even, an even number"
    told = " ".join(plain(Report((failed,))).split())
    assert "C: failed, even, an even number" in told
    (entry,) = deviations("[[deviation]]\nbackend='b'\nclause='V'\nreason='r'\nlink='l'", "f.toml")
    assert entry.clause == "even"
    assert entry.fits(failed)
    assert from_json(to_json(failed), {TORCH.id: TORCH}) == failed
    page = render(archive.read(write(tmp_path / "new.jsonl", lines([failed]))))
    assert "<dt>even</dt><dd>an entry is odd</dd>" in page


@NEW
def test_a_further_status_is_told_listed_and_recorded(tmp_path: Path) -> None:
    later = result("Q", status="postponed")
    assert "postponed" in Status.NOT_REQUIRED
    assert "postponed" in Status.SKIPPING
    assert later.ok
    assert style("postponed") == "magenta"
    assert worst_status([later, result("Q", status=Status.SKIPPED)]) == "postponed"
    assert mark([later]).kind == "open"
    both: tuple[Result, ...] = (result(), later)
    assert "postponed (because of postponed): 1 cells" in plain(Report(both))
    found = archive.read(write(tmp_path / "new.jsonl", lines(both)))
    assert [r.status for r in found.results] == ["passed", "postponed"]
    assert '<span class="chip open">postponed</span></dt><dd>nobody had the time' in render(found)


def test_without_it_a_record_of_it_is_refused(tmp_path: Path) -> None:
    for name, value in (("status", "postponed"), ("clause", "even")):
        written = [dict(line) for line in lines([result(status=Status.FAILED)])]
        written[1][name] = value
        path = write(tmp_path / f"{name}.jsonl", written)
        with pytest.raises(UsageError, match=f"does not fit the record's schema.*{name}"):
            archive.read(path)
