"""Shape contracts: symbolic axes, sizes, batches, and wrong shapes of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvac.spec.grammar.equations import evaluate, parse
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.symbolic.shapes import Axis, ShapeError
from qkvac.tests.suite.arrays import Array, Arrays

VARIANTS = [
    (profile.name, variant) for profile in forward_profiles().values() for variant in profile.texts
]
ATTENTION = forward_profiles()["attention"].program()


def check(text: str, sizes: Mapping[str, Any] | None = None, batch: tuple[Any, ...] = ()) -> str:
    """The shape of the last equation's target, as text."""
    return str(list(shapes.check(parse(text), sizes, batch).values())[-1])


# --- axes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        (Axis.size(7), "7"),
        (Axis.symbol("n"), "n"),
        (Axis.symbol("c") / Axis.symbol("h"), "c/h"),
        (Axis.symbol("h") * (Axis.symbol("c") / Axis.symbol("h")), "c"),
        (Axis.symbol("n") * Axis.symbol("n"), "n^2"),
        (Axis.size(1) / Axis.symbol("h"), "1/h"),
        (Axis.size(2) * Axis.symbol("n"), "2·n"),
        (Axis.symbol("n") / Axis.symbol("n"), "1"),
    ],
)
def test_an_axis_is_a_monomial(axis: Axis, text: str) -> None:
    assert str(axis) == text


def test_equal_monomials_are_equal() -> None:
    n, c, h = map(Axis.symbol, "nch")
    assert n * c / h == c / h * n
    assert n * c != n / c
    assert Axis.size(6) / Axis.size(4) == Axis.size(Fraction(3, 2))


@pytest.mark.parametrize("axis", [Axis.symbol("n"), Axis.size(Fraction(3, 2)), Axis.size(-1)])
def test_only_whole_numbers_are_sizes(axis: Axis) -> None:
    with pytest.raises(ShapeError, match="is not an axis size"):
        int(axis)


# --- the profiles -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), ("B",), ("B", "T")])
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_profile_keeps_its_contract_symbolically(
    name: str, variant: str, batch: tuple[str, ...]
) -> None:
    profile = forward_profiles()[name]
    program = profile.program(variant)
    found = shapes.check(program, batch=batch)
    assert found.keys() == program.tensors.keys()
    for quantity in profile.quantities:
        assert [str(axis) for axis in found[quantity].axes[: len(batch)]] == list(batch)
        declared = shapes.declaration(program.tensors[quantity])
        assert declared == f"{quantity}[{', '.join(map(str, found[quantity].axes[len(batch) :]))}]"


def test_the_contract_of_attention_in_numbers() -> None:
    assert shapes.contract(ATTENTION, {"n": 6, "d": 3, "c": 2}) == {
        "X": (6, 3), "Wq": (3, 2), "Wk": (3, 2), "Wv": (3, 2),
        "Q": (6, 2), "K": (6, 2), "V": (6, 2), "Ω": (6, 6), "A": (6, 6), "C": (6, 2),
    }  # fmt: skip


def test_the_contract_of_several_heads_in_numbers() -> None:
    program = forward_profiles()["multi_head_attention"].program()
    sizes = {"n": 5, "d": 7, "c": 12, "h": 3, "o": 4}
    found = shapes.contract(program, sizes, batch=(2,))
    assert found["Ω"] == found["A"] == (2, 3, 5, 5)
    assert found["Q"] == found["C"] == (2, 5, 12)
    assert found["Y"] == (2, 5, 4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_evaluation_gives_the_shapes_of_the_contract(data: st.DataObject) -> None:
    """Over arrays of any sizes, with batch axes, for every profile and variant."""
    name, variant = data.draw(st.sampled_from(VARIANTS))
    program = forward_profiles()[name].program(variant)
    size = st.integers(1, 4)
    names = (*program.axis_names, *program.parameters)
    sizes = {axis: data.draw(size, label=axis) for axis in names}
    if "g" in sizes:
        sizes["h"] = sizes["g"] * data.draw(size)
    if name == "multi_head_attention":
        sizes["c"] = sizes["h"] * data.draw(size)
    if name == "embedding":
        sizes["p"] = sizes["n"] + data.draw(st.integers(0, 2))
        batch: tuple[int, ...] = ()
    else:
        batch = tuple(data.draw(st.lists(size, max_size=2)))
    expected = shapes.contract(program, sizes, batch)
    inputs: dict[str, Array] = {
        tensor.name: np.zeros(
            expected[tensor.name], {"real": float, "mask": bool, "index": int}[tensor.kind]
        )
        for tensor in program.inputs
    }
    results = evaluate(program, Arrays(), inputs, sizes)
    assert {name: value.shape for name, value in results.items()} == {
        name: expected[name] for name in results
    }


@pytest.mark.parametrize("zero", ["n", "d", "c"])
def test_an_empty_axis_is_an_axis(zero: str) -> None:
    sizes = {"n": 4, "d": 3, "c": 2, zero: 0}
    found = shapes.contract(ATTENTION, sizes)
    assert found["C"] == (sizes["n"], sizes["c"])


def test_a_parameter_may_be_any_scalar() -> None:
    program = forward_profiles()["scaled_dot_product_attention"].program("scale")
    axes: dict[str, Any] = {"h": 2, "g": 1, "L": 3, "S": 4, "d": 5, "v": 6}
    for scale in (Fraction(1, 8), 0.125, Scalar.of(2).sqrt(), -1):
        assert shapes.contract(program, axes | {"scale": scale})["C"] == (2, 3, 6)


# --- equations that do not fit ------------------------------------------------------------------

UNFIT = {
    "inner axis": (
        "X[n, d]\nW[c, d]\nQ[n, c] = X @ W",
        "Q[n, c] = X @ W: [n, d] @ [c, d]: the inner axis is d left, c right",
    ),
    "declared": (
        "X[n, d]\nΩ[d, d] = X @ X.T",
        "Ω[d, d] = X @ X.T: declared [d, d], the right-hand side is [n, n]",
    ),
    "elementwise": ("X[n, d]\nY[d, n]\nZ[n, d] = X + Y", "do not broadcast, n against d"),
    "mask": (
        "X[n, d]\nk[d, n]\nA[n, d] = softmax(X, axis=1, where=k)",
        "do not broadcast, n against d",
    ),
    "triangle": (
        "X[n, d]\nA[n, d] = softmax(X, axis=1, where=causal(d, n))",
        "do not broadcast, n against d",
    ),
    "masks": (
        "X[n, d]\nk[d]\nA[n, d] = softmax(X, axis=1, where=k & causal(d, n))",
        "do not broadcast, d against n",
    ),
    "summed axis": ("X[n, d]\nY[n, d] = sum(X, axis=1)", "declared [n, d], the right"),
    "sum to": ("G[n, d]\nb[n]\nD[n] = sum_to(G, b)", "[1, n] does not broadcast to [n, d]"),
    "sum to more": ("b[d]\nG[n, d]\nD[n, d] = sum_to(b, G)", "does not broadcast to [d]"),
    "scatter": (
        "G[n, c]\ni[n]\nE[t, d]\nD[t, d] = scatter_add(G, i, E)",
        "rows [n, c] do not belong to indices [n] of a table [t, d]",
    ),
    "pad": ("G[n, c]\nP[p, d]\nD[p, d] = pad(G, P)", "[n, c] cannot be padded to [p, d]"),
    "taken": ("E[t, d]\ni[n]\nX[t, d] = take(E, i)", "declared [t, d], the right-hand side is [n"),
    "merged": (
        "X[n, c]\nh\nY[n, d] = merge(split(X, h))",
        "declared [n, d], the right-hand side is [n, c]",
    ),
    "heads": ("X[n, c]\nh\nY[h, n, c] = split(X, h)", "is [h, n, c/h]"),
    "second equation": ("X[n, d]\nY[n, d] = X\nZ[n, d] = X @ Y", "Z[n, d] = X @ Y: "),
}


@pytest.mark.parametrize(("text", "message"), UNFIT.values(), ids=list(UNFIT))
def test_an_equation_that_does_not_fit_is_named(text: str, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        check(text)
    assert message in str(caught.value)


def test_products_and_quotients_of_axes_are_axes() -> None:
    text = "X[n, c]\nh\nY[h, n, c / h] = split(X, h)"
    assert check(text) == "[h, n, c/h]"
    assert check(text, {"n": 3, "c": 8, "h": 2}) == "[2, 3, 4]"
    merged = "X[h, n, c]\nY[n, h * c] = merge(X)"
    assert check(merged) == "[n, c·h]"
    assert check(merged, {"n": 3, "c": 8, "h": 2}) == "[3, 16]"
    with pytest.raises(
        ShapeError, match=r"declared \[h, n, n/h\], the right-hand side is \[h, n, c"
    ):
        check(text.replace("c / h", "n / h"))


def test_sizes_may_fit_where_symbols_do_not() -> None:
    text = "X[n, d]\nW[c, d]\nQ[n, d] = X @ W"
    assert check(text, {"n": 3, "d": 2, "c": 2}) == "[3, 2]"
    with pytest.raises(ShapeError, match="the inner axis is 2 left, 4 right"):
        check(text, {"n": 3, "d": 2, "c": 4})


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        (
            "multi_head_attention",
            {"n": 5, "d": 7, "c": 10, "h": 3, "o": 4},
            "width 10 does not split into 3 heads",
        ),
        (
            "multi_head_attention",
            {"n": 5, "d": 7, "c": 10, "h": 0, "o": 4},
            "divided by an axis of size 0",
        ),
        (
            "scaled_dot_product_attention",
            {"h": 4, "g": 3, "L": 5, "S": 6, "d": 7, "v": 8},
            "3 key/value heads do not divide 4 query heads",
        ),
        ("embedding", {"t": 9, "d": 4, "p": 3, "n": 5}, "the first 5 rows of a table with only 3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    name: str, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        shapes.contract(forward_profiles()[name].program(), sizes)


# --- batches ------------------------------------------------------------------------------------


def test_batch_axes_go_to_real_matrices_and_indices_alone() -> None:
    linear = shapes.contract(
        forward_profiles()["attention_linear_layers"].program("bias"),
        {"n": 3, "d": 4, "c": 5},
        batch=(2,),
    )
    assert linear["X"] == (2, 3, 4)
    assert linear["bq"] == (5,)
    masked = shapes.contract(
        forward_profiles()["scaled_dot_product_attention"].program("boolean"),
        {"h": 2, "g": 1, "L": 3, "S": 4, "d": 5, "v": 6},
        batch=(7,),
    )
    assert masked["mask"] == (2, 3, 4)
    assert masked["A"] == (7, 2, 3, 4)


def test_batch_axes_broadcast() -> None:
    algebra = shapes.Shapes()
    one = shapes.Shape((Axis.size(1), Axis.size(3), Axis.size(4)))
    two = shapes.Shape((Axis.size(2), Axis.size(4), Axis.size(5)))
    alone = shapes.Shape((Axis.size(4), Axis.size(5)))
    assert str(algebra.matmul(one, two)) == "[2, 3, 5]"
    assert str(algebra.matmul(one, alone)) == "[1, 3, 5]"
    three = shapes.Shape((Axis.size(3), Axis.size(4), Axis.size(5)))
    with pytest.raises(ShapeError, match="2 against 3"):
        algebra.matmul(shapes.Shape((Axis.size(2), *one.axes[1:])), three)


# --- inputs and outputs -------------------------------------------------------------------------

INPUTS = {"X": (6, 3), "Wq": (3, 2), "Wk": (3, 2), "Wv": (3, 2)}


def test_inputs_bind_the_axes() -> None:
    assert shapes.bind(ATTENTION, INPUTS) == {"n": 6, "d": 3, "c": 2}
    assert shapes.bind(ATTENTION, INPUTS | {"X": (4, 5, 6, 3)}) == {"n": 6, "d": 3, "c": 2}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"X": (6,)}, r"X has 1 axes, expected X\[n, d\]"),
        ({"X": ()}, r"X has 0 axes, expected X\[n, d\]"),
        ({"Wq": (4, 2)}, r"Wq\[d, c\]: axis d is 4, expected 3 as in X"),
        ({"Wk": (3, 1)}, r"Wk\[d, c\]: axis c is 1, expected 2 as in Wq"),
        ({"Wv": (2, 3)}, r"Wv\[d, c\]: axis d is 2, expected 3 as in X"),
        ({"X": (6, 1)}, r"Wq\[d, c\]: axis d is 3, expected 1 as in X"),
    ],
)
def test_inputs_that_disagree_are_refused(wrong: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        shapes.bind(ATTENTION, INPUTS | wrong)


def test_a_declared_number_is_a_size() -> None:
    program = parse("X[n, 3]\nY[n, 3] = X")
    assert shapes.bind(program, {"X": (5, 3)}) == {"n": 5}
    with pytest.raises(ShapeError, match=r"X\[n, 3\]: got 4, expected 3"):
        shapes.bind(program, {"X": (5, 4)})


@pytest.mark.parametrize(
    ("expected", "got", "message"),
    [
        ((6, 2), (6, 2), None),
        ((6, 2), (2, 6), "C: axis 0 (n) is 2, expected 6; axis 1 (c) is 6, expected 2"),
        ((6, 2), (6, 3), "C: axis 1 (c) is 3, expected 2"),
        ((6, 2), (6,), "C has 1 axes (6,), expected 2 (6, 2)"),
        ((6, 2), (1, 6, 2), "C has 3 axes (1, 6, 2), expected 2 (6, 2)"),
        ((6, 2), (), "C has 0 axes (), expected 2 (6, 2)"),
        ((4, 6, 2), (5, 6, 2), "C: axis 0 (batch) is 5, expected 4"),
        ((0, 2), (1, 2), "C: axis 0 (n) is 1, expected 0"),
    ],
)
def test_a_wrong_shape_is_described_by_its_axis(
    expected: tuple[int, ...], got: tuple[int, ...], message: str | None
) -> None:
    assert shapes.mismatch(ATTENTION.tensors["C"], expected, got) == message


def test_a_composite_axis_is_named_in_words() -> None:
    program = parse("X[n, c]\nh\nY[h, n, c / h] = split(X, h)")
    assert shapes.declaration(program.tensors["Y"]) == "Y[h, n, c/h]"
    assert shapes.mismatch(program.tensors["Y"], (2, 3, 4), (2, 3, 8)) == (
        "Y: axis 2 (c/h) is 8, expected 4"
    )
