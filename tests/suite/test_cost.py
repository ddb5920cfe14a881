"""The budget of attention, and programs that exceed it."""

from __future__ import annotations

import pytest

from qkvac.spec.attention import ATTENTION
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.grammar.equations import parse
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic.cost import Product, cost
from qkvac.spec.symbolic.shapes import ShapeError

SIZES = {"n": 6, "d": 3, "c": 2}


def test_attention_takes_five_products_and_one_transposition() -> None:
    found = cost(forward_profiles()["attention"].program(), SIZES)
    assert found.products == (
        Product((6, 3), (3, 2), (6, 2)),
        Product((6, 3), (3, 2), (6, 2)),
        Product((6, 3), (3, 2), (6, 2)),
        Product((6, 2), (2, 6), (6, 6)),
        Product((6, 6), (6, 2), (6, 2)),
    )
    assert found.transpositions == 1
    assert found.exponentials == 36
    assert found.elementwise == 2 * 36
    assert found.flops == 3 * 2 * 6 * 3 * 2 + 2 * 6 * 2 * 6 + 2 * 6 * 6 * 2


@pytest.mark.parametrize("name", [name for name, p in forward_profiles().items() if p.budget])
def test_declared_budgets_are_those_of_the_equations(name: str) -> None:
    budget = forward_profiles()[name].budget
    assert budget is not None
    sizes = next(case.sizes for case in cases(name) if all(case.sizes.values()))
    found = cost(forward_profiles()[name].program(), sizes)
    assert (len(found.products), found.transpositions) == (budget.products, budget.transpositions)


@pytest.mark.parametrize(
    ("right", "wrong", "products", "transpositions"),
    [
        ("K[n, c] = X @ Wk", "K[n, c] = (X.T).T @ Wk", 5, 3),
        ("Ω[n, n] = Q @ K.T", "Ω[n, n] = (K @ Q.T).T", 5, 2),
        ("C[n, c] = A @ V", "C[n, c] = A @ (X @ Wv)", 6, 1),
        ("Ω[n, n] = Q @ K.T", "Ω[n, n] = X @ Wq @ Wk.T @ X.T", 7, 2),
    ],
)
def test_programs_that_do_more(right: str, wrong: str, products: int, transpositions: int) -> None:
    assert right in ATTENTION
    found = cost(parse(ATTENTION.replace(right, wrong)), SIZES)
    assert (len(found.products), found.transpositions) == (products, transpositions)


def test_the_order_of_factors_counts() -> None:
    """(XᵀWq)ᵀ-like detours give the right numbers for square operands only."""
    text = ATTENTION.replace("Ω[n, n] = Q @ K.T", "Ω[n, n] = Q.T @ K")
    square = cost(parse(text), {"n": 4, "d": 4, "c": 4})
    assert len(square.products) == 5
    with pytest.raises(ShapeError):
        cost(parse(text), SIZES)


def test_batches_multiply_the_work() -> None:
    program = forward_profiles()["attention"].program()
    one, many = cost(program, SIZES), cost(program, SIZES, batch=(3,))
    assert many.flops == 3 * one.flops
    assert many.exponentials == 3 * one.exponentials
    assert len(many.products) == len(one.products)


@pytest.mark.parametrize("name", forward_profiles())
def test_every_profile_can_be_counted(name: str) -> None:
    found = {case.variant: case for case in cases(name) if all(case.sizes.values())}
    assert len(found) >= len(forward_profiles()[name].texts)
    for case in found.values():
        assert cost(case.program, case.bindings).elementwise > 0
