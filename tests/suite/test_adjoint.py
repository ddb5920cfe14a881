"""The derived gradients, against forward-mode derivatives and against finite differences.

Both are carried out in balls of high precision and know nothing of reverse mode: the first
carries a tangent beside every value, through the definition of each operation, the second
evaluates the declared equations twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flint import arb

from qkvac.spec.enclosures.arb_balls import BallAlgebra, Balls, working_precision
from qkvac.spec.grammar.adjoint import adjoint
from qkvac.spec.grammar.equations import Number, Op, Program, SpecError, evaluate, parse
from qkvac.spec.grammar.rearrangements import Rearrangements
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.registry import forward_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.symbolic.text import plain

Array = np.ndarray[Any, Any]

BITS = 512
STEP = 2.0**-100
"""Of the finite differences: their own error is of the order of its square."""

SIZES = {
    **{"n": 5, "d": 6, "c": 4, "h": 4, "g": 2, "o": 3, "L": 4, "S": 5, "v": 2},
    **{"t": 7, "p": 6, "m": 3, "e": 2, "scale": Scalar.of(0.375)},
}
VARIANTS = [
    (profile.name, name) for profile in forward_profiles().values() for name in profile.texts
]

SHARED = frozenset(name for p in forward_profiles().values() for name in p.without_batch)

TEXTS = {
    # Two softmaxes whose arguments have no names.
    "differential attention": """
        X[n, d]
        Wq[d, c]
        Wk[d, c]
        U[d, c]
        W[d, c]
        lam[1]
        Q1[n, c] = X @ Wq
        K1[n, c] = X @ Wk
        Q2[n, c] = X @ U
        K2[n, c] = X @ W
        B[n, n] = softmax(Q1 @ K1.T / sqrt(c), axis=1)
        D[n, n] = softmax(Q2 @ K2.T / sqrt(c), axis=1)
        A[n, n] = B - lam * D
        C[n, d] = A @ X
    """,
    # Softmaxes inside other operations, one of them inside a softmax.
    "inside": """
        X[n, d]
        Wq[d, d]
        lam[1]
        A[n, d] = softmax(X @ Wq, axis=1) * X - lam * softmax(2 * softmax(X, axis=1) @ Wq, axis=1)
        C[n, d] = A @ Wq
    """,
    # What broadcasts: keys that all heads share, a number for each query, a table for all heads.
    "broadcast": """
        Q[h, L, d]
        K[S, d]
        w[L, 1]
        T[L, S]
        Ω[h, L, S] = Q @ K.T + T * T
        A[h, L, S] = softmax(w * Ω, axis=2)
        C[h, L, d] = A @ K
    """,
    # One operand, broadcast differently in two places.
    "twice": """
        X[n, d]
        b[d]
        Y[n, d] = softmax(X, axis=1) * b
        z[d] = b * b
        C[n, d] = Y + z + b
    """,
    # A softmax over queries, which compete for keys.
    "slots": """
        X[n, d]
        W[d, d]
        A[n, n] = softmax(X @ W @ X.T / sqrt(d), axis=0)
        C[n, d] = A @ X
    """,
    "sigmoid": """
        X[n, d]
        Wq[d, d]
        A[n, n] = sigmoid(X @ Wq @ X.T / sqrt(d) - 1)
        G[n, d] = sigmoid(X @ Wq) * X
        C[n, d] = A @ G
    """,
    "cap": """
        X[n, d]
        Wq[d, d]
        S[n, n] = X @ Wq @ X.T
        A[n, n] = softmax(30 * tanh(S / 30), axis=1)
        C[n, d] = A @ tanh(X)
    """,
    "weights last": """
        X[n, d]
        C[n, d] = softmax(X + X, axis=1)
    """,
}
UNBATCHED = SHARED | {"U", "W", "lam", "E", "P", "b"}
FORWARD = {
    **{
        f"{p}-{v}": (forward_profiles()[p].program(v), forward_profiles()[p].last)
        for p, v in VARIANTS
    },
    **{name: (parse(text), "C") for name, text in TEXTS.items()},
}


def derived(name: str, contracted: bool = False) -> Program:
    forward, last = FORWARD[name]
    return adjoint(forward, last, contracted, SHARED | {"U", "W", "lam", "b"})


class Tangents(Rearrangements):
    """Values are pairs of a ball and its derivative along one direction."""

    def __init__(self) -> None:
        super().__init__()
        self.balls = BallAlgebra()

    def center(self, value: Pair) -> Array:
        return self.balls.center(value.value)

    def matmul(self, x: Pair, y: Pair) -> Pair:
        product = self.balls.matmul
        moved = self.balls.add(product(x.tangent, y.value), product(x.value, y.tangent))
        return Pair(product(x.value, y.value), moved)

    def add(self, x: Pair, y: Pair) -> Pair:
        return Pair(self.balls.add(x.value, y.value), self.balls.add(x.tangent, y.tangent))

    def subtract(self, x: Pair, y: Pair) -> Pair:
        return Pair(
            self.balls.subtract(x.value, y.value), self.balls.subtract(x.tangent, y.tangent)
        )

    def multiply(self, x: Pair, y: Pair) -> Pair:
        product = self.balls.multiply
        moved = self.balls.add(product(x.tangent, y.value), product(x.value, y.tangent))
        return Pair(product(x.value, y.value), moved)

    def scale(self, x: Pair, s: Scalar) -> Pair:
        return Pair(self.balls.scale(x.value, s), self.balls.scale(x.tangent, s))

    def negate(self, x: Pair) -> Pair:
        return Pair(self.balls.negate(x.value), self.balls.negate(x.tangent))

    def shift(self, x: Pair, s: Scalar) -> Pair:
        return Pair(self.balls.shift(x.value, s), x.tangent)

    def sum(self, x: Pair, axis: int) -> Pair:
        return Pair(self.balls.sum(x.value, axis), self.balls.sum(x.tangent, axis))

    def softmax(self, x: Pair, axis: int, where: Array | None) -> Pair:
        """The quotient rule for e^x over its sum, entry by entry."""
        keep = np.broadcast_to(True if where is None else where, x.shape)
        keep, scores, moving = (
            np.moveaxis(array, axis, -1) for array in (keep, x.value.entries, x.tangent.entries)
        )
        value, tangent = np.empty(keep.shape, object), np.empty(keep.shape, object)
        for row in np.ndindex(keep.shape[:-1]):
            kept = [j for j in range(keep.shape[-1]) if keep[(*row, j)]]
            power = {j: scores[(*row, j)].exp() for j in kept}
            total = sum(power.values(), arb(0))
            change = sum((power[j] * moving[(*row, j)] for j in kept), arb(0))
            for j in range(keep.shape[-1]):
                value[(*row, j)] = power[j] / total if j in power else arb(0)
                tangent[(*row, j)] = (
                    power[j] * (moving[(*row, j)] * total - change) / total**2
                    if j in power
                    else arb(0)
                )
        value, tangent = (np.moveaxis(array, -1, axis) for array in (value, tangent))
        return Pair(Balls.of(value), Balls.of(tangent))

    def sigmoid(self, x: Pair) -> Pair:
        """e^x/(1 + e^x)² times the change."""
        powers = [entry.exp() for entry in x.value.flat]
        slopes = Balls(x.shape, flat=[p / (1 + p) ** 2 for p in powers])
        value = Balls(x.shape, flat=[p / (1 + p) for p in powers])
        return Pair(value, self.balls.multiply(slopes, x.tangent))

    def tanh(self, x: Pair) -> Pair:
        slopes = Balls(x.shape, flat=[1 / entry.cosh() ** 2 for entry in x.value.flat])
        return Pair(self.balls.tanh(x.value), self.balls.multiply(slopes, x.tangent))


class Pair:
    def __init__(self, value: Balls, tangent: Balls) -> None:
        self.value, self.tangent, self.shape = value, tangent, value.shape

    def rearranged(self, function: Any) -> Pair:
        return Pair(self.value.rearranged(function), self.tangent.rearranged(function))


def shape_of(tensor: Any, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Shared inputs carry no batch; a mask broadcasts along the heads."""
    own = tuple(int(shapes.fold(axis, SIZES)) for axis in tensor.axes)
    if tensor.name == "mask":
        return (*batch, 1, *own[1:])
    return own if tensor.name in UNBATCHED else (*batch, *own)


def drawn(program: Program, batch: tuple[int, ...], seed: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found = dict[str, Array]()
    for tensor in program.inputs:
        shape = shape_of(tensor, batch)
        if tensor.kind == "index":
            # Some tokens come twice.
            found[tensor.name] = rng.integers(0, 3, shape)
        elif tensor.kind == "mask":
            found[tensor.name] = rng.random(shape) < 0.8
        else:
            found[tensor.name] = rng.standard_normal(shape)
    if "mask" in found:
        mask = found["mask"]
        removed = False if mask.dtype == np.bool_ else -np.inf
        mask[..., 1, :] = removed  # a query without keys
        mask[..., 2, 3] = removed
    return found


def total(x: Balls, y: Balls) -> arb:
    """⟨x, y⟩"""
    return sum((a * b for a, b in zip(x.flat, y.flat, strict=True)), arb(0))


def gradients(program: Program, inputs: Mapping[str, Array]) -> dict[str, Balls]:
    algebra = BallAlgebra()
    values = {
        t.name: algebra.constant(inputs[t.name]) if t.kind == "real" else inputs[t.name]
        for t in program.inputs
    }
    return evaluate(program, algebra, values, SIZES)


def moved(program: Program, name: str, inputs: Mapping[str, Array], towards: Array) -> arb:
    """The derivative of ⟨dC, C⟩ when input `name` moves, by forward mode."""
    algebra = Tangents()

    def pair(tensor: Any) -> Any:
        array = inputs[tensor.name]
        if tensor.kind != "real":
            return array
        change = towards if tensor.name == name else np.zeros(array.shape)
        return Pair(algebra.balls.constant(array), algebra.balls.constant(change))

    values = {tensor.name: pair(tensor) for tensor in program.inputs}
    last = program.equations[-1].target.name
    result = evaluate(program, algebra, values, SIZES)[last]
    return total(result.tangent, algebra.balls.constant(inputs[f"d{last}"]))


def directions(inputs: Mapping[str, Array], program: Program) -> dict[str, Array]:
    rng = np.random.default_rng(8)
    reals = [t.name for t in program.inputs if t.kind == "real"]
    # A mask moves only where it is finite; elsewhere there is no derivative.
    return {
        name: np.where(np.isfinite(inputs[name]), rng.standard_normal(inputs[name].shape), 0.0)
        for name in reals
    }


@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
@pytest.mark.parametrize("name", FORWARD)
def test_gradients_are_the_forward_derivatives(name: str, batch: tuple[int, ...]) -> None:
    forward, _ = FORWARD[name]
    program = derived(name)
    inputs = drawn(program, batch)
    with working_precision(BITS):
        found = gradients(program, inputs)
        for moving, towards in directions(inputs, forward).items():
            true = moved(forward, moving, inputs, towards)
            ours = total(found[f"d{moving}"], BallAlgebra().constant(towards))
            assert ours.overlaps(true), (moving, ours, true)
            assert float(true.rad()) < 1e-100
            # A number that is added to every key adds one number to all scores of a query.
            assert (float(abs(true)) > 1e-6) == (moving != "bk"), moving


@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
@pytest.mark.parametrize("name", FORWARD)
def test_the_contracted_sum_has_the_same_values(name: str, batch: tuple[int, ...]) -> None:
    inputs = drawn(derived(name), batch)
    with working_precision(BITS):
        usual = gradients(derived(name), inputs)
        contracted = gradients(derived(name, contracted=True), inputs)
    assert usual.keys() == contracted.keys()
    for target, balls in usual.items():
        pairs = zip(balls.flat, contracted[target].flat, strict=True)
        assert all(a.overlaps(b) for a, b in pairs), target
    if name not in TEXTS:
        changed = plain(derived(name, contracted=True)) != plain(derived(name))
        assert changed == (name != "embedding-plain")


@pytest.mark.parametrize("name", FORWARD)
def test_gradients_are_the_limits_of_differences(name: str) -> None:
    forward, last = FORWARD[name]
    program = derived(name)
    inputs = drawn(program, ())
    with working_precision(BITS):
        algebra = BallAlgebra()
        found = gradients(program, inputs)
        for moving, towards in directions(inputs, forward).items():

            def value(step: float, name: str = moving, towards: Array = towards) -> arb:
                values: dict[str, Any] = {
                    t.name: algebra.constant(inputs[t.name]) if t.kind == "real" else inputs[t.name]
                    for t in forward.inputs
                }
                change = algebra.scale(algebra.constant(towards), Scalar.of(step))
                values[name] = algebra.add(values[name], change)
                result = evaluate(forward, algebra, values, SIZES)[last]
                return total(result, algebra.constant(inputs[f"d{last}"]))

            quotient = (value(STEP) - value(-STEP)) / (2 * STEP)
            ours = total(found[f"d{moving}"], algebra.constant(towards))
            # Third derivatives of these smooth functions are far below 2**60.
            assert float(abs(quotient - ours)) < STEP**2 * 2.0**60, moving


@pytest.mark.parametrize("name", ["dA", "dS", "dΩ", "dV", "dK", "dQ", "dX", "dWq"])
def test_a_wrong_equation_is_noticed(name: str) -> None:
    """Each statement matters: doubled, the derivative along some input is another."""
    forward = forward_profiles()["attention"].program()
    program = adjoint(forward, "C", shared=SHARED)
    equations = tuple(
        replace(e, expression=Op("multiply", (e.expression, Number(Fraction(2)))))
        if e.target.name == name
        else e
        for e in program.equations
    )
    inputs = drawn(program, ())
    with working_precision(BITS):
        found = gradients(replace(program, equations=equations), inputs)
        agree = {
            input: total(found[f"d{input}"], BallAlgebra().constant(towards)).overlaps(
                moved(forward, input, inputs, towards)
            )
            for input, towards in directions(inputs, forward).items()
        }
    assert not all(agree.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X[h, n, d]\nY[n, h * d] = merge(X)", "was not split"),
        ("X[n, d]\nY[n, 1] = sum(X, axis=1)", "sum has no reverse rule"),
        ("X[n, d]\ndX[n, d]\nY[n, d] = X + dX", "dX is defined twice"),
        ("X[n, d]\ndY[n, d]\nY[n, d] = X + dY", "dY is declared twice"),
        ("X[n, dX]\nY[n, dX] = X + X", "dX names both"),
    ],
)
def test_what_has_no_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        adjoint(parse(text), "Y")


def test_the_gradients_of_attention_as_they_are_read() -> None:
    derived = forward_profiles()["attention"].gradients.program()
    assert plain(derived).split("\n")[-10:] == [
        "dA[n, n] = dC @ V.T",
        "dS[n, n] = A * (dA - sum(A * dA, axis=1))",
        "dΩ[n, n] = dS / sqrt(c)",
        "dV[n, c] = A.T @ dC",
        "dK[n, c] = dΩ.T @ Q",
        "dQ[n, c] = dΩ @ K",
        "dX[n, d] = dV @ Wv.T + dK @ Wk.T + dQ @ Wq.T",
        "dWq[d, c] = sum_to(X.T @ dQ, Wq)",
        "dWk[d, c] = sum_to(X.T @ dK, Wk)",
        "dWv[d, c] = sum_to(X.T @ dV, Wv)",
    ]


def test_the_gradients_of_two_softmaxes_as_they_are_read() -> None:
    assert plain(derived("differential attention")).split("\n")[-15:] == [
        "dA[n, n] = dC @ X.T",
        "dD[n, n] = -dA * lam",
        "dS[n, n] = D * (dD - sum(D * dD, axis=1))",
        "dB[n, n] = dA",
        "dS2[n, n] = B * (dB - sum(B * dB, axis=1))",
        "dK2[n, c] = (dS / sqrt(c)).T @ Q2",
        "dQ2[n, c] = dS / sqrt(c) @ K2",
        "dK1[n, c] = (dS2 / sqrt(c)).T @ Q1",
        "dQ1[n, c] = dS2 / sqrt(c) @ K1",
        "dX[n, d] = A.T @ dC + dK2 @ W.T + dQ2 @ U.T + dK1 @ Wk.T + dQ1 @ Wq.T",
        "dWq[d, c] = sum_to(X.T @ dQ1, Wq)",
        "dWk[d, c] = sum_to(X.T @ dK1, Wk)",
        "dU[d, c] = sum_to(X.T @ dQ2, U)",
        "dW[d, c] = sum_to(X.T @ dK2, W)",
        "dlam[1] = sum_to(-dA * D, lam)",
    ]


def test_names_of_logits_are_free() -> None:
    """A tensor S has the cotangent dS, and an axis may be called dS2."""
    text = "S[n, dS2]\nA[n, dS2] = softmax(S + S, axis=1)\nC[n, dS2] = A * A"
    names = [e.target.name for e in adjoint(parse(text), "C").equations]
    assert names == ["A", "C", "dA", "dS3", "dS"]


def test_what_is_shared_is_an_argument() -> None:
    text = parse("X[n, d]\nM[d, d]\nWq[d, d]\nY[n, d] = X @ M @ Wq")
    found = plain(adjoint(text, "Y", shared=frozenset({"M"}))).split("\n")
    assert found[-2].startswith("dM[d, d] = sum_to(")
    assert "sum_to" not in found[-1]


@pytest.mark.parametrize("name", FORWARD)
def test_the_derived_text_parses_to_itself(name: str) -> None:
    again = parse(plain(derived(name)))
    assert plain(again) == plain(derived(name))
    shapes.check(again)
