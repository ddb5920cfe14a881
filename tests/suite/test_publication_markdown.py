"""The summary in Markdown: nothing of a record becomes markup, and nothing is kept back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from qkvac.cells import Result, Status
from qkvac.cli.main import main
from qkvac.publication import markdown
from qkvac.publication.archive import Archive, read
from qkvac.publication.markdown import LIMIT, code, fenced, render
from qkvac.tests.suite.records import (
    CASE,
    HOSTILE,
    JIT,
    TORCH,
    entry,
    environment,
    lines,
    result,
    write,
)
from qkvac.texts import visible

OURS = re.compile(r"(</?details>|</?summary>|[A-Z][A-Za-z0-9 ,]*|\s)*")
"""The HTML that a summary consists of, and titles between it."""

PARSER = MarkdownIt("commonmark").enable("table")


def tokens(text: str) -> Iterator[Token]:
    """All tokens of a Markdown text, inline ones included."""
    for token in PARSER.parse(text):
        yield token
        yield from token.children or ()


def archive(folder: Path, results: list[Result], **run: Any) -> Archive:
    return read(write(folder / "a.jsonl", lines(results, **run)), allow_truncated=True)


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, each cell as its source."""
    found = list[list[str]]()
    for token in PARSER.parse(text):
        if token.type == "tr_open":
            found.append([])
        elif token.type == "inline" and found and token.level > 2:
            found[-1].append(token.content)
    return found


# --- hostile texts --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HOSTILE)
def test_no_text_of_a_record_becomes_markup(tmp_path: Path, word: str) -> None:
    subject = replace(TORCH, backend=word, port=word)
    bad = result(status=Status.FAILED, subject=subject, reason=word, diagnosis=word, detail=word)
    given = [
        bad,
        result(f"q{word}", case=f"{CASE}{word}", status=Status.ERROR, reason=word, detail=word),
        result("Q", status=Status.SKIPPED, reason=word),
        result("K", status=Status.KNOWN_DEVIATION, reason=word),
    ]
    found = archive(tmp_path, given, notes=[word], left_out={word: 3})
    text = render(found)
    harmless = render(archive(tmp_path, [result(status=Status.FAILED)]))
    assert all(c.isprintable() or c == "\n" for c in text)
    headings = {t.content for t in tokens(harmless) if t.type == "inline" and t.level == 1}
    for token in tokens(text):
        assert token.type not in ("link_open", "image", "s_open", "html_inline", "code_block")
        if token.type == "html_block":
            assert OURS.fullmatch(token.content), token.content
        if token.type == "text":
            assert word not in token.content
    assert {t.tag for t in tokens(text) if t.type == "heading_open"} == {"h2", "h3"}
    assert len([t for t in tokens(text) if t.type == "heading_open"]) == 2
    assert headings
    widths = {len(row) for row in cells(text)}
    assert widths == {2, 3, 4, 8}


@given(text=st.text())
def test_code_shows_the_text_and_nothing_else(text: str) -> None:
    shown = " ".join(visible(text).split()).replace("|", r"\u007c")
    inline = [t for t in tokens(f"a {code(text)} b") if t.type not in ("inline",)]
    kinds = [t.type for t in inline if t.type not in ("paragraph_open", "paragraph_close")]
    assume(0 < len(shown) <= markdown.TEXT)
    assert kinds == ["text", "code_inline", "text"]
    (found,) = (t.content for t in inline if t.type == "code_inline")
    assert found == shown


@given(text=st.text(st.characters() | st.sampled_from("`\n|~"), max_size=200))
def test_a_block_shows_the_text_and_nothing_else(text: str) -> None:
    found = list(PARSER.parse(f"{fenced(text)}\nafter\n"))
    assert [t.type for t in found] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert found[0].content == visible(text) + "\n"


@settings(max_examples=50)
@given(text=st.text(st.characters() | st.sampled_from("`\\|"), max_size=40))
def test_a_text_stays_in_its_column(text: str) -> None:
    rows = cells(markdown.table(["a", "b"], [[code(text), "end"]]))
    assert rows[0] == ["a", "b"]
    assert rows[1][-1] == "end"
    assert len(rows[1]) == 2


def test_only_plain_addresses_become_links(tmp_path: Path) -> None:
    given = [
        result("Q", status=Status.KNOWN_DEVIATION, reason="slow (https://example.org/1?a=b#c)"),
        result("K", status=Status.KNOWN_DEVIATION, reason="bad (https://example.org/é`<b>)"),
        result("V", status=Status.KNOWN_DEVIATION, reason="js (javascript:alert)"),
    ]
    text = render(archive(tmp_path, given))
    links = [dict(t.attrs)["href"] for t in tokens(text) if t.type == "link_open"]
    assert links == ["https://example.org/1?a=b#c"]


# --- what is said ---------------------------------------------------------------------------------


def test_a_score_is_passed_of_required_and_says_what_was_not_run(tmp_path: Path) -> None:
    given = [result(f"q{place}", status=status) for place, status in enumerate(Status.ALL)]
    text = render(archive(tmp_path, given, notes=["jax is not installed"], left_out={JIT.id: 41}))
    required = len(Status.ALL) - len(Status.NOT_REQUIRED)
    assert f"**{len(Status.PASSES)} of {required} cells that were run passed.**" in text
    for status in Status.ALL[1:]:
        assert f"1 {status}" in text
    rows = cells(text)
    assert ["skipped", "`because of skipped`", "1"] in rows
    assert ["unsupported", "`because of unsupported`", "1"] in rows
    assert ["not reported", "`q6`", "1"] in rows
    assert ["not there", "`jax is not installed`", ""] in rows
    assert ["left out in this tier", "`jax/jit@cpu`", "of 41 cases"] in rows
    (row,) = (row for row in rows if row[0] == "`torch/eager@cpu`" and len(row) == 8)
    absent = str(len(Status.NOT_REQUIRED))
    assert row[2:7] == [f"{len(Status.PASSES)} / {required}", "6", "1", "1", absent]


@pytest.mark.parametrize(
    ("status", "footer", "said"),
    [
        (Status.PASSED, True, "✅ CONFORMS"),
        (Status.KNOWN_DEVIATION, True, "🟡 CONFORMS WITH KNOWN DEVIATIONS"),
        (Status.FAILED, True, "❌ DEVIATES"),
        (Status.ERROR, True, "❌ NOT RUN"),
        (Status.UNEXPECTED_PASS, True, "❌ UNEXPECTED PASS"),
        (Status.SKIPPED, True, "⚠️ NOTHING PROVED"),
        (Status.PASSED, False, "⚠️ UNFINISHED"),
        (Status.FAILED, False, "❌ DEVIATES"),
    ],
)
def test_the_first_line_is_the_verdict(
    tmp_path: Path, status: str, footer: bool, said: str
) -> None:
    beside = [result("C", f"{CASE}/s1")] if status == Status.KNOWN_DEVIATION else []
    text = render(archive(tmp_path, [result(status=status), *beside], footer=footer))
    assert text.splitlines()[0] == f"## qkvac: {said}"
    assert ("ended early" in text) != footer
    assert ("CONFORMS: torch/eager@cpu computes" in text) == (status == "passed" and footer)


def test_the_largest_error_is_that_of_failures_too(tmp_path: Path) -> None:
    given = [
        result("Q"),
        result("A", status=Status.FAILED, ratio=7.05e13),
        result("C", status=Status.KNOWN_DEVIATION, clause="contract", ratio=0.0),
    ]
    rows = cells(render(archive(tmp_path, given)))
    (row,) = (row for row in rows if len(row) == 8 and row[0] == "`torch/eager@cpu`")
    assert row[2] == "1 / 3"
    assert row[7] == "7e+13, 1 without"


def test_cells_that_were_planned_and_not_run_are_counted(tmp_path: Path) -> None:
    text = render(archive(tmp_path, [result()], footer=False, cells=12))
    assert "11 planned cells have no result" in text


def test_every_failure_has_its_diagnosis_and_its_command(tmp_path: Path) -> None:
    text = render(archive(tmp_path, [result(), result("A", status=Status.FAILED)]))
    assert "C equals the result with 1/d instead of 1/√c" in text
    assert f"again: qkvac run --backend torch/eager --case {CASE} --dtype float32" in text
    assert "worst at [0, 1]: 0.75, certified 0.5, error 0.25 = 400 × the bound" in text


def test_several_environments_are_told_apart(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        lines(
            [result(digest="a" * 64)],
            environment(versions={"torch": "2.4.1"}),
            [entry(TORCH, "2.4.1")],
        ),
        lines([result(digest="b" * 64)]),
        lines([result(digest="c" * 64, subject=JIT)], environment(cpu="B")),
    )
    rows = cells(render(read(path)))
    assert [row[:3] for row in rows if len(row) == 9][1:] == [
        ["`torch 2.4.1`", "`torch/eager@cpu`", "`torch 2.4.1`"],
        ["`torch 2.13.0`", "`torch/eager@cpu`", "`torch 2.13.0`"],
        ["`jax 2.13.0`", "`jax/jit@cpu`", "`jax 2.13.0`"],
    ]
    assert [
        "`torch/eager@cpu`",
        "`2.4.1 → 2.13.0`",
        "`attention float32 C`",
        "1 of 1",
        "0",
        "0.12 → 0.12",
    ] in rows


# --- how long it may become -----------------------------------------------------------------------


def test_what_does_not_fit_is_said_to_be_left_out(tmp_path: Path) -> None:
    """Many kinds of failure, each as long as it may be, in letters of four bytes."""
    given = [
        result(
            "C",
            case=f"attention/normal-{place}/33x20x7",
            status=Status.ERROR,
            reason=f"{place} " + "𝔠" * 2000,
        )
        for place in range(300)
    ]
    text = render(archive(tmp_path, given))
    assert len(text.encode()) <= LIMIT
    shown = text.count("```text")
    assert 50 < shown < 300
    assert f"**{300 - shown} more kinds of failure are left out here" in text
    assert text.rstrip().endswith("or speed.")
    assert [t.type for t in tokens(text)].count("fence") == shown


def test_long_tables_are_bounded_too(tmp_path: Path) -> None:
    words = [f"{place} " + "𝔠" * 1000 for place in range(1000)]
    given = [
        result(f"q{place}", status=status, reason=word)
        for place, word in enumerate(words)
        for status in (Status.SKIPPED if place % 2 else Status.KNOWN_DEVIATION,)
    ]
    sections = [
        lines(given, environment(threads=count, settings=dict(zip(words, words, strict=True))))
        for count in range(1, 4)
    ]
    text = render(read(write(tmp_path / "a.jsonl", *sections)))
    assert len(text.encode()) <= LIMIT
    assert "rows more; the record has them" in text


def test_the_command_writes_the_summary(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = write(tmp_path / "a.jsonl", lines([result()], footer=False))
    out = tmp_path / "out.md"
    for words in ([], ["-o", str(out)], ["-o", "-"]):
        with pytest.raises(SystemExit) as ended:
            main(["report", "markdown", str(path), *words])
        assert ended.value.code == 0
    assert capsysbinary.readouterr().out == 2 * out.read_bytes()
    assert b"ended early" in out.read_bytes()
