"""Known deviations: what an entry covers, and that it has to stay true."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkvac.api import check
from qkvac.backends.processor import cpu_features
from qkvac.cells import Cell, Result, Status, Subject
from qkvac.checks.registry import CHECKS
from qkvac.execution.survey import survey
from qkvac.records.deviations import Deviation, Deviations, read
from qkvac.records.environment import NAMED_LATER, processor
from qkvac.spec.cases.catalogue import cases, profiles_with_cases
from qkvac.spec.registry import known_profiles
from qkvac.subjects.registry import backend
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.packages import OWN
from qkvac.tests.suite.engine_ports import SMALL, run, write
from qkvac.usage import UsageError

BASE = Deviation(
    backend="numpy/eager", clause="local", reason="known", link="https://example.org/1"
)


@pytest.fixture(scope="module")
def entry() -> Entry:
    return survey(Selection(backends=("numpy",)), Options()).entries[0]


def result(entry: Entry, status: str = Status.FAILED, **fields: Any) -> Result:
    cell = Cell(entry.subject, "float32", f"attention/{SMALL}", fields.pop("quantity", "A"))
    return Result(
        cell, status, **{"clause": "local" if status == Status.FAILED else None, **fields}
    )


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


# --- deviations that depend on the processor ----------------------------------------------------

MACHINES = {
    "amx": {"X86_64", "GENUINEINTEL", "AVX2", "FMA3", "AVX512F", "AVX512_ICL", "AVX512_SPR"},
    "zen4": {"X86_64", "AUTHENTICAMD", "AVX2", "FMA3", "AVX512F", "AVX512_ICL"},
    "zen3": {"X86_64", "AUTHENTICAMD", "AVX2", "FMA3"},
    "arm": {"AARCH64", "NEON", "ASIMD"},
}


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets this machine be another one."""

    def chosen(machine: str) -> None:
        found = frozenset(MACHINES[machine])
        monkeypatch.setattr("qkvac.records.deviations.processor", lambda: found)

    return chosen


SEEN = [
    (("AVX512_SPR",), ["amx"]),
    (("avx512_spr", "AuthenticAMD AVX512_ICL"), ["amx", "zen4"]),
    (("x86_64 !AVX512F",), ["zen3"]),
    (("x86_64",), ["amx", "zen4", "zen3"]),
    ((), ["amx", "zen4", "zen3", "arm"]),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("seen_on", "where"), SEEN)
def test_a_pass_is_unexpected_only_where_the_deviation_was_seen(
    entry: Entry,
    pretend: Callable[[str], None],
    machine: str,
    seen_on: tuple[str, ...],
    where: list[str],
) -> None:
    pretend(machine)
    known = only(seen_on=seen_on, source="list, entry 1")
    passed = result(entry, Status.PASSED, grade="exact", decisive=True)
    found = known.apply(passed, entry)
    assert found.ok == (machine not in where)
    assert known.not_exercised == ()
    if machine in where:
        assert found.status == Status.UNEXPECTED_PASS
    else:
        assert replace(found, status=Status.PASSED, reason=None) == passed
        assert found.status == Status.NOT_SEEN
        assert found.reason == f"list, entry 1 was seen on {' or '.join(seen_on)}: known"


def test_elsewhere_it_fails_as_known_and_no_other_way(
    entry: Entry, pretend: Callable[[str], None]
) -> None:
    pretend("zen3")
    known = only(seen_on=("AVX512_SPR",))
    assert known.apply(result(entry), entry).status == Status.KNOWN_DEVIATION
    for other in (result(entry, clause="exact"), result(entry, Status.INDECISIVE)):
        assert known.apply(other, entry) == other


def test_a_pass_is_unexpected_where_one_of_several_entries_was_seen(
    entry: Entry, pretend: Callable[[str], None]
) -> None:
    pretend("zen3")
    far, here = (Deviation(**{**vars(BASE), "seen_on": on}) for on in (("AVX512F",), ("FMA3",)))
    for entries, status in (
        ((far,), Status.NOT_SEEN),
        ((far, here), Status.UNEXPECTED_PASS),
    ):
        found = Deviations(entries).apply(result(entry, Status.PASSED), entry)
        assert found.status == status


def test_this_processor_has_an_architecture_and_its_features() -> None:
    assert cpu_features() < processor()
    assert processor() & {"X86_64", "AARCH64", "PPC64LE", "S390X", "RISCV64"}


def test_own_entries_name_features_that_every_numpy_names() -> None:
    for known in Deviations.load().entries:
        words = {word.lstrip("!") for kind in known.seen_on for word in kind.split()}
        assert not words & NAMED_LATER, known.source


def test_a_run_tells_what_is_not_seen_here(tmp_path: Path) -> None:
    port = write(tmp_path, "def attention(*arrays): return plain(*arrays)")
    path = tmp_path / "mine.toml"
    text = (
        "[[deviation]]\nbackend = 'my_port'\nclause = 'bound'\nquantity='C'\nreason = 'doubled'\n"
    )
    for seen_on, status in (("ABACUS", 0), ("!ABACUS", 1)):
        path.write_text(f"{text}link = 'l'\nseen_on = ['{seen_on}']\n")
        report = check(
            port, cases=[f"attention/{SMALL}"], dtypes=["float32"], known_deviations=path
        )
        assert report.exit_status == status
        told = "".join(str(report).split())
        line = f"not seen here ({path}, entry 1 was seen on ABACUS: doubled): 1 cells of my_port"
        for text_of_it in (line, "1 not seen here"):
            assert ("".join(text_of_it.split()) in told) == (not status)


def test_another_failure_stays_a_failure(entry: Entry) -> None:
    for other in (result(entry, clause="exact"), result(entry, Status.CRASH)):
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


START = "[[deviation]]\nbackend='x'\nclause='local'\nreason='r'\nlink='l'"


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
        (f"{START}\nseen_on='AVX2'", "list of texts"),
        (f"{START}\nseen_on=['AVX2', ' ']", "every processor"),
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
    text = "[[deviation]]\nbackend = 'my_port'\nclause = 'bound'\nquantity='C'\n"
    path.write_text(text + "reason = 'doubled'\nlink = 'https://example.org'\n")
    results = run(port, f"attention/{SMALL}", deviations=path)
    assert [r.status for r in results if r.cell.quantity == "C"] == [Status.KNOWN_DEVIATION]
    assert read(path.read_text(), "x")[0].source == "x, entry 1"
