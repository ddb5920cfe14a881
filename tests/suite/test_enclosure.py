"""The oracle against 250-digit arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvac.spec.enclosures import midpoint_radius
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.grammar.equations import fold, parse
from qkvac.spec.grammar.rearrangements import Array
from qkvac.spec.registry import forward_profiles
from qkvac.tests.suite.carriers import (
    ATTENTION,
    FAMILIES,
    attention_case,
    draw,
    everyone,
    run,
)
from qkvac.tests.suite.multiprecision import misses, truth

# --- containment ---------------------------------------------------------------------------


@everyone
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    family=st.sampled_from((*FAMILIES, "mixed")),
    n=st.integers(1, 5),
    d=st.integers(1, 4),
    c=st.integers(1, 3),
)
def test_true_values_lie_inside(
    carrier: str, seed: int, family: str, n: int, d: int, c: int
) -> None:
    inputs, sizes = attention_case(seed, family, n, d, c)
    found, true = run(carrier, ATTENTION, inputs, sizes), truth(ATTENTION, inputs, sizes)
    assert {name: misses(found[name], true[name]) for name in true} == {name: [] for name in true}
    # Scores near 2**160 leave a ball of 128 bits without a single digit; certify then raises it.
    if family in ("normal", "hot", "whole", "sparse", "cancelling", "tiny"):
        assert all(enclosure.known.all() for enclosure in found.values())


OTHER_TEXTS = {
    "elementwise": """
        X[n, d]
        Y[n, d]
        b[d]
        A[n, d] = X * Y - 0.3 * X + b
        B[n, d] = -A / 7 + 1
        S[n, d] = sum(B * X, axis=0) * Y + sum(A, axis=1)
    """,
    "columns": """
        X[n, d]
        A[n, d] = softmax(X, axis=0)
        B[d, d] = softmax(X.T @ X / 3, axis=0, where=causal(d, d))
    """,
    "functions": """
        X[n, d]
        A[n, d] = sigmoid(X)
        B[n, d] = tanh(X) * A - tanh(X @ X.T @ X)
        C[n, d] = sigmoid(B * X) + tanh(A - 1)
    """,
    "adjoints": """
        X[n, d]
        b[d]
        E[t, d]
        tokens[n]
        P[p, d]
        G[n, d] = take(E, tokens) + first(P, n) * X
        db[d] = sum_to(G * X, b)
        dE[t, d] = scatter_add(G, tokens, E)
        dP[p, d] = pad(G, P)
    """,
}


@everyone
@pytest.mark.parametrize("name", OTHER_TEXTS)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    family=st.sampled_from(FAMILIES),
    n=st.integers(1, 4),
    d=st.integers(1, 4),
)
def test_true_values_lie_inside_for_every_operation(
    carrier: str, name: str, seed: int, family: str, n: int, d: int
) -> None:
    program = parse(OTHER_TEXTS[name])
    rng = np.random.default_rng(seed)
    sizes = {"n": n, "d": d, "t": 3, "p": n + 2}
    inputs = {
        tensor.name: rng.integers(0, 3, n)
        if tensor.kind == "index"
        else draw(rng, [int(fold(axis, sizes).rational()) for axis in tensor.axes], family)
        for tensor in program.inputs
    }
    true = truth(program, inputs, sizes)
    found = run(carrier, program, inputs, sizes)
    assert {key: misses(found[key], true[key]) for key in true} == {key: [] for key in true}


@everyone
@pytest.mark.parametrize("variant", forward_profiles()["scaled_dot_product_attention"].texts)
@pytest.mark.parametrize("empty_row", ["zeros", "mean"])
def test_kernels_with_masks_heads_and_batches(carrier: str, variant: str, empty_row: str) -> None:
    program = forward_profiles()["scaled_dot_product_attention"].program(variant)
    rng = np.random.default_rng(len(variant))
    h, g, L, S, d, v, batch = 4, 2, 3, 5, 3, 2, 2
    inputs = {
        "Q": draw(rng, (batch, h, L, d), "normal"),
        "K": draw(rng, (batch, g, S, d), "normal"),
        "V": draw(rng, (batch, g, S, v), "wide"),
    }
    if "boolean" in variant:
        inputs["mask"] = rng.random((h, L, S)) < 0.5
        inputs["mask"][0, 1] = False
    if "additive" in variant:
        inputs["mask"] = np.where(rng.random((1, L, S)) < 0.5, draw(rng, (1, L, S), "hot"), -np.inf)
        inputs["mask"][0, 1] = -np.inf
    sizes = {"h": h, "g": g, "L": L, "S": S, "d": d, "v": v, "scale": 0.3}
    true = truth(program, inputs, sizes, empty_row)
    found = run(carrier, program, inputs, sizes, conventions={"empty_row": empty_row})
    for name in ("Ω", "A", "C"):
        assert misses(found[name], true[name]) == []
        assert found[name].known.all()
    exact_zeros = np.array(true["A"] == 0, dtype=bool)
    assert (found["A"].hi[exact_zeros] == 0).all()
    assert (found["A"].radius[exact_zeros] == 0).all()


@everyone
def test_several_heads_in_a_batch(carrier: str) -> None:
    program = forward_profiles()["multi_head_attention"].program("causal")
    rng = np.random.default_rng(3)
    sizes = {"n": 4, "d": 5, "c": 6, "o": 3, "h": 3}
    shapes = {"X": (2, 4, 5), "Wq": (5, 6), "Wk": (5, 6), "Wv": (5, 6), "Wo": (6, 3)}
    inputs = {name: draw(rng, shape, "normal") for name, shape in shapes.items()}
    true = truth(program, inputs, sizes)
    found = run(carrier, program, inputs, sizes)
    assert all(misses(found[name], true[name]) == [] for name in true)
    for element in range(2):
        alone = run(carrier, program, inputs | {"X": inputs["X"][element]}, sizes)
        for name, enclosure in alone.items():
            both = found[name].hi[element] - enclosure.hi
            assert (np.abs(both) <= found[name].radius[element] + enclosure.radius + 1e-300).all()


@everyone
@pytest.mark.parametrize("n", [0, 1])
def test_no_tokens_and_one_token(carrier: str, n: int) -> None:
    inputs, sizes = attention_case(0, "normal", n, 3, 2, batch=(2,))
    found = run(carrier, ATTENTION, inputs, sizes)
    assert found["A"].shape == (2, n, n)
    assert found["C"].shape == (2, n, 2)
    assert found["A"].rounded("float64")[0].tolist() == np.ones((2, n, n)).tolist()


@everyone
def test_a_row_without_keys_is_nan_if_the_convention_says_so(carrier: str) -> None:
    program = parse("X[n, n]\nm[n, n]\nA[n, n] = softmax(X, axis=1, where=m)")
    inputs = {"X": np.eye(2), "m": np.array([[True, False], [False, False]])}
    found = run(carrier, program, inputs, {"n": 2}, conventions={"empty_row": "NaN"})["A"]
    assert found.hi[0].tolist() == [1, 0]
    assert np.isnan(found.hi[1]).all()
    assert np.isinf(found.radius[1]).all()


# --- the tests can fail --------------------------------------------------------------------


@everyone
def test_a_radius_that_is_too_small_is_noticed(carrier: str) -> None:
    """Radii are proved, not fitted; shrinking them far enough must show in `misses`."""
    inputs, sizes = attention_case(1, "normal", 5, 4, 3)
    true = truth(ATTENTION, inputs, sizes)
    caught = set()
    for name, found in run(carrier, ATTENTION, inputs, sizes).items():
        shrunk = Enclosure(found.hi, found.lo, found.radius * 2.0**-12)
        caught |= {name} if misses(shrunk, true[name]) else set()
        assert misses(found, true[name]) == []
    assert caught >= {"A", "C"}


def test_forgetting_the_roundings_of_a_sum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, sizes = attention_case(1, "normal", 5, 4, 3)
    true = truth(ATTENTION, inputs, sizes)
    monkeypatch.setattr(midpoint_radius, "UNIT", 2.0**-60)
    found = run("interval", ATTENTION, inputs, sizes)
    assert all(misses(found[name], true[name]) for name in ("Q", "Ω"))


def test_a_weight_radius_without_the_scores_errors_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, sizes = attention_case(1, "normal", 5, 4, 3)
    true = truth(ATTENTION, inputs, sizes)
    honest = midpoint_radius.weight_radius

    def blind(weights: Any, log_error: Any, *rest: Any) -> Array:
        return honest(weights, np.minimum(log_error, 2.0**-58), *rest)

    monkeypatch.setattr(midpoint_radius, "weight_radius", blind)
    assert misses(run("interval", ATTENTION, inputs, sizes)["A"], true["A"])
