"""The HTML report without a browser: what it counts, and what it says."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvac.cells import Status, Subject
from qkvac.cli.main import main
from qkvac.publication import html
from qkvac.publication.archive import Archive, read
from qkvac.publication.columns import NUMBERS, TEXTS, columns, packed
from qkvac.publication.grids import precision
from qkvac.publication.marks import mark, score
from qkvac.publication.page import page
from qkvac.publication.runs import rows, runs
from qkvac.publication.strips import BOUND, END, LEAST, MARGIN, MOST, place
from qkvac.publication.texts import number
from qkvac.records.conclusion import KNOWN
from qkvac.records.identity import numbered
from qkvac.spec.registry import known_profiles
from qkvac.tests.suite.pages import Skeleton, archive, every_status
from qkvac.tests.suite.records import (
    CASE,
    JIT,
    TORCH,
    entry,
    environment,
    lines,
    result,
    write,
)
from qkvac.texts import parted

PORT = Subject("my_port", "default", "cpu", port="my_port.py")

NOT_RUN = Status.NOT_REQUIRED


# --- the verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "kind", "word"),
    [
        ([Status.PASSED, Status.UNSUPPORTED], "pass", "CONFORMS"),
        ([Status.PASSED, Status.KNOWN_DEVIATION], "known", "CONFORMS WITH KNOWN DEVIATIONS"),
        ([Status.PASSED, Status.CRASH], "fail", "DEVIATES"),
        ([Status.CRASH], "fail", "NOT RUN"),
        ([Status.PASSED, Status.UNEXPECTED_PASS], "fail", "UNEXPECTED PASS"),
        ([Status.INDECISIVE], "open", "NOTHING PROVED"),
        ([Status.UNSUPPORTED], "open", "NOTHING PROVED"),
    ],
)
def test_the_verdict(tmp_path: Path, statuses: list[str], kind: str, word: str) -> None:
    results = [result("C", f"{CASE}/s{n}", status=s) for n, s in enumerate(statuses, 1)]
    found = archive(tmp_path, results)
    (report,) = found.reports.values()
    verdict = page(found).verdict
    assert verdict.conclusion is report.conclusion is found.conclusion
    assert (verdict.conclusion.kind, verdict.conclusion.word) == (kind, word)
    assert f"{word}: {verdict.said}" == report.sentence


def test_a_strict_run_fails_by_what_is_suspicious(tmp_path: Path) -> None:
    results = [result("C"), result("C", f"{CASE}/s1", grade="suspicious")]
    assert page(archive(tmp_path, results)).verdict.conclusion.kind == "pass"
    strict = page(archive(tmp_path, results, strict=True))
    assert strict.verdict.conclusion.kind == "fail"
    assert (strict.verdict.passed, strict.verdict.required) == (1, 2)
    assert strict.overview[0].total.kind == "failed"
    assert strict.troubles[0].first.result.grade == "suspicious"


def test_a_run_that_ended_early_does_not_conform_yet(tmp_path: Path) -> None:
    whole = page(archive(tmp_path, [result("C")]))
    cut = page(archive(tmp_path, [result("C")], footer=False))
    assert whole.verdict.conclusion.kind == "pass"
    assert cut.verdict.conclusion.kind == "open"
    assert cut.truncated
    text = Skeleton(html.render(archive(tmp_path, [result("C")], footer=False))).text
    assert "Incomplete. A run ended before its time" in text
    assert "Incomplete" not in Skeleton(html.render(archive(tmp_path, [result("C")]))).text


def test_scores_are_passed_of_required_everywhere(tmp_path: Path) -> None:
    results = every_status()
    required = [r for r in results if r.status not in NOT_RUN]
    found = page(archive(tmp_path, results))
    for part in (found.verdict, found.overview[0].total, found.grids[0].total):
        assert (part.passed, part.required) == (len(Status.PASSES), len(required))
    assert sum(c.cells for c in found.verdict.counts) == len(required)
    assert sum(c.cells for c in found.verdict.not_run) == len(NOT_RUN)
    assert f"{len(Status.PASSES)} of {len(required)} required cells passed" in " ".join(
        Skeleton(html.render(archive(tmp_path, results))).text.split()
    )


def test_every_failure_is_placed_and_explained(tmp_path: Path) -> None:
    results = [
        *(result("A", f"{CASE}/s{n}", subject=PORT, status=Status.FAILED) for n in range(1, 4)),
        result("C", subject=PORT, status=Status.FAILED, diagnosis="another story"),
        result("C", "embedding/normal/6x5x9x3", subject=PORT, status=Status.CRASH),
        result("C"),
    ]
    found = page(archive(tmp_path, results))
    first, second = found.places
    assert (first.subject, first.profile, first.quantities, first.cells) == (
        *("my_port@cpu", "attention"),
        *("A, C", 4),
    )
    assert first.why == f"{results[0].diagnosis} (and 1 more)"
    assert (second.profile, second.why) == ("embedding", "because of crash")
    shown = [i.result.cell.id for trouble in found.troubles for i in trouble.instances]
    assert sorted(shown) == sorted(r.cell.id for r in results if r.status in Status.BAD)
    trouble = next(t for t in found.troubles if t.first.result.cell.quantity == "A")
    assert "worst at [0, 1]: 0.75, certified 0.5" in trouble.first.where
    case = trouble.first.result.cell.case
    assert trouble.command == (
        f"qkvac check my_port.py --case {case} --dtype float32 --seeds {case[-1]}"
    )


def test_what_was_not_run_is_counted_by_reason(tmp_path: Path) -> None:
    results = [
        *(result("C", f"{CASE}/s{n}", status=Status.UNSUPPORTED, reason="masks") for n in (1, 2)),
        result("C", f"{CASE}/s3", subject=JIT, status=Status.UNSUPPORTED, reason="masks"),
        result("C", f"{CASE}/s4", status=Status.SKIPPED, reason="no compiler"),
        result("C"),
    ]
    found = page(archive(tmp_path, results))
    assert [(a.status, a.reason, a.cells) for a in found.absences] == [
        (Status.UNSUPPORTED, "masks", 3),
        (Status.SKIPPED, "no compiler", 1),
    ]
    assert found.absences[0].subjects == "torch/eager@cpu, jax/jit@cpu"


def test_steps_on_the_way_are_unsupported_for_the_reason_of_their_case(tmp_path: Path) -> None:
    layouts = [
        result(name, f"{CASE}/s{n}", status=Status.UNSUPPORTED, reason="layouts")
        for name in ("Q", "A", "C")
        for n in (1, 2)
    ]
    absent = [
        result("C", f"{profile}/normal/6x3x2", status=Status.UNSUPPORTED, last=False, reason=reason)
        for profile in ("causal_attention", "dot_product_attention")
        for reason in (f"no function {profile}",)
    ]
    found = page(archive(tmp_path, [result("C"), *layouts, *absent])).absences
    assert [(a.reason, a.cells, a.profiles) for a in found] == [
        ("layouts", 6, "attention"),
        ("no function", 2, "dot_product_attention, causal_attention"),
    ]


def test_known_deviations_keep_their_links_and_no_others(tmp_path: Path) -> None:
    reasons = ["wrong (https://example.org/issues/7)", "wrong too (javascript:alert(1))"]
    results = [
        result("C", f"{CASE}/s{n}", status=Status.KNOWN_DEVIATION, reason=reason)
        for n, reason in enumerate(reasons, 1)
    ]
    results.append(result("C"))
    found = page(archive(tmp_path, results)).known
    assert {(k.reason, k.link) for k in found} == {
        ("wrong", "https://example.org/issues/7"),
        ("wrong too (javascript:alert(1))", ""),
    }
    links = [
        v for n, v in Skeleton(html.render(archive(tmp_path, results))).attributes if n == "href"
    ]
    assert [link for link in links if not link.startswith("#")] == ["https://example.org/issues/7"]


# --- the matrix ---------------------------------------------------------------------------------


def test_a_mark_is_the_worst_of_its_cells() -> None:
    passed = [result(grade=grade, ratio=r) for grade, r in (("exact", 0.0), ("faithful", 0.5))]
    assert mark(passed).word == "faithful"
    assert mark(passed).ratio == 0.5
    assert mark([*passed, result(status=Status.INDECISIVE)]).word == "faithful"
    assert mark([*passed, result(status=Status.KNOWN_DEVIATION)]).kind == "known"
    failed = mark([*passed, result(status=Status.KNOWN_DEVIATION), result(status=Status.FAILED)])
    assert (failed.word, failed.kind, failed.passed, failed.required) == ("failed", "failed", 2, 4)
    assert mark([]).word == ""
    assert score([result(status=s) for s in NOT_RUN]) == (0, 0)


def test_precision_is_that_of_the_least_precise_quantity(tmp_path: Path) -> None:
    bits = {"Q": (24.0, 23.0, 24.5), "A": (22.0, 9.0, 23.0), "C": (23.5, 23.5, 23.5)}
    results = [
        result(name, f"{CASE}/s{n}", bits=value)
        for name, values in bits.items()
        for n, value in enumerate(values, 1)
    ]
    (row,) = rows(runs(archive(tmp_path, results)))
    found = precision(row, row.results, "float32")
    assert found is not None
    assert (found.quantity, found.bits, found.claimed) == ("A", 22.0, 24)
    assert precision(row, [replace(r, bits=None) for r in results], "float32") is None


def test_equal_bits_have_equal_letters(tmp_path: Path) -> None:
    third = Subject("numpy", "eager", "cpu")
    results = [
        result("C", case, subject=subject, digest=digit * 64)
        for subject, digits in ((TORCH, "ab"), (JIT, "ac"), (third, "ab"))
        for case, digit in zip((f"{CASE}/s1", f"{CASE}/s2"), digits, strict=True)
    ]
    (found,) = page(archive(tmp_path, results)).agreements
    letters = {row.subject: letter for row, (letter,) in found.rows}
    assert letters[TORCH.id] == letters[third.id] != letters[JIT.id]
    assert letters[TORCH.id].shared  # type: ignore[union-attr]
    assert not letters[JIT.id].shared  # type: ignore[union-attr]
    assert found.columns[0].cases == 2


def test_letters_and_rows_are_those_of_the_terminal_whatever_came_first(tmp_path: Path) -> None:
    subjects = [TORCH, JIT, Subject("numpy", "eager", "cpu")]
    results = [
        result(name, subject=subject, digest=digit * 64)
        for subject, digit in zip(subjects, "aba", strict=True)
        for name in ("Q", "C")
    ]
    entries = [entry(subject) for subject in subjects]
    found = page(archive(tmp_path, results[::-1], entries=entries))
    (report,) = archive(tmp_path, results, entries=entries).reports.values()
    (agreement,) = found.agreements
    assert agreement.columns == report.identities
    assert [row.subject for row, _ in agreement.rows] == [subject.id for subject in subjects]
    assert [[letter.letter for letter in row if letter] for _, row in agreement.rows] == [
        *(["A", "A"], ["B", "B"], ["A", "A"])
    ]


def test_letters_do_not_end_at_z() -> None:
    found = [numbered(place) for place in range(1000)]
    assert found[:2] == ["A", "B"]
    assert found[25:28] == ["Z", "AA", "AB"]
    assert len(set(found)) == 1000


@given(st.floats(min_value=0, allow_nan=False), st.floats(min_value=0, allow_nan=False))
def test_strips_keep_the_order_of_ratios(one: float, other: float) -> None:
    assert MARGIN <= place(one) <= END
    assert place(min(one, other)) <= place(max(one, other))


def test_strips_are_logarithmic_on_both_sides_of_the_bound() -> None:
    for powers in (range(LEAST, 1), range(MOST + 1)):
        steps = [place(10.0**power) for power in powers]
        gaps = {after - before for before, after in pairwise(steps)}
        assert max(gaps) - min(gaps) <= 1, "up to a pixel"
    assert place(10.0**LEAST) == place(0) == MARGIN
    assert place(1.0) == BOUND
    assert place(10.0**MOST) == place(math.inf) == END
    assert place(100.0) < place(7e13) < END, "crosses do not pile up"


def test_a_ratio_beyond_its_bound_is_a_cross(tmp_path: Path) -> None:
    results = [
        result("C", ratio=0.5),
        result("C", subject=JIT, status=Status.FAILED, ratio=40.0),
        result("A", subject=JIT, status=Status.FAILED, clause="contract", ratio=0.0),
    ]
    ((family,),) = [chart.families for chart in page(archive(tmp_path, results)).charts]
    (strip,) = family.strips
    assert strip is not None
    assert strip.within == f"M{place(0.5)} 5v8"
    assert f"M{place(40.0) - 3} " in strip.beyond
    assert (strip.largest, strip.who, strip.quantity) == (40.0, "jax/jit", "C")
    assert strip.uncertain == 1
    assert strip.without


def test_what_is_not_finite_has_a_mark_and_no_ratio(tmp_path: Path) -> None:
    failing = result("A", status=Status.FAILED, clause="contract", ratio=0.0)
    (chart,) = page(archive(tmp_path, [failing])).charts
    assert (chart.largest, chart.uncertain) == (None, 1)
    text = html.render(archive(tmp_path, [failing]))
    assert f'class="cross" d="{chart.strips[0].without}"' in text
    assert "1 family, 1 cell without a ratio" in " ".join(Skeleton(text).text.split())
    (plain,) = page(archive(tmp_path, [result()])).charts
    assert (plain.largest, plain.uncertain, plain.strips[0].without) == (0.125, 0, "")


def test_declarations_that_are_alike_stand_once(tmp_path: Path) -> None:
    raw = {"conventions": {"empty_row": "mean"}, "arithmetic": {"softmax": "fused"}}
    others = [TORCH, JIT, PORT]
    entries = [entry(TORCH), entry(JIT, raw=raw), entry(PORT, raw=raw)]
    found = page(archive(tmp_path, [result(subject=s) for s in others], entries=entries))
    plain, fused = found.declarations
    assert [row.subject for row in fused.rows] == [JIT.id, PORT.id]
    assert [choice.value for choice in fused.declared.choices if choice.own] == ["mean"]
    assert fused.declared.arithmetic == (("float32", "softmax fused"),)
    assert not any(choice.own for choice in plain.declared.choices)
    assert plain.declared.supports == "all inputs"


@pytest.mark.parametrize("name", known_profiles())
def test_every_profile_can_be_on_a_page(tmp_path: Path, name: str) -> None:
    quantity = known_profiles()[name].last
    found = archive(tmp_path, [result(quantity, f"{name}/normal/33x20x7")])
    assert page(found).profiles == (name,)
    text = Skeleton(html.render(found))
    assert name in text.text
    assert ("math",) in text.tags


# --- several environments -----------------------------------------------------------------------


@pytest.fixture
def merged(tmp_path: Path) -> Archive:
    sections = [
        lines(
            [result("C", digest=digit * 64), result("C", subject=JIT)],
            environment(versions={"torch": version}, cpu_features=features),
            [entry(TORCH, version), entry(JIT, "0.10.2")],
        )
        for version, digit, features in (
            ("2.4.1", "a", ["AVX2"]),
            ("2.13.0", "b", ["AVX2"]),
            ("2.14.0", "a", ["AVX2", "AVX512F"]),
        )
    ]
    return read(write(tmp_path / "m.jsonl", *sections))


def test_environments_are_told_apart_by_what_differs(merged: Archive) -> None:
    found = page(merged)
    names = ["torch 2.4.1", "torch 2.13.0", "torch 2.14.0"]
    assert [place.label for place in found.environments] == names
    assert [place.title for place in found.environments] == [
        "torch 2.4.1, 1 processor features",
        "torch 2.13.0, 1 processor features",
        "torch 2.14.0, 2 processor features",
    ]
    for place_ in found.environments:
        assert [name for name, _, differs in place_.facts if differs] == ["torch"]
    assert [(row.subject, row.run.label) for row in found.rows] == [
        *((TORCH.id, label) for label in names),
        *((JIT.id, label) for label in names),
    ]


def test_a_change_of_bits_is_told_where_it_means_something(merged: Archive) -> None:
    text = " ".join(Skeleton(html.render(merged)).text.split())
    assert "1 of 1 changed" in text
    assert "not comparable other processor features" in text


def test_one_environment_that_fails_is_named(tmp_path: Path) -> None:
    sections = [
        lines([result("C"), result("A", status=status)], environment(threads=threads))
        for threads, status in ((1, Status.PASSED), (2, Status.FAILED))
    ]
    found = page(read(write(tmp_path / "m.jsonl", *sections)))
    assert found.verdict.conclusion.kind == "fail"
    assert found.verdict.said == "of 2 environments, something deviates in threads 2."
    assert [place.environment for place in found.places] == ["threads 2"]
    assert [place.verdict.conclusion.kind for place in found.environments] == ["pass", "fail"]


def test_known_deviations_of_several_environments_are_named(tmp_path: Path) -> None:
    sections = [
        lines(
            [result("C"), result("A", status=status, clause="contract", reason="NaN from 2^63 on")],
            environment(threads=threads),
        )
        for threads, status in (
            (1, Status.PASSED),
            (2, Status.KNOWN_DEVIATION),
            (3, Status.KNOWN_DEVIATION),
        )
    ]
    found = page(read(write(tmp_path / "m.jsonl", *sections)))
    assert found.verdict.conclusion is KNOWN
    assert found.verdict.said == (
        "what was run agrees with the spec in all 3 environments, but torch/eager@cpu with "
        "threads 2 and threads 3 deviates in A of attention (contract: NaN from 2^63 on; 2 cells)."
    )
    text = " ".join(Skeleton(html.render(read(tmp_path / "m.jsonl"))).text.split())
    assert "1 known deviation in 2 cells, looked into" in text
    assert [place.verdict.conclusion.kind for place in found.environments] == [
        *("pass", "known", "known")
    ]


def test_another_version_of_the_spec_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines([result()]))
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'"spec_version":"[^"]*"', '"spec_version":"0.1"', text), "utf-8")
    shown = Skeleton(html.render(read(path))).text
    assert "Another version of the spec" in shown
    assert "Another version" not in Skeleton(html.render(archive(tmp_path, [result()]))).text


# --- the cells ----------------------------------------------------------------------------------


def test_all_cells_come_back_from_the_page(tmp_path: Path) -> None:
    results = [*every_status(), result("A", ratio=math.inf), result("Q", ratio=1.23456e-5)]
    found = archive(tmp_path, results)
    text = html.render(found)
    data = re.search(r'id="data">([^<]*)</script>', text)
    assert data is not None
    table = json.loads(gzip.decompress(base64.b64decode(data[1])))
    assert table["cells"] == len(results)
    (own,) = found.by_environment.values()
    for number_, told in enumerate(own):

        def value(name: str, row: int = number_) -> Any:
            column = table["columns"][name]
            if isinstance(column, list):
                return column[row]
            index = column["index"][row]
            return None if index is None else column["values"][index]

        id = "-".join(map(value, ("subject", "dtype", "case", "quantity")))
        assert id == told.cell.id
        for name in TEXTS:
            assert value(name) == getattr(told, name)
        for name in NUMBERS:
            expected = getattr(told, name)
            if expected is None or told.clause == "contract":
                assert value(name) in (None, expected)
            else:
                assert float(value(name)) == pytest.approx(expected, rel=5e-3)
        if told.worst:
            assert value("entry") == told.worst["index"]
            assert float(value("value")) == pytest.approx(told.worst["value"], rel=1e-8)


def test_the_data_cannot_end_its_element(tmp_path: Path) -> None:
    results = [result(status=Status.FAILED, reason="</script><script>alert(1)</script>")]
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packed(runs(archive(tmp_path, results))))


def test_what_broke_the_contract_was_not_compared(tmp_path: Path) -> None:
    results = [result(status=Status.FAILED, clause="contract", ratio=0.0)]
    table = columns(runs(archive(tmp_path, results)))["columns"]
    assert table["ratio"] == [None]


# --- small things -------------------------------------------------------------------------------


def test_equal_records_make_equal_pages(tmp_path: Path) -> None:
    results = every_status()
    assert html.render(archive(tmp_path, results)) == html.render(archive(tmp_path, results))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.125, "0.12"),
        (0.9, "0.90"),
        (0.0012, "0.0012"),
        (123456.0, "1.2e+05"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_addresses_are_parted_from_reasons() -> None:
    assert parted("wrong (https://a.b/c)") == ("wrong", "https://a.b/c")
    assert parted("wrong (not reported)") == ("wrong (not reported)", "")


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = write(tmp_path / "a.jsonl", lines([result()]))
    with pytest.raises(SystemExit) as ended:
        main(["report", "html", str(record), "-o", str(tmp_path / "a.html")])
    assert ended.value.code == 0
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert text == html.render(read(record))
