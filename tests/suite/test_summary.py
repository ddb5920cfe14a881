"""The report and its summary: counts, exit status, classes of equal bits, and words."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from qkvac.cells import Cell, Result, Status, Subject
from qkvac.diagnosis.failures import command, explain, groups
from qkvac.records.conclusion import DEVIATES, KNOWN, NOT_RUN
from qkvac.records.deviations import Deviation
from qkvac.records.identity import Identity, identities
from qkvac.records.report import Report
from qkvac.records.summary import model_words, plain, show
from qkvac.records.words import NOT_PROVED
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import profiles_with_cases
from qkvac.spec.registry import forward_profiles, gradient_profiles, known_profiles
from qkvac.subjects.roster import Entry, Roster
from qkvac.terminal import Terminal

ONE = Subject("my_port", "default", "cpu", "my port.py")
JIT = Subject("jax", "jit", "cpu")
TORCH = Subject("torch", "eager", "cuda:0")


def result(
    quantity: str = "C",
    status: str = Status.PASSED,
    subject: Subject = ONE,
    dtype: str = "float32",
    case: str = "normal/6x3x2",
    profile: str = "attention",
    **fields: Any,
) -> Result:
    passed = status == Status.PASSED
    defaults = {"grade": "conforming" if passed else None, "decisive": passed, "ratio": 0.25}
    cell = Cell(subject, dtype, f"{profile}/{case}", quantity)
    return Result(cell, status, **{**defaults, "last": quantity == "C", **fields})


# --- exit status -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(Status.BAD))
def test_anything_bad_is_1(status: str) -> None:
    report = Report((result(), result("A", status)))
    assert report.exit_status == 1
    assert not report.sentence.startswith("CONFORMS")
    if status == Status.UNEXPECTED_PASS:
        assert "a known deviation of my_port@cpu is gone" in report.sentence
    elif status in Status.UNANSWERED:
        said = f"DEVIATES: my_port@cpu gives no answer in 1 case ({status})."
        assert report.sentence == said
    else:
        assert report.sentence == "DEVIATES: my_port@cpu deviates from the spec in A."


def test_what_never_answered_was_not_run_and_says_why() -> None:
    failing = [
        result(name, Status.ERROR, case=case, reason="TypeError: attention() takes 1 argument")
        for case in ("normal/6x3x2", "normal/33x20x7")
        for name in ("A", "C", "repeat")
    ]
    unasked = result("C", Status.UNSUPPORTED, case="batch/6x3x2", reason="batches")
    report = Report((*failing, unasked))
    assert report.exit_status == 1
    assert report.conclusion is NOT_RUN
    assert report.sentence == (
        "NOT RUN: my_port@cpu never answered: TypeError: attention() takes 1 argument."
    )
    beside = Report((*failing, result(subject=JIT), result("A", Status.FAILED, subject=JIT)))
    assert beside.sentence == (
        "DEVIATES: jax/jit@cpu deviates from the spec in A; my_port@cpu never answered: "
        "TypeError: attention() takes 1 argument."
    )
    assert Report((*failing, result("A", case="ties/6x3x2"))).conclusion is DEVIATES


def test_known_deviations_are_a_conclusion_that_names_who_deviates_in_what_and_how() -> None:
    nan = "XLA fuses: NaN from 2^63 on (https://example.org/issues/7)"
    known = [
        result(name, Status.KNOWN_DEVIATION, JIT, case=case, clause="contract", reason=nan)
        for name in ("A", "C")
        for case in ("lookup-huge/6x3x2", "key-cliff/6x3x2")
    ]
    report = Report((result(), result(subject=JIT), *known))
    assert report.exit_status == 0
    assert report.conclusion is KNOWN
    assert report.sentence == (
        "CONFORMS WITH KNOWN DEVIATIONS: my_port@cpu and jax/jit@cpu compute the same attention "
        "as the spec in float32, but jax/jit@cpu deviates in A and C of attention (contract: XLA "
        "fuses: NaN from 2^63 on; 4 cells)."
    )
    many = [
        result("C", Status.KNOWN_DEVIATION, JIT, case=f"case/{n}", clause="bound", reason=f"{n}")
        for n in range(9)
    ]
    sentence = Report((result(), *known, *many)).sentence
    assert sentence.endswith("; 7 more known deviations in 7 cells.")


def test_an_interrupted_run_claims_nothing() -> None:
    report = Report((result(),), planned=3)
    assert report.sentence == "UNFINISHED: nothing failed yet, but 2 cells were not run."


def test_results_that_nothing_can_tell_are_named_in_the_verdict() -> None:
    unclear = result("C", Status.INDECISIVE, case="hot/33x20x7")
    assert Report((result(), unclear)).sentence.endswith("; C is too coarse to tell in 1 case.")
    assert "coarse" not in Report((result(), result("A", Status.INDECISIVE))).sentence


def test_suspicious_cells_are_named_and_do_not_count_as_passed_when_strict() -> None:
    results = (result(), result("A", grade="suspicious", z=9.0, rms=1.0))
    relaxed = " ".join(plain(Report(results)).split())
    assert "suspicious: 1 cells, first attention/normal/6x3x2 A" in relaxed
    assert "2 of 2 cells passed" in relaxed
    assert "1 of 2 cells passed" in " ".join(plain(Report(results, strict=True)).split())


@pytest.mark.parametrize("status", sorted(set(Status.ALL) - Status.BAD))
def test_nothing_else_is(status: str) -> None:
    assert Report((result(), result("A", status))).exit_status == 0


def test_suspicious_results_fail_only_when_strict() -> None:
    results = (result(), result("A", grade="suspicious", z=9.0, rms=1.0))
    assert Report(results).exit_status == 0
    assert Report(results, strict=True).exit_status == 1


@pytest.mark.parametrize(
    "results",
    [
        (),
        (result("C", Status.INDECISIVE),),
        (result("C", Status.UNSUPPORTED),),
        (result("C", decisive=False),),
        (result("A"), result("C", Status.INDECISIVE)),
        (result(), result("C", Status.UNSUPPORTED, dtype="float64")),
        (result(), result("C", Status.INDECISIVE, subject=JIT)),
        (result("C", Status.SKIPPED),),
    ],
)
def test_nothing_decisive_is_3(results: tuple[Result, ...]) -> None:
    report = Report(results)
    assert report.exit_status == 3
    assert "NOTHING PROVED" in report.sentence
    assert not report.passed


def test_what_a_machine_cannot_run_and_what_is_not_offered_do_not_count() -> None:
    skipped = result("C", Status.SKIPPED, subject=JIT)
    refused = result("C", Status.UNSUPPORTED, dtype="float64", last=False)
    assert Report((result(), skipped, refused)).exit_status == 0
    beside = result("C", Status.UNSUPPORTED, subject=JIT, case="hot/6x3x2")
    assert Report((result(), skipped, beside)).exit_status == 0
    coarse = result("C", Status.INDECISIVE, subject=JIT, case="hot/6x3x2")
    assert Report((result(), skipped, beside, coarse)).exit_status == 3


def test_what_a_mode_of_an_adapter_declines_counts_for_ports_alone() -> None:
    declined = result("C", Status.UNSUPPORTED, subject=JIT, profile="causal_attention")
    assert Report((result(), declined)).exit_status == 0
    tried = result("C", Status.INDECISIVE, subject=JIT, profile="causal_attention")
    assert Report((result(), declined, tried)).exit_status == 3
    of_a_port = result("C", Status.UNSUPPORTED, profile="causal_attention")
    assert Report((result(), of_a_port)).exit_status == 3


def test_a_listed_deviation_is_proved_but_no_pass() -> None:
    known = result("C", Status.KNOWN_DEVIATION, subject=JIT)
    assert Report((result(), known)).exit_status == 0
    assert Report((known,)).exit_status == 3


def test_a_pass_says_what_passed() -> None:
    report = Report((result(), result(dtype="float64"), result(subject=JIT)))
    assert report.sentence == (
        "CONFORMS: my_port@cpu and jax/jit@cpu compute the same attention as the spec in "
        "float32 and float64."
    )


# --- identity --------------------------------------------------------------------------------


def answers(subject: Subject, *digests: str) -> list[Result]:
    return [
        result(subject=subject, case=f"case/{i}", digest=digest)
        for i, digest in enumerate(digests)
        if digest
    ]


def test_classes_are_of_equal_bits_in_the_cases_that_all_ran() -> None:
    other = Subject("torch", "compile", "cpu")
    results = [*answers(ONE, "a", "b", "c"), *answers(JIT, "a", "x", "c"), *answers(other, "a")]
    names = ("my_port@cpu", "jax/jit@cpu", "torch/compile@cpu")
    assert identities(results) == (Identity("attention", "float32", "C", 1, (names,)),)
    (two,) = identities(results[:6])
    assert two == Identity("attention", "float32", "C", 3, (("my_port@cpu",), ("jax/jit@cpu",)))
    assert [two.letter(id) for id in ("my_port@cpu", "jax/jit@cpu", "?")] == ["A", "B", ""]


def test_one_subject_has_nothing_to_agree_with() -> None:
    assert identities(answers(ONE, "a", "b")) == ()
    assert identities([*answers(ONE, "a"), *answers(JIT, "", "a")]) == ()


# --- words -----------------------------------------------------------------------------------


FAILURE = result(
    "A",
    Status.FAILED,
    clause="local",
    reason="3 of 36 entries lie outside the bound",
    worst={"index": [1, 2], "value": 0.5, "certified": 0.25, "error": 0.25, "bound": 0.001},
    diagnosis="the first equation that goes wrong is A[n, n] = softmax(Ω / sqrt(c), axis=1)",
)


def test_a_failure_says_what_where_how_much_and_how_to_see_it_again() -> None:
    text = explain(FAILURE)
    for part in (
        "my_port@cpu · float32 · attention/normal/6x3x2 · A: failed, local",
        "3 of 36 entries",
        "worst at [1, 2]: 0.5, certified 0.25, error 0.25 = 250 × the bound 0.001",
        "the first equation that goes wrong is A[n, n]",
        "again: qkvac check 'my port.py' --case attention/normal/6x3x2 --dtype float32",
    ):
        assert part in text


def test_a_failure_is_broken_at_words_and_its_command_is_not() -> None:
    long = replace(FAILURE, reason="lies " * 30, diagnosis="equals the result with " * 9)
    text = explain(long, [long], 60)
    (again,) = (line for line in text.splitlines() if line.startswith("    again:"))
    assert again.endswith(command(long))
    assert all(len(line) <= 60 for line in text.splitlines() if line != again)
    words = "".join(explain(long, [long]).split())
    assert "".join(text.split()) == words
    narrow = plain(Report((long,)), 60)
    assert all(len(line) <= 60 for line in narrow.splitlines() if "again:" not in line)


def test_what_never_answered_is_of_no_quantity_and_said_once() -> None:
    error = result("Q", Status.ERROR, reason="TypeError: no", detail="TypeError: no\n")
    assert explain(error).splitlines()[:2] == [
        "my_port@cpu · float32 · attention/normal/6x3x2: error",
        "    TypeError: no",
    ]
    assert explain(error).count("TypeError") == 1


def test_the_command_names_backend_device_and_draws() -> None:
    text = command(result(subject=TORCH, case="normal/6x3x2/s3"))
    assert text == (
        "qkvac run --backend torch/eager --case attention/normal/6x3x2/s3 --dtype float32 "
        "--seeds 3 --device cuda:0"
    )


def test_bits_and_deaths_are_explained_too() -> None:
    exact = result("Q", Status.FAILED, clause="exact", worst={**FAILURE.worst, "bound": 0.0})  # type: ignore[dict-item]
    assert "none allowed" in explain(exact)
    crash = result(
        "Q", Status.CRASH, reason="killed by SIGSEGV", detail="\n".join(map(str, range(99)))
    )
    text = explain(crash)
    assert "| 98" in text
    assert "| 3\n" not in text
    assert "z = 9.0" in explain(result("A", grade="suspicious", z=9.0, rms=1.0))


def test_failures_that_are_alike_are_told_once() -> None:
    more = [result("A", Status.FAILED, clause="local", case=f"hot/{i}") for i in range(5)]
    deaths = [result(q, Status.CRASH, reason="gone", ratio=None) for q in "QKV"]
    assert [len(group) for group in groups([FAILURE, *more, *deaths])] == [6, 3]
    text = plain(Report((FAILURE, *more, *deaths)))
    assert "alike in hot/0, hot/1, hot/2 and 2 more" in text
    assert text.count("again:") == 2


def test_what_a_call_does_to_its_inputs_stands_first() -> None:
    found = [
        result("A", Status.FAILED, clause="local"),
        result("unchanged", Status.FAILED, clause="metamorphic"),
        result("C", Status.FAILED, clause="bound"),
    ]
    text = plain(Report(tuple(found)))
    places = [text.index(f"· {name}: failed") for name in ("unchanged", "A", "C")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scores": "float16"}, "scores in float16"),
        ({"elementwise": "bfloat16"}, "elementwise operations in bfloat16"),
        ({"operands": "tfloat32"}, "multiplies tfloat32"),
        ({"storage": "float16"}, "stored as float16"),
        ({"blocks": 64}, "blocks of 64 keys"),
        ({"truncates": True}, "cuts results off"),
        ({"flushes": True}, "flushes subnormals"),
        ({"softmax": "fused"}, "softmax fused"),
    ],
)
def test_every_declaration_is_printed(fields: dict[str, object], words: str) -> None:
    assert words in model_words(Arithmetic.for_dtype("float32", fields), "float32")
    assert words not in model_words(Arithmetic.for_dtype("float32"), "float32")


def test_one_port_is_shown_by_quantity_and_dtype() -> None:
    text = plain(Report((result("Q"), result(dtype="float64", ratio=0.5), result("repeat"))))
    lines = [line.split() for line in text.splitlines()]
    assert ["float64", "float32"] in lines
    assert ["C", "conforming", "0.5"] in lines
    assert ["repeat", "conforming", "0.25"] in lines
    assert ["passed", "1/1", "2/2"] in lines


def test_several_subjects_are_shown_side_by_side() -> None:
    same = [
        result(subject=subject, digest="a") for subject in (JIT, Subject("numpy", "eager", "cpu"))
    ]
    text = plain(Report((*same, result("A", Status.FAILED, subject=JIT, clause="local"))))
    assert "jax/jit" in text
    assert "numpy/eager" in text
    assert ".25 A" in text
    assert "failed" in text
    assert "bit for bit equal" in " ".join(text.split())


def test_the_summary_says_what_was_left_out_and_what_is_not_proved() -> None:
    report = Report(
        (
            result(),
            result("Ω", Status.NOT_REPORTED),
            result("C", Status.UNSUPPORTED, case="empty/0x1x1", reason="empty"),
        ),
        Roster((), ("jax is not installed",)),
        left_out={"jax/jit@cpu": 7},
        warnings=("the cache cannot be written",),
        planned=10,
    )
    text = " ".join(plain(report).split())
    for part in (
        "jax is not installed",
        "not reported (Ω): 1 cells of my_port@cpu",
        "unsupported (empty): 1 cells of my_port@cpu",
        "left out in this tier: 7 cases of jax/jit@cpu",
        "--tier full runs them",
        "warning: the cache cannot be written",
        "1 of 1 cells passed (1 not reported, 1 unsupported, 7 not run)",
        NOT_PROVED,
    ):
        assert part in text


def test_tables_fit_into_80_columns() -> None:
    subjects = [Subject(name, "function", "cpu") for name in ("tensorflow", "torch", "jax")]
    results = [
        result(quantity, subject=subject, digest=str(i), case=f"c/{n}")
        for i, subject in enumerate(subjects)
        for quantity in ("Q", "K", "V", "Ω", "A", "C")
        for n in range(120)
    ]
    lines = plain(Report(results)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("tensorflow/function" in line and "720/720" in line for line in lines)
    assert not any("…" in line for line in lines)


SDPA = "scaled_dot_product_attention"


def test_several_profiles_of_a_port_have_an_overview_and_the_missions_details() -> None:
    results = [result(), result("A", profile=SDPA), result("repeat", profile=SDPA, ratio=None)]
    lines = [line.split() for line in plain(Report(results)).splitlines()]
    assert ["float32", "passed"] in lines
    assert ["attention", ".25", "1/1"] in lines
    assert [SDPA, ".25", "2/2"] in lines
    assert ["attention", "float32"] in lines
    assert [SDPA, "float32"] not in lines
    failing = Report([*results, result("C", Status.FAILED, profile=SDPA, clause="local")])
    assert [SDPA, "float32"] in [line.split() for line in plain(failing).splitlines()]


def test_many_subjects_and_profiles_make_no_more_tables_than_can_be_read() -> None:
    subjects = [Subject(f"tensorflow{i}", "function", "cpu") for i in range(8)]
    profiles = [*known_profiles()]
    results = [
        result(
            known_profiles()[profile].last,
            status,
            subject,
            dtype,
            f"c/{n}",
            profile,
            clause="local",
        )
        for subject in subjects
        for profile in profiles
        for dtype in ("float64", "float32", "bfloat16", "float16")
        for n in range(25)
        for status in [Status.PASSED if subject is subjects[0] else Status.FAILED]
    ]
    text = plain(Report(results)).split("DEVIATES")[0]
    tables = text[: text.index("· ")]
    lines = tables.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 120
    short = [profile.short for profile in forward_profiles().values()]
    for name in ("all dtypes", "gradients"):
        heads = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
        assert [word for head in heads for word in head[:-1]] == short
        assert {head[-1] for head in heads} == {"passed"}
    assert "…" not in tables
    assert "sdpa scaled_dot_product_attention" in " ".join(tables.split())


def test_what_no_subject_offers_takes_one_line() -> None:
    absent = [
        result("C", Status.UNSUPPORTED, profile=p, last=False, reason=f"no function {p}")
        for p in ("causal_attention", SDPA)
    ]
    text = plain(Report((result(), *absent)))
    assert "not offered by my_port@cpu: causal_attention, " + SDPA in " ".join(text.split())
    assert "unsupported (no function" not in text
    assert text.count(SDPA) == 1
    gradients = [
        result("C", Status.UNSUPPORTED, profile=p, last=False, reason=f"no function {p}")
        for p in gradient_profiles()
    ]
    text = plain(Report((result(), *gradients)))
    assert "not offered by my_port@cpu: any gradients" in " ".join(text.split())


def test_the_verdict_names_profiles_unless_all_were_covered() -> None:
    both = Report((result(), result(profile=SDPA)))
    assert f"the same attention and {SDPA} as the spec" in both.sentence
    other = Report((result(), result(profile=SDPA, subject=JIT)))
    assert "each where it offers them, as the spec" in other.sentence
    every = [
        result(known_profiles()[p].last, profile=p, last=True, decisive=True)
        for p in profiles_with_cases()
    ]
    assert "computes the same attention and gradients as the spec in" in Report(every).sentence
    forward = [r for r in every if not known_profiles()[r.cell.profile].base]
    assert "computes the same attention as the spec in" in Report(forward).sentence
    (sent,) = (r for r in every if r.cell.profile == f"{SDPA}_gradients")
    assert f"attention and {SDPA}_gradients as" in Report([*forward, sent]).sentence
    wrong = Report((result(), result("A", Status.FAILED, profile=SDPA, clause="local")))
    assert wrong.sentence.endswith(f"from the spec in A of {SDPA}.")


def test_a_ledger_that_differs_is_shown() -> None:
    conventions = {"empty_row": "mean", "mask": "True drops", "weight_layout": "dxc"}
    entry = Entry(ONE, {"conventions": conventions}, ("attention",), {})
    text = " ".join(plain(Report((result(),), Roster((entry,)))).split())
    assert "conventions declared by my_port@cpu: empty row mean, mask True drops" in text
    assert "weight layout" not in text


def test_known_deviations_of_what_did_not_run_are_counted() -> None:
    entries = [
        Deviation(name, "bound", "it rounds", "not reported", source="f.toml, entry 1")
        for name in ("my_port", "mlx/eager", "flax/*", "onnx/opset23", "onnx/opset24")
    ]
    text = " ".join(plain(Report((result(),), not_exercised=tuple(entries))).split())
    assert "not exercised: f.toml, entry 1 (my_port: it rounds)" in text
    assert "not exercised: 4 known deviations of mlx, flax, onnx" in text


def test_bits_are_compared_within_a_profile() -> None:
    results = [*answers(ONE, "a"), *answers(JIT, "a")]
    more = [result(profile=SDPA, case="case/9", digest="b")]
    assert [i.profile for i in identities([*results, *more])] == ["attention"]


def test_colour_is_left_out_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    show(Report((result(),)), Terminal(file=file, force_terminal=True))
    assert "\x1b[3" not in file.getvalue()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    show(Report((result(),)), Terminal(file=file, force_terminal=True))
    assert "\x1b[" in file.getvalue()


def test_totals_are_plain_values() -> None:
    found = Report((result(digest="a"), result(digest="a", subject=JIT), FAILURE)).to_json()
    assert found["exit_status"] == 1
    assert found["counts"] == {"passed": 2, "failed": 1}
    assert found["identities"][0]["classes"] == (("my_port@cpu", "jax/jit@cpu"),)


def test_every_gradient_has_to_be_proved() -> None:
    profile = "attention_gradients"
    names = known_profiles()[profile].results()
    proved = [result(name, profile=profile, last=True, decisive=True) for name in names]
    assert Report(proved).exit_status == 0
    unclear = [*proved[:-1], replace(proved[-1], status=Status.INDECISIVE, decisive=False)]
    report = Report(unclear)
    assert report.exit_status == 3
    assert report.undecided == (("my_port@cpu", profile, "float32"),)
    # A mask's gradient is asked of nobody who takes no masks.
    without = replace(proved[-1], status=Status.UNSUPPORTED, decisive=False)
    assert Report([*proved[:-1], without]).exit_status == 0
