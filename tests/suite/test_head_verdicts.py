"""What the cases of attention with heads tell apart: right from wrong, step by step."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.formats import DTYPES
from qkvac.spec.inputs import layouts
from qkvac.spec.verdicts.verdict import Question, Verdict, judge
from qkvac.tests.suite import head_evaluators as wrong
from qkvac.tests.suite.head_evaluators import Right
from qkvac.tests.suite.test_head_cases import DEFAULT, MAIN, SQUARE, UNGROUPED, case_of

TURNED, TRIPLES, DECODE = "2x6x3x9x5x7x4", "2x6x2x5x7x4x3", "2x6x3x1x4x7x5"
COLLISION, TILES, TURNED_TILES = "3x3x3x5x9x7x4", "1x2x1x33x65x64x24", "1x2x1x65x33x64x24"
EVEN, ONE_KEY_HEAD = "2x4x2x6x8x16x3", "2x6x1x5x9x7x4"


@cache
def question(case: Case, name: str, empty_row: str = "zeros", scores: str = "") -> Question:
    declared = {"softmax": "shifted, divided"} | ({"scores": scores} if scores else {})
    model = Arithmetic.for_dtype(name, declared)
    return Question(case, name, model, conventions={"empty_row": empty_row})


def verdicts(kind: type[Right], asked: Question) -> dict[str, Verdict]:
    return judge(asked, kind(asked.case, asked.dtype)(asked.inputs))


def fails(kind: type[Right], asked: Question) -> bool:
    return any(verdict.status == "failed" for verdict in verdicts(kind, asked).values())


@pytest.mark.parametrize("name", DTYPES)
def test_what_follows_the_equations_passes(name: str) -> None:
    seen = 0
    for case in DEFAULT:
        if name not in case.dtypes:
            continue
        for quantity, verdict in verdicts(Right, question(case, name)).items():
            seen += 1
            overflow = case.family == "beyond-half" and quantity == "Ω"
            expected = "indecisive" if overflow else "passed"
            assert verdict.status == expected, (case.id, verdict)
            assert verdict.grade != "suspicious", (case.id, verdict)
            assert quantity not in case.exact or verdict.grade == "exact"
    assert seen > 240


@pytest.mark.parametrize("convention", ["zeros", "mean", "NaN"])
def test_queries_without_keys_follow_what_is_declared(convention: str) -> None:
    kinds = {"zeros": Right, "mean": wrong.EmptyMean, "NaN": wrong.EmptyNaN}
    for text in (
        f"empty-row/boolean/{SQUARE}",
        f"empty-row/additive/{UNGROUPED}",
        f"empty-sample/boolean/{MAIN}",
        f"mask-Lx1/boolean/{UNGROUPED}",
        f"but-first/boolean-causal/{SQUARE}",
    ):
        asked = question(case_of(text), "float32", convention)
        for name, kind in kinds.items():
            assert fails(kind, asked) == (name != convention), (text, name)


def test_the_triangle_leaves_queries_empty_where_it_is_pinned_bottom_right() -> None:
    case = case_of(f"normal/causal/{TURNED}")
    declared = {"causal_alignment": "bottom-right"}
    asked = Question(case, "float32", Arithmetic.for_dtype("float32"), conventions=declared)
    assert not fails(wrong.BottomRight, asked)
    assert fails(Right, asked)
    assert not np.any(wrong.BottomRight(case, "float32")(asked.inputs)["A"][..., :4, :])


def test_without_keys_the_context_is_0() -> None:
    asked = question(case_of("empty/plain/2x6x3x5x0x7x4"), "float32")
    found = judge(asked, {"C": np.zeros((2, 6, 5, 4), np.float32)})
    assert found["C"].status == "passed"
    found = judge(asked, {"C": np.full((2, 6, 5, 4), 1e-30, np.float32)})
    assert found["C"].status == "failed"


TELLS: dict[type[Right], tuple[tuple[str, ...], tuple[str, ...]]] = {
    wrong.Tiled: (
        (f"normal/plain/{MAIN}", f"normal/plain/{TRIPLES}", f"head-id/plain/{MAIN}"),
        (f"normal/plain/{ONE_KEY_HEAD}", f"normal/plain/{UNGROUPED}"),
    ),
    wrong.FirstHead: (
        (f"head-id/plain/{MAIN}", f"layout-head-id/plain/{MAIN}", f"lookup/plain/{SQUARE}"),
        (f"normal/plain/{ONE_KEY_HEAD}",),
    ),
    wrong.FirstSample: (
        (f"sample-id/plain/{MAIN}", f"lookup/plain/{SQUARE}"),
        (f"normal/plain/{TILES}",),
    ),
    wrong.RoundedKeys: ((f"key-cliff/plain/{SQUARE}", f"normal/plain/{TILES}"), ()),
    wrong.Unscaled: (
        (f"normal/plain/{SQUARE}", f"normal/plain/{DECODE}", f"scale-half/scale/{MAIN}"),
        (f"scale-one/scale/{MAIN}", f"normal/causal/{DECODE}"),
    ),
    wrong.DefaultScale: (
        (
            *(f"scale-{size}/scale/{MAIN}" for size in ("half", "one", "negative", "large")),
            f"scale-third/causal-scale/{MAIN}",
            f"normal/boolean-scale/{MAIN}",
            f"mask-Bx1x1xS/additive-causal-scale/{MAIN}",
        ),
        (f"ties/scale/{EVEN}",),
    ),
    wrong.ScaleOfValues: ((f"normal/plain/{UNGROUPED}",), (f"normal/plain/{SQUARE}",)),
    wrong.ScaleOfModel: ((f"normal/plain/{SQUARE}", f"normal/plain/{MAIN}"), ()),
    wrong.ScaleOfWholeRoot: ((f"normal/plain/{MAIN}",), (f"normal/plain/{TRIPLES}",)),
    wrong.PositiveScale: ((f"scale-negative/scale/{MAIN}",), (f"scale-half/scale/{MAIN}",)),
    wrong.BottomRight: (
        tuple(f"normal/causal/{shape}" for shape in (MAIN, TURNED, DECODE, TILES)),
        (f"normal/causal/{SQUARE}", f"all-kept/boolean-causal/{SQUARE}"),
    ),
    wrong.Strict: ((f"normal/causal/{SQUARE}", f"uniform/causal/{MAIN}"), ()),
    wrong.CausalForgotten: (
        (
            f"all-kept/boolean-causal/{SQUARE}",
            f"holes/additive-causal/{MAIN}",
            f"scale-third/causal-scale/{MAIN}",
        ),
        (f"normal/causal/{MAIN}",),
    ),
    wrong.Inverted: (
        (f"one-kept/boolean/{SQUARE}", f"one-kept/boolean/{MAIN}", f"normal/boolean/{SQUARE}"),
        (f"as-bias/additive/{SQUARE}",),
    ),
    wrong.FirstQuery: (
        (f"normal/boolean/{SQUARE}", f"band/boolean/{TURNED_TILES}"),
        (f"mask-S/boolean/{UNGROUPED}", f"mask-Bx1x1xS/boolean/{COLLISION}"),
    ),
    wrong.OtherSample: (
        (f"mask-Bx1x1xS/boolean/{COLLISION}", f"empty-sample/boolean/{MAIN}"),
        (f"mask-1xhxLxS/boolean/{UNGROUPED}", f"normal/boolean/{SQUARE}"),
    ),
    wrong.OtherHead: (
        (f"mask-1xhxLxS/boolean/{UNGROUPED}", f"normal/additive-scale/{MAIN}"),
        (f"mask-Bx1xLxS/boolean/{UNGROUPED}",),
    ),
    wrong.SampleAsHead: (
        (f"mask-Bx1x1xS/boolean/{COLLISION}", f"mask-hxLxS/boolean/{COLLISION}"),
        (f"mask-Bx1xLxS/boolean/{UNGROUPED}",),
    ),
    wrong.NoBias: (
        (f"mask-LxS/additive/{UNGROUPED}", f"holes/additive-causal/{MAIN}"),
        (f"as-bias/additive/{SQUARE}", f"zero-bias/additive/{UNGROUPED}"),
    ),
    wrong.BiasFirst: (
        (f"normal/additive-scale/{MAIN}", f"mask-LxS/additive/{UNGROUPED}"),
        (f"as-bias/additive/{SQUARE}",),
    ),
    wrong.Filled: (
        (f"below/causal/{MAIN}", f"later-ahead/causal/{MAIN}", f"last-ahead/boolean/{MAIN}"),
        (f"normal/causal/{MAIN}", f"normal/boolean/{MAIN}"),
    ),
    wrong.Penalised: (
        (f"later-ahead/causal/{MAIN}", f"garbage/causal/{MAIN}", f"last-ahead/boolean/{MAIN}"),
        (f"normal/causal/{MAIN}", f"normal/boolean/{MAIN}", f"below/causal/{MAIN}"),
    ),
    wrong.Leaking: (
        (f"garbage/causal/{MAIN}", f"garbage/boolean/{MAIN}", "padding/boolean/2x2x2x9x12x96x40"),
        (f"normal/causal/{MAIN}", f"normal/boolean/{MAIN}"),
    ),
    wrong.MaskedLate: ((f"normal/causal/{SQUARE}", f"normal/boolean/{SQUARE}"), ()),
    wrong.AcrossQueries: ((f"normal/plain/{SQUARE}", f"uniform/plain/{EVEN}"), ()),
    wrong.GlobalMaximum: ((f"row-shift/plain/{MAIN}",), (f"normal/plain/{MAIN}",)),
    wrong.NoMaximum: ((f"lookup/plain/{SQUARE}", f"below/causal/{MAIN}"), ()),
    wrong.LastTokensLost: ((f"normal/plain/{SQUARE}", f"normal/plain/{TILES}"), ()),
}
"""By mistake: cases that show it, and cases that cannot."""


@pytest.mark.parametrize("kind", TELLS, ids=lambda kind: kind.__name__)
def test_a_wrong_step_fails_where_it_matters_and_only_there(kind: type[Right]) -> None:
    failing, blind = TELLS[kind]
    for text in failing:
        assert fails(kind, question(case_of(text), "float32")), text
    for text in blind:
        assert not fails(kind, question(case_of(text), "float32")), text


def test_a_constant_for_minus_infinity_shows_in_float16_too() -> None:
    assert fails(wrong.Filled, question(case_of(f"below/causal/{MAIN}"), "float16"))


def test_the_most_negative_number_may_not_end_in_nan() -> None:
    """In float16 a score of −16 beside it is −inf; in float64 its row needs a fine oracle."""
    half = question(case_of(f"half-minimum/additive-scale/{MAIN}"), "float16")
    assert fails(wrong.HeldInStorage, half)
    for name in DTYPES:
        asked = question(case_of(f"minimum-row/additive/{UNGROUPED}"), name)
        outputs = Right(asked.case, name)(asked.inputs)
        assert {verdict.status for verdict in judge(asked, outputs).values()} == {"passed"}
        outputs["A"][0, 0, 2] = np.nan
        outputs["C"][0, 0, 2] = np.nan
        found = judge(asked, outputs)
        assert [found[quantity].clause for quantity in "AC"] == ["contract", "contract"]


def test_scores_that_overflow_before_they_are_scaled_show_where_they_may_not() -> None:
    case = case_of(f"beyond-half/plain/{TILES}")
    asked = question(case, "float16", scores="float32")
    outputs = wrong.OverflowingScores(case, "float16")(asked.inputs)
    found = judge(asked, {name: outputs[name] for name in "AC"})
    assert {found[name].clause for name in "AC"} == {"contract"}
    right = Right(case, "float16")(asked.inputs)
    found = judge(asked, {name: right[name] for name in "AC"})
    assert {found[name].status for name in "AC"} == {"passed"}


def test_nobody_reads_what_is_masked() -> None:
    """Garbage in keys and values that no query may read leaves the certified C as it is."""
    for text in (
        f"garbage/causal/{MAIN}",
        f"garbage/boolean/{MAIN}",
        "padding/boolean/2x2x2x9x12x96x40",
    ):
        asked = question(case_of(text), "float32")
        inputs = {name: array.copy() for name, array in asked.inputs.items()}
        unread = np.abs(inputs["V"]).max(-1) > 2**20
        assert unread.any()
        assert not unread.all()
        spoilt = Right(asked.case, "float32")(inputs)["C"]
        inputs["K"][unread], inputs["V"][unread] = 0, 0
        assert np.array_equal(Right(asked.case, "float32")(inputs)["C"], spoilt)


@pytest.mark.parametrize("layout", ["heads", "F"])
def test_memory_that_is_read_without_its_strides_shows(layout: str) -> None:
    for name in "QKV":
        case = case_of(f"layout-{name}-{layout}/plain/{UNGROUPED}")
        asked = question(case, "float32")
        given = dict(asked.inputs)
        memory = layouts.apply(given[name], layout).ravel(order="K")
        given[name] = memory.reshape(given[name].shape)
        found = judge(asked, Right(case, "float32")(given))
        assert found["C"].status == "failed"
