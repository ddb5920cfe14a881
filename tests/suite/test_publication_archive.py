"""Reading records: what a run wrote comes back, and nothing else is taken for a record."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkvac.cells import Status, Subject
from qkvac.publication import archive, validation
from qkvac.publication.archive import read
from qkvac.records.record import text
from qkvac.tests.suite.records import CASE, HOSTILE, JIT, TORCH, entry, lines, result, write
from qkvac.usage import UsageError

ALL = tuple(result(f"q{place}", status=status) for place, status in enumerate(Status.ALL))


def refusal(path: Path, **options: Any) -> str:
    """The line that a record is refused with."""
    with pytest.raises(UsageError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.jsonl", lines(ALL)))
    assert [line.result for line in found.lines] == list(ALL)
    (environment,) = found.environments
    assert {line.environment for line in found.lines} == {environment.id}
    assert environment.subjects == {TORCH.id: TORCH}
    assert not found.truncated
    assert found.reports[environment.id].counts == dict.fromkeys(Status.ALL, 1)
    assert found.reports[environment.id].exit_status == found.footers[environment.id]["exit_status"]


def test_a_declared_arithmetic_survives(tmp_path: Path) -> None:
    raw = {"dtypes": ["float32"], "arithmetic": {"float32": {"accumulation": "float64"}}}
    found = read(write(tmp_path / "a.jsonl", lines([result()], entries=[entry(raw=raw)])))
    (known,) = found.environments[0].entries
    assert known.arithmetic("float32").accumulation == "float64"


def test_hostile_texts_come_back_as_they_are(tmp_path: Path) -> None:
    given = [result(f"q{i}", reason=word, diagnosis=word) for i, word in enumerate(HOSTILE)]
    found = read(write(tmp_path / "a.jsonl", lines(given)))
    assert [line.result.reason for line in found.lines] == list(HOSTILE)


# --- records that end early -----------------------------------------------------------------------


@pytest.mark.parametrize("rest", ["", '{"kind":"resu', '{"kind":"footer"', "\xff"])
def test_a_killed_run_is_known_as_such(tmp_path: Path, rest: str) -> None:
    path = write(tmp_path / "a.jsonl", lines(ALL, footer=False))
    with path.open("ab") as file:
        file.write(rest.encode("latin-1"))
    message = refusal(path)
    assert "ended early" in message
    assert "--allow-truncated" in message
    found = read(path, allow_truncated=True)
    assert found.truncated
    assert not found.footers
    assert [line.result for line in found.lines] == list(ALL)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_record_cut_anywhere_never_passes_for_a_whole_one(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = write(tmp_path / "whole.jsonl", lines(ALL)).read_bytes()
    cut = tmp_path / "cut.jsonl"
    length = data.draw(st.integers(0, len(whole) - 1))
    cut.write_bytes(whole[:length])
    refusal(cut)
    if length > whole.index(b"\n"):
        found = read(cut, allow_truncated=True)
        assert found.truncated
        assert [line.result for line in found.lines] == list(ALL[: len(found.lines)])


# --- records that are none, or contradict themselves ----------------------------------------------


def changed(place: int, **changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(record: list[dict[str, Any]]) -> None:
        record[place] = {**record[place], **changes}

    return change


def environment_changed(record: list[dict[str, Any]]) -> None:
    record[0]["environment"]["cpu"] = "another"


def undeclared(record: list[dict[str, Any]]) -> None:
    record[0]["run"]["subjects"][0]["declaration"]["dtypes"] = ["float33"]


def misnamed(record: list[dict[str, Any]]) -> None:
    record[0]["run"]["subjects"][0]["id"] = "torch"


def unquoted(record: list[dict[str, Any]]) -> None:
    record[0]["run"]["subjects"][0]["declare"] = "--declare 'x"


def unquoted_folder(record: list[dict[str, Any]]) -> None:
    record[0]["run"]["subjects"][0] |= {"form": "folder", "port": "a 'b"}


def twofold(record: list[dict[str, Any]]) -> None:
    record[0]["run"]["subjects"] *= 2


MUTATIONS: Mapping[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "a line is lost": (
        lambda record: record.pop(2),
        f"line {len(ALL) + 1}: the footer counts {len(ALL)}",
    ),
    "a line is there twice": (lambda record: record.insert(2, record[2]), "line 4: a second"),
    "no header": (lambda record: record.pop(0), "line 1: no header comes before"),
    "two headers": (lambda record: record.insert(0, record[0]), "line 2: the run before it"),
    "after the footer": (
        lambda record: record.append(record[1]),
        f"line {len(ALL) + 3}: no header",
    ),
    "two footers": (lambda record: record.append(record[-1]), f"line {len(ALL) + 3}: no header"),
    "twice the same": (lambda record: record.extend(list(record)), "qkvac report merge"),
    "another status": (changed(1, status="failed"), "were changed"),
    "unknown status": (changed(1, status="fine"), "status"),
    "unknown field": (changed(1, colour="red"), "colour"),
    "unknown subject": (changed(1, subject="torch/jit@cpu"), "line 2: the header has no such"),
    "a huge number": (changed(1, ratio=10**400), "401 digits"),
    "a huge value": (
        changed(1, worst={"index": [0], "value": 10**400, "certified": 0, "error": 0, "bound": 0}),
        "401 digits",
    ),
    "older form": (changed(0, format=1), "format 1"),
    "no form": (changed(0, format=None), "format None"),
    "another id": (changed(0, environment_id="0" * 16), "header was changed"),
    "another machine": (environment_changed, "header was changed"),
    "a wrong declaration": (undeclared, "declaration"),
    "words that are none": (unquoted, "No closing quotation"),
    "folders that are none": (unquoted_folder, "No closing quotation"),
    "a wrong name": (misnamed, "another id"),
    "a subject twice": (twofold, "twice"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_record_that_contradicts_itself_is_refused(tmp_path: Path, name: str) -> None:
    mutate, said = MUTATIONS[name]
    record = [json.loads(text(line)) for line in lines(ALL)]
    mutate(record)
    assert said in refusal(write(tmp_path / "a.jsonl", record))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header"),
        (b"hello\n", "no JSON"),
        (b"[1]\n", "no line of a record"),
        (b"null\n", "no line of a record"),
        (b'{"kind": "page"}\n', "no line of a record"),
        (b'{"kind": ["header"]}\n', "no line of a record"),
        (b'{"kind": "header", "format": NaN}\n', "no JSON"),
        (b'{"kind": "header", "format": 2}\n', "schema"),
        (b'{"kind": "header", "format": "\\ud800"}\n', "no JSON"),
        (b'{"kind": "\xff"}\n', "no JSON"),
        (b"\x1f\x8b\x08\x00\n", "no JSON"),
        (b"[" * 100_000 + b"\n", "no JSON"),
        (b"9" * 100_000 + b"\n", "no "),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    message = refusal(path)
    assert said in message
    assert len(message) < 400 + len(str(path))


def test_a_refusal_quotes_little(tmp_path: Path) -> None:
    record = [json.loads(text(line)) for line in lines(ALL)]
    record[1]["status"] = "y" * 100_000
    path = write(tmp_path / "a.jsonl", record)
    assert len(refusal(path)) < 400 + len(str(path))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.jsonl")
    assert "directory" in refusal(tmp_path)


def test_sizes_are_looked_at_before_anything_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(ALL))
    size = path.stat().st_size
    assert "--max-size" in refusal(path, largest=size - 1)
    assert len(read(path, largest=size).lines) == len(ALL)


def test_a_line_without_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", lines(ALL))
    monkeypatch.setattr(archive, "LONGEST", 5000)
    with path.open("a", encoding="utf-8") as file:
        file.write("x" * 6000)
    assert "longer than 5000 bytes" in refusal(path)


def test_no_path_of_a_record_is_opened(tmp_path: Path) -> None:
    port = tmp_path / "port.py"
    port.write_text("raise SystemExit('was run')", encoding="utf-8")
    subject = Subject("port", "default", "cpu", str(port))
    path = write(tmp_path / "a.jsonl", lines([result(subject=subject)]))
    read(path)
    opened = list[str]()
    watching = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open":
            opened.append(str(arguments[0]))

    # Such a hook cannot be taken away again.
    sys.addaudithook(watch)
    found = read(path)
    watching.clear()
    assert opened == [str(path)]
    assert found.environments[0].subjects[subject.id].port == str(port)


# --- the compiled schema --------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from(["", "inf", "nan", "passed", "B", "exact", "a" * 64, "a" * 64 + "\n", "x"])
    | st.floats(allow_nan=False, width=16),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "index"]), inner)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    """Every place of a JSON value."""
    yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


@settings(max_examples=300)
@given(data=st.data())
def test_the_compiled_schema_says_what_the_schema_says(data: st.DataObject) -> None:
    """Any part of a line is replaced or taken out, and both decide alike."""
    record = [json.loads(text(line)) for line in lines((ALL[0], ALL[1]))]
    line = data.draw(st.sampled_from(record))
    kind = line["kind"]
    for _ in range(data.draw(st.integers(0, 2))):
        *path, last = data.draw(st.sampled_from([p for p in places(line) if p]))
        target = line
        for step in path:
            target = target[step]
        if data.draw(st.booleans()):
            target[last] = data.draw(VALUES)
        else:
            del target[last]
    schema = validation.schema()
    part = {"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]}
    valid = jsonschema.Draft202012Validator(part).is_valid(line)
    assert validation.accepts(kind)(line) == valid
    assert bool(validation.complaint(kind, line)) != valid


def test_every_kind_of_line_is_of_one_definition() -> None:
    schema = validation.schema()
    assert [one["$ref"].rpartition("/")[2] for one in schema["oneOf"]] == list(archive.KINDS)


def test_several_environments_are_read_from_one_file(tmp_path: Path) -> None:
    from qkvac.tests.suite.records import environment

    other = lines([result(subject=JIT)], environment(python="3.12.1"))
    found = read(write(tmp_path / "a.jsonl", lines([result()]), other))
    assert len(found.environments) == 2
    assert [line.result.cell.subject for line in found.lines] == [TORCH, JIT]
    assert [line.result.cell.case for line in found.lines] == [CASE, CASE]
