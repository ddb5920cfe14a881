"""Known deviations: what an entry covers, and that it has to stay true."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.checks import CHECKS
from qkvac.deviations import Deviation, Deviations, read
from qkvac.environment import cpu_features
from qkvac.packages import OWN
from qkvac.registry import backend
from qkvac.roster import Entry, survey
from qkvac.selection import Options, Selection, profiles_with_cases
from qkvac.spec.cases import cases
from qkvac.spec.registry import known_profiles
from qkvac.tests.suite.engine_ports import SMALL, run, write
from qkvac.usage import UsageError

BASE = Deviation(backend="numpy/eager", clause="L", reason="known", link="https://example.org/1")


@pytest.fixture(scope="module")
def entry() -> Entry:
    return survey(Selection(backends=("numpy",)), Options()).entries[0]


def result(entry: Entry, status: str = Status.FAILED, **fields: Any) -> Result:
    cell = Cell(entry.subject, "float32", f"attention/{SMALL}", fields.pop("quantity", "A"))
    return Result(cell, status, **{"clause": "L" if status == Status.FAILED else None, **fields})


def only(**fields: Any) -> Deviations:
    return Deviations((Deviation(**{**vars(BASE), **fields}),))


def test_a_covered_failure_is_known(entry: Entry) -> None:
    found = only().apply(result(entry), entry)
    assert found.status == Status.KNOWN_DEVIATION
    assert found.reason == "known (https://example.org/1)"


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "torch/*"},
        {"versions": "<1"},
        {"device": "cuda*"},
        {"dtype": "float16"},
        {"quantity": "C"},
        {"cases": ("attention/hot/*",)},
        {"cpu_features": ("ABACUS",)},
    ],
)
def test_an_entry_applies_only_where_all_of_it_matches(
    entry: Entry, fields: dict[str, Any]
) -> None:
    known = only(**fields)
    assert known.apply(result(entry), entry) == result(entry)
    assert len(known.not_exercised) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "numpy/*"},
        {"versions": ">=1.26"},
        {"device": "cpu"},
        {"cases": ("attention/hot/*", "attention/normal/*")},
        {"cpu_features": ("!ABACUS", *sorted(cpu_features())[:1])},
    ],
)
def test_an_entry_applies_where_all_of_it_matches(entry: Entry, fields: dict[str, Any]) -> None:
    known = only(**fields)
    assert known.apply(result(entry), entry).status == Status.KNOWN_DEVIATION
    assert known.not_exercised == ()


def test_a_covered_pass_is_unexpected(entry: Entry) -> None:
    for status in (Status.PASSED, Status.INDECISIVE):
        found = only(source="list, entry 1").apply(result(entry, status), entry)
        assert found.status == Status.UNEXPECTED_PASS
        assert "list, entry 1" in (found.reason or "")


def test_another_failure_stays_a_failure(entry: Entry) -> None:
    for other in (result(entry, clause="E"), result(entry, Status.CRASH)):
        assert only().apply(other, entry) == other


def test_what_was_not_executed_stays_so(entry: Entry) -> None:
    known = only()
    for status in Status.NOT_REQUIRED:
        assert known.apply(result(entry, status), entry).status == status
    assert len(known.not_exercised) == 1


def test_failures_without_an_answer_match_by_their_reason(entry: Entry) -> None:
    known = only(clause="error", reason_matches="ALG_[A-Z]+")
    for reason, status in (("no ALG_DOT here", Status.KNOWN_DEVIATION), ("other", Status.ERROR)):
        found = known.apply(result(entry, Status.ERROR, reason=reason), entry)
        assert found.status == status


START = "[[deviation]]\nbackend='x'\nclause='L'\nreason='r'\nlink='l'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[deviation]", "is not TOML"),
        ("[other]", "something besides"),
        ("deviation = 3", "something besides"),
        ("[[deviation]]\nbackend = 'x'", "clause is missing"),
        ("[[deviation]]\nbackend='x'\nclause='Z'\nreason='r'\nlink='l'", "clause is one of"),
        (f"{START}\ncase='c'", "'case'"),
        (f"{START}\ncases='c'", "cases"),
        (f"{START}\nversions='new'", "new"),
        (
            f"{START}\nreason_matches='('",
            "missing )",
        ),
    ],
)
def test_a_wrong_entry_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        Deviations.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="known-deviations"):
        Deviations.load(tmp_path / "nowhere.toml")


def test_every_own_entry_speaks_of_a_backend_and_a_case_of_the_spec() -> None:
    subjects = [Subject(name, mode, "cpu").name for name in OWN for mode in backend(name).modes]
    for known in Deviations.load().entries:
        assert any(fnmatch.fnmatchcase(name, known.backend) for name in subjects), known
        matched = [
            case
            for name in profiles_with_cases()
            for case in cases(name)
            if known.covers_case(case.id)
            and (not known.dtype or any(fnmatch.fnmatchcase(d, known.dtype) for d in case.dtypes))
            and (
                not known.quantity
                or any(
                    fnmatch.fnmatchcase(quantity, known.quantity)
                    for quantity in (*known_profiles()[name].quantities, *CHECKS)
                )
            )
        ]
        assert matched, f"{known.source} matches no case"


def test_a_run_takes_them_into_account(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(*arrays): return 2 * plain(*arrays)[-1]")
    path = tmp_path / "mine.toml"
    text = "[[deviation]]\nbackend = 'my_port'\nclause = 'B'\nquantity='C'\n"
    path.write_text(text + "reason = 'doubled'\nlink = 'https://example.org'\n")
    results = run(port, f"attention/{SMALL}", deviations=path)
    assert [r.status for r in results if r.cell.quantity == "C"] == [Status.KNOWN_DEVIATION]
    assert read(path.read_text(), "x")[0].source == "x, entry 1"
