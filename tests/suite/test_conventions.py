"""The conventions ledger: what is declared is what is asked, and anything else fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qkvac.spec.attention import CONVENTIONS, Arithmetic
from qkvac.spec.cases.case import Case
from qkvac.spec.conventions import of_values, presented, restored
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.verdicts.verdict import Question, judge

Array = np.ndarray[Any, Any]

SIZES = {"h": 6, "g": 2, "L": 5, "S": 7, "d": 4, "v": 3}
BATCH = (2,)
EMPTY = 2
"""The query that a mask leaves without a key."""


def operands(frame: Frame) -> Inputs:
    axes, batch = frame.sizes, frame.batch
    shapes = {"Q": ("h", "L", "d"), "K": ("g", "S", "d"), "V": ("g", "S", "v")}
    return {
        name: frame.normal(name, (*batch, *(axes[axis] for axis in of)))
        for name, of in shapes.items()
    }


def kept(frame: Frame) -> Array:
    keep = frame.integers("keep", (frame.sizes["L"], frame.sizes["S"]), 0, 2) > 0
    keep[:, 0] = True
    keep[EMPTY] = False
    return keep


def boolean(frame: Frame) -> Inputs:
    return {**operands(frame), "mask": kept(frame)}


def additive(frame: Frame) -> Inputs:
    keep = kept(frame)
    return {**operands(frame), "mask": np.where(keep, frame.normal("bias", keep.shape), -np.inf)}


RECIPES = {"": operands, "boolean": boolean, "additive": additive}


def case(mask: str = "", causal: bool = False, scale: float | None = None, **sizes: int) -> Case:
    profile = "scaled_dot_product_attention"
    words = (mask, "causal" if causal else "", "scale" if scale is not None else "")
    attributes: dict[str, Any] = {"causal": True} if causal else {}
    attributes |= {"scale": scale} if scale is not None else {}
    return Case(
        *(f"{profile}/trial", profile, "trial", {**SIZES, **sizes}, "", RECIPES[mask], "trial"),
        variant="-".join(filter(None, words)) or "plain",
        attributes=attributes,
        batch=BATCH,
        masked=bool(mask),
    )


def reference(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], conventions: Mapping[str, str]
) -> dict[str, Array]:
    """Attention in float64, written with einsum and loops over heads."""
    Q, K, V = (inputs[name].astype(np.float64) for name in "QKV")
    group = Q.shape[1] // K.shape[1]
    keep = np.ones((Q.shape[2], K.shape[2]), bool)
    if attributes.get("causal"):
        late = conventions.get("causal_alignment") == "bottom-right"
        rows, keys = keep.shape
        keep = np.tri(rows, keys, keys - rows if late else 0, dtype=bool)
    bias = np.zeros(keep.shape)
    if (mask := inputs.get("mask")) is not None:
        if mask.dtype == np.bool_:
            keep = keep & mask
        else:
            mask = mask.astype(np.float64)
            keep, bias = keep & np.isfinite(mask), np.where(np.isfinite(mask), mask, 0)
    scores = np.stack([np.einsum("bld,bsd->bls", Q[:, i], K[:, i // group]) for i in range(6)], 1)
    logits = scores * attributes.get("scale", Q.shape[-1] ** -0.5) + bias
    A = np.zeros(scores.shape)
    for row in range(keep.shape[0]):
        if keep[row].any():
            some = logits[..., row, keep[row]]
            terms = np.exp(some - some.max(-1, keepdims=True))
            A[..., row, keep[row]] = terms / terms.sum(-1, keepdims=True)
        else:
            empty = {"mean": 1 / keep.shape[1], "NaN": np.nan}
            A[..., row, :] = empty.get(conventions.get("empty_row", ""), 0.0)
    C = np.stack([np.einsum("bls,bsv->blv", A[:, i], V[:, i // group]) for i in range(6)], 1)
    return {"Ω": scores, "A": A, "C": C}


def statuses(
    asked: Case, dtype: str, conventions: Mapping[str, str], answered: Mapping[str, str]
) -> dict[str, str]:
    """By quantity: what a port that answers by `answered` gets where `conventions` are declared."""
    question = Question(asked, dtype, Arithmetic.for_dtype(dtype), conventions=conventions)
    exact = reference(question.inputs, asked.attributes, answered)
    outputs = {name: array.astype(question.inputs["Q"].dtype) for name, array in exact.items()}
    return {name: verdict.status for name, verdict in judge(question, outputs).items()}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("empty_row", CONVENTIONS["empty_row"].options)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", RECIPES)
def test_every_variant_passes_under_every_empty_row(
    mask: str, causal: bool, scale: float | None, empty_row: str, dtype: str
) -> None:
    conventions = {"empty_row": empty_row}
    found = statuses(case(mask, causal, scale), dtype, conventions, conventions)
    assert found == dict.fromkeys(("Ω", "A", "C"), "passed")


@pytest.mark.parametrize("mask", ["boolean", "additive"])
@pytest.mark.parametrize("declared", CONVENTIONS["empty_row"].options)
@pytest.mark.parametrize("answered", CONVENTIONS["empty_row"].options)
def test_another_empty_row_than_declared_fails(mask: str, declared: str, answered: str) -> None:
    found = statuses(case(mask), "float32", {"empty_row": declared}, {"empty_row": answered})
    assert (found["A"] == "passed") == (found["C"] == "passed") == (declared == answered)


@pytest.mark.parametrize("sizes", [{"L": 7, "S": 5}, {"L": 5, "S": 7}, {"L": 1, "S": 4}])
@pytest.mark.parametrize("declared", CONVENTIONS["causal_alignment"].options)
@pytest.mark.parametrize("answered", CONVENTIONS["causal_alignment"].options)
def test_another_alignment_than_declared_fails(
    sizes: dict[str, int], declared: str, answered: str
) -> None:
    asked = case("", True, None, **sizes)
    found = statuses(
        asked, "float32", {"causal_alignment": declared}, {"causal_alignment": answered}
    )
    assert (found["A"] == "passed") == (found["C"] == "passed") == (declared == answered)


def test_masked_entries_must_be_zero() -> None:
    asked = case("boolean")
    question = Question(asked, "float32", Arithmetic.for_dtype("float32"))
    outputs = {
        name: array.astype(np.float32) for name, array in reference(question.inputs, {}, {}).items()
    }
    forbidden = np.argwhere(~np.broadcast_to(question.inputs["mask"], outputs["A"].shape))[0]
    outputs["A"][tuple(forbidden)] = 1e-30
    assert judge(question, outputs)["A"].status == "failed"


def test_inputs_are_handed_over_as_declared() -> None:
    inputs = {
        "Wq": np.arange(6.0).reshape(2, 3),
        "X": np.ones((4, 2)),
    }
    mask = {"mask": np.array([True, False])}
    assert presented("attention", inputs, {}) == inputs
    turned = presented("attention", inputs, {"weight_layout": "c×d"})
    assert np.array_equal(turned["Wq"], inputs["Wq"].T)
    assert turned["Wq"].flags.c_contiguous
    dropping = presented("scaled_dot_product_attention", mask, {"mask": "True drops"})
    assert np.array_equal(dropping["mask"], [False, True])
    assert turned["X"] is inputs["X"]
    linear = presented("attention_linear_layers", inputs, {"weight_layout": "c×d"})
    assert linear["Wq"] is inputs["Wq"]


def test_a_gradient_has_the_layout_of_its_weight() -> None:
    outputs = {"dX": np.ones((4, 2)), "dWq": np.arange(6.0).reshape(3, 2), "dWk": np.ones(2)}
    declared = {"weight_layout": "c×d"}
    found = restored("attention_gradients", outputs, declared)
    assert np.array_equal(found["dWq"], outputs["dWq"].T)
    assert found["dX"] is outputs["dX"]
    assert found["dWk"] is outputs["dWk"]
    assert restored("attention_gradients", outputs, {}) is outputs
    assert restored("attention_linear_layers_gradients", outputs, declared) is outputs


def test_an_additive_mask_is_never_inverted() -> None:
    bias = np.array([0.0, -np.inf])
    found = presented("scaled_dot_product_attention", {"mask": bias}, {"mask": "True drops"})
    assert found["mask"] is bias


def test_how_inputs_are_stored_changes_no_value() -> None:
    declared = {"mask": "True drops", "weight_layout": "c×d", "empty_row": "mean"}
    assert of_values(declared) == {"empty_row": "mean"}
