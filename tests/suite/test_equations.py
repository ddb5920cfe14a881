"""The grammar: what it accepts, how it refuses, and what evaluation hands to an algebra."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qkvac.spec.grammar.equations import Number, Op, Program, Ref, SpecError, evaluate, fold, parse
from qkvac.spec.grammar.scalar import Scalar
from qkvac.tests.suite.arrays import Arrays

SQUARE = "X[n, n]\nY[n, n]\nb[n]\ns\n"


def run(text: str, sizes: dict[str, object] | None = None, **inputs: np.ndarray) -> np.ndarray:
    """The last equation's value over plain arrays."""
    results = evaluate(parse(text), Arrays(), inputs, sizes or {})
    return np.asarray(list(results.values())[-1])


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return str(caught.value)


# --- what a program says about itself ---------------------------------------------------------


def test_a_program_lists_its_declarations_in_order() -> None:
    program = parse("X[n, d]\nW[d, c]\nscale\nQ[n, c] = X @ W\nΩ[n, n] = Q @ Q.T * scale")
    assert [tensor.name for tensor in program.inputs] == ["X", "W"]
    assert program.parameters == ("scale",)
    assert [equation.target.name for equation in program.equations] == ["Q", "Ω"]
    assert [equation.line for equation in program.equations] == [4, 5]
    assert program.equations[1].text == "Ω[n, n] = Q @ Q.T * scale"
    assert program.equations[1].operands == ("Q", "scale")
    assert program.axis_names == ("n", "d", "c")
    assert list(program.tensors) == ["X", "W", "Q", "Ω"]
    assert program.equation("Q").expression == Op("matmul", (Ref("X"), Ref("W")))
    with pytest.raises(KeyError):
        program.equation("X")


def test_an_axis_may_be_a_product_or_quotient() -> None:
    program = parse("X[n, c / h]\nh\nY[n, 2 * c / h] = X")
    assert program.inputs[0].axes == (Ref("n"), Op("divide", (Ref("c"), Ref("h"))))
    assert program.axis_names == ("n", "c", "h")


def test_a_text_may_be_indented_and_an_equation_may_span_lines() -> None:
    program = parse("\n\n    X[n, n]\n    Y[n, n] = (X\n        @ X)\n    Z[n, n] = -Y\n")
    assert [equation.line for equation in program.equations] == [2, 4]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("X[n, m]\nk[n, m]\nA[n, m] = softmax(X, axis=1, where=k)", {"X": "real", "k": "mask"}),
        ("X[n, m]\nk[m]\nA[n, m] = softmax(X, 1, k & causal(n, m))", {"X": "real", "k": "mask"}),
        (
            "X[n, m]\nk[n, m]\nA[n, m] = softmax(X + k, axis=1, where=finite(k))",
            {"X": "real", "k": "real"},
        ),
        ("E[t, d]\ni[n]\nX[n, d] = take(E, i)", {"E": "real", "i": "index"}),
        ("G[n, d]\ni[n]\nE[t, d]\nD[t, d] = scatter_add(G, i, E)", {"G": "real", "i": "index"}),
    ],
)
def test_the_kind_of_an_input_follows_from_its_use(text: str, kinds: dict[str, str]) -> None:
    found = {tensor.name: tensor.kind for tensor in parse(text).inputs}
    assert found | kinds == found


def test_numbers_are_exact() -> None:
    program = parse("X[n]\nY[n] = X * 0.1 + 1e-400")
    (equation,) = program.equations
    assert equation.expression == Op(
        "add",
        (
            Op("multiply", (Ref("X"), Number(Fraction(1, 10)))),
            Number(Fraction(1, 10**400)),
        ),
    )


def test_restricted_keeps_what_is_needed_for_the_wanted_quantity() -> None:
    program = parse(
        "X[n, d]\nW[d, c]\nQ[n, c] = X @ W\nΩ[n, n] = Q @ Q.T\n"
        "A[n, n] = softmax(Ω, axis=1)\nC[n, c] = A @ Q"
    )
    from_all = program.restricted(frozenset({"Q", "Ω", "A"}), "C")
    assert [tensor.name for tensor in from_all.inputs] == ["Q", "A"]
    assert [equation.target.name for equation in from_all.equations] == ["C"]
    from_queries = program.restricted(frozenset({"Q"}), "C")
    assert [tensor.name for tensor in from_queries.inputs] == ["Q"]
    assert [equation.target.name for equation in from_queries.equations] == ["Ω", "A", "C"]
    from_nothing = program.restricted(frozenset(), "Ω")
    assert [tensor.name for tensor in from_nothing.inputs] == ["X", "W"]
    assert [equation.target.name for equation in from_nothing.equations] == ["Q", "Ω"]


# --- refusals ---------------------------------------------------------------------------------

MALFORMED = {
    "syntax": ("X[n, n]\nY[n, n] = X @", 2, "not an equation"),
    "unclosed": ("X[n, n]\nY[n, n] = (X", 2, "not an equation"),
    "no equation": ("X[n, n]", 1, "declares no equation"),
    "empty": ("", 1, "declares no equation"),
    "twice": ("X[n]\nX[n] = 2 * X", 2, "X is declared twice"),
    "parameter twice": ("s\ns\nX[n]\nY[n] = X", 2, "s is declared twice"),
    "no axes": ("X[n]\nY = X", 2, "declared with its axes"),
    "empty axes": ("X[n]\nY[()] = X", 2, "at least one axis"),
    "statement": ("X[n]\nimport os", 2, "expected"),
    "augmented": ("X[n]\nX[n] += X", 2, "expected"),
    "annotated": ("X[n]\nY[n]: int = X", 2, "expected"),
    "two targets": ("X[n]\nY[n] = Z[n] = X", 2, "expected"),
    "loop": ("X[n]\nfor i in X: pass", 2, "expected"),
    "declared number": ("X[n]\n3\nY[n] = X", 2, "declared with its axes"),
    "sum as axis": ("X[n + 1]\nY[n] = X", 1, "an axis is"),
    "slice as axis": ("X[n:2]\nY[n] = X", 1, "outside the grammar"),
    "text as axis": ("X['n']\nY[n] = X", 1, "outside the grammar"),
    "undefined": ("X[n]\nY[n] = X + Z", 2, "Z is used before it is defined"),
    "used early": ("X[n]\nY[n] = X + Z\nZ[n] = X", 2, "Z is used before it is defined"),
    "itself": ("X[n]\nY[n] = X + Y", 2, "Y is used before it is defined"),
    "axis is a tensor": ("X[n]\nn[n]\nY[n] = X", 2, "names both"),
    "power": ("X[n]\nY[n] = X ** 2", 2, "outside the grammar"),
    "or": ("X[n]\nk[n]\nY[n] = softmax(X, axis=0, where=k | k)", 3, "outside the grammar"),
    "not": ("X[n]\nk[n]\nY[n] = softmax(X, axis=0, where=~k)", 3, "outside the grammar"),
    "comparison": ("X[n]\nY[n] = X < 2", 2, "outside the grammar"),
    "subscript": ("X[n]\nY[n] = X[0]", 2, "outside the grammar"),
    "attribute": ("X[n, n]\nY[n, n] = X.H", 2, "outside the grammar"),
    "method": ("X[n, n]\nY[n, n] = X.sum()", 2, "outside the grammar"),
    "lambda": ("X[n]\nY[n] = (lambda: X)()", 2, "outside the grammar"),
    "string": ("X[n]\nY[n] = 'X'", 2, "outside the grammar"),
    "truth": ("X[n]\nY[n] = X * True", 2, "outside the grammar"),
    "complex": ("X[n]\nY[n] = X * 1j", 2, "outside the grammar"),
    "infinite": ("X[n]\nY[n] = X * 1e999", 2, "a number must be finite"),
    "unknown function": ("X[n]\nY[n] = exp(X)", 2, "unknown function 'exp'"),
    "too many": ("X[n]\nY[n] = softmax(X, 0, X, X)", 2, "softmax takes (x, axis, where)"),
    "too few": ("X[n, n]\nY[n, n, n] = split(X)", 2, "split needs h"),
    "no axis": ("X[n]\nY[n] = softmax(X)", 2, "softmax needs axis"),
    "unknown keyword": ("X[n]\nY[n] = softmax(X, dim=0)", 2, "softmax takes"),
    "given twice": ("X[n]\nY[n] = softmax(X, 0, axis=0)", 2, "each once"),
    "starred": ("X[n]\nY[n] = softmax(*X)", 2, "softmax takes"),
    "double starred": ("X[n]\nY[n] = softmax(X, **X)", 2, "softmax takes"),
    "axis by name": ("X[n]\nY[n] = softmax(X, axis=n)", 2, "axis is a whole number"),
    "axis is a float": ("X[n]\nY[n] = sum(X, axis=0.0)", 2, "axis is a whole number"),
    "axis is negative": ("X[n]\nY[n] = softmax(X, axis=-1)", 2, "axis is a whole number"),
    "axis too large": ("X[n]\nY[n] = softmax(X, axis=1)", 2, "softmax over axis 1"),
    "rank": ("X[n, d]\nY[n] = X", 2, "the right-hand side has 2 axes, Y has 1"),
    "scalar": ("X[n]\nY[n] = sqrt(n)", 2, "the right-hand side has 0 axes, Y has 1"),
    "vector product": ("X[n, d]\nb[d]\nY[n, d] = X @ b", 3, "at least 2 declared axes"),
    "vector transposed": ("b[d]\nY[d] = b.T", 2, "at least 2 declared axes"),
    "division by a tensor": ("X[n]\nY[n] = 1 / X", 2, "below the bar"),
    "root of a tensor": ("X[n]\nY[n] = sqrt(X)", 2, "sqrt takes a scalar as operand 1"),
    "causal of tensors": (
        "X[n, n]\nY[n, n] = softmax(X, axis=1, where=causal(X, X))",
        2,
        "causal takes a scalar",
    ),
    "split by a tensor": (
        "X[n, n]\nY[n, n, n] = split(X, X)",
        2,
        "split takes a scalar as operand 2",
    ),
    "merge of a matrix": ("X[n, n]\nY[n] = merge(X)", 2, "merge needs at least 3"),
    "repeat of a matrix": ("X[n, n]\nY[n, n] = repeat(X, 2)", 2, "repeat needs at least 3"),
    "take of a vector": ("E[t]\ni[n]\nX[n] = take(E, i)", 3, "take needs"),
    "take at a scalar": ("E[t, d]\nX[d] = take(E, d)", 2, "a tensor"),
    "merge of a scalar": ("X[n]\nY[n] = merge(n)", 2, "merge takes a tensor"),
    "number as mask": ("X[n]\nY[n] = softmax(X, axis=0, where=1)", 2, "takes a tensor"),
    "size as mask": ("X[n]\nY[n] = softmax(X, axis=0, where=n)", 2, "takes a tensor"),
    "size in a mask": ("X[n]\nY[n] = softmax(X, axis=0, where=n & n)", 2, "a tensor"),
    "finite of a size": ("X[n]\nY[n] = softmax(X, axis=0, where=finite(n))", 2, "a tensor"),
    "wide mask": ("X[n]\nk[n, n]\nY[n] = softmax(X, axis=0, where=k)", 3, "mask"),
    "sum as mask": ("X[n]\nk[n]\nY[n] = softmax(X, axis=0, where=k + k)", 3, "take a mask"),
    "mask as number": ("X[n, n]\nY[n, n] = X + causal(n, n)", 2, "mask"),
    "mask as result": ("X[n, n]\nY[n, n] = causal(n, n)", 2, "mask"),
    "mask and real": ("k[n]\nY[n] = softmax(k, axis=0, where=k)", 2, "both as"),
    "index and real": ("E[t, d]\ni[t, d]\nX[t, d, d] = take(E + i, i)", 3, "both as"),
    "product of masks": ("k[n, n]\nX[n, n]\nY[n, n] = X + (k & k)", 3, "mask"),
}


@pytest.mark.parametrize(("text", "line", "message"), MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_text_is_refused_and_its_line_shown(text: str, line: int, message: str) -> None:
    found = refused(text)
    assert found.startswith(f"spec line {line}: ")
    assert message in found
    assert text.split("\n")[line - 1] in found


def test_the_caret_counts_characters_not_bytes() -> None:
    *_, shown, caret = refused("Ω[n, n]\nY[n, n] = Ω + Ω ** 2").split("\n")
    assert shown.strip() == "Y[n, n] = Ω + Ω ** 2"
    assert caret.index("^") == shown.index("Ω ** 2")


@pytest.mark.parametrize("text", ["X[n]\nY[n] = X * 0x10", "X[n]\nY[n] = X * 0b1"])
def test_a_number_in_another_base_is_read(text: str) -> None:
    (equation,) = parse(text).equations
    assert isinstance(equation.expression, Op)
    assert equation.expression.args[1] in (Number(Fraction(16)), Number(Fraction(1)))


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="XYnΩ[],=@+-*/&.T() 0123456789\n'", max_size=40)
    | st.text(max_size=20)
    | st.lists(
        st.sampled_from(
            ["X[n, n]", "\n", "Y[n, n] = ", "X", "@", "softmax(", ")", ".T", "axis=1", ", ", "n",
             "where=", "causal(n, n)", "sqrt(", "1", "/", "*", "-", "take(", "split(", "merge("]
        ),
        max_size=14,
    ).map("".join)
)  # fmt: skip
@example("\0")
@example("X[n]\nY[n] = X * 0o9")
@example("X[c/0]\nY[c/0] = X")
@example("-" * 5000 + "X")
def test_any_text_is_a_program_or_a_spec_error(text: str) -> None:
    message = "spec line "
    try:
        assert isinstance(parse(text), Program)
    except SpecError as error:
        message = str(error)
    assert message.startswith("spec line ")


# --- evaluation -------------------------------------------------------------------------------

FACTOR = st.sampled_from(
    ["2", "0.5", "s", "n", "sqrt(n)", "(1 / s)", "-3", "sqrt(n / s)", "(n + 1)"]
)
TERM = st.sampled_from(["b", "1", "s", "n", "-0.5"])


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions; what is not a matrix stands in brackets, or behind a * or /."""
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "@"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["*", "/"]), FACTOR).map(" ".join),
        st.tuples(FACTOR, inner).map(lambda t: f"({t[0]} * {t[1]})"),
        st.tuples(inner, st.sampled_from(["+", "-"]), TERM).map(lambda t: f"({' '.join(t)})"),
        st.tuples(TERM, st.sampled_from(["+", "-"]), inner).map(lambda t: f"({' '.join(t)})"),
        inner.map(lambda t: f"({t} * b)"),
        inner.map(lambda t: f"-({t})"),
        inner.map(lambda t: f"({t}).T"),
        inner.map(lambda t: f"({t})"),
        inner.map(lambda t: f"(Y + sum({t}, axis=0))"),
        inner.map(lambda t: f"(sum({t}, axis=1) - X)"),
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.sampled_from(["X", "Y"]), grown, max_leaves=6))
def test_an_expression_means_what_it_means_in_python(expression: str) -> None:
    """The same text, evaluated by Python itself over NumPy arrays, with its own precedence."""
    draw = np.random.default_rng(5)
    X, Y, b = draw.normal(size=(3, 3)), draw.normal(size=(3, 3)), draw.normal(size=3)
    names = {
        "X": X, "Y": Y, "b": b, "s": 0.75, "n": 3, "sqrt": np.sqrt,
        "sum": lambda x, axis: x.sum(axis, keepdims=True),
    }  # fmt: skip
    expected = eval(expression, {}, names)
    found = run(f"{SQUARE}Z[n, n] = {expression}", {"n": 3, "s": Fraction(3, 4)}, X=X, Y=Y, b=b)
    scale = np.abs(expected).max() + 1
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)


def test_results_come_and_are_reported_in_the_order_of_the_text() -> None:
    algebra = Arrays()
    text = "X[n, n]\nB[n, n] = X + X\nA[n, n] = B @ X\nC[n, n] = A + B"
    results = evaluate(parse(text), algebra, {"X": np.eye(2)}, {"n": 2})
    assert list(results) == algebra.reported == ["B", "A", "C"]


def test_later_equations_use_the_reported_value() -> None:
    class Doubled(Arrays):
        def report(self, name: str, value: np.ndarray) -> np.ndarray:
            return 2 * value

    text = "X[n, n]\nB[n, n] = X\nA[n, n] = B"
    results = evaluate(parse(text), Doubled(), {"X": np.eye(2)}, {"n": 2})
    np.testing.assert_array_equal(results["A"], 4 * np.eye(2))


def test_axes_reach_the_algebra_counted_from_the_end() -> None:
    class Axes(Arrays):
        seen: tuple[int, ...] = ()

        def softmax(self, x: np.ndarray, axis: int, where: np.ndarray | None) -> np.ndarray:
            self.seen += (axis,)
            return super().softmax(x, axis, where)

        def first(self, x: np.ndarray, n: int, axis: int) -> np.ndarray:
            self.seen += (axis,)
            return super().first(x, n, axis)

    algebra = Axes()
    text = (
        "X[n, m]\nA[n, m] = softmax(X, axis=0)\nB[n, m] = softmax(X, axis=1)\nH[k, m] = first(X, k)"
    )
    evaluate(parse(text), algebra, {"X": np.ones((5, 3, 4))}, {"n": 3, "m": 4, "k": 2})
    assert algebra.seen == (-2, -1, -2)


def test_scalar_factors_reach_the_algebra_exactly() -> None:
    class Factors(Arrays):
        seen: tuple[Scalar, ...] = ()

        def scale(self, x: np.ndarray, s: Scalar) -> np.ndarray:
            self.seen += (s,)
            return super().scale(x, s)

    algebra = Factors()
    text = "X[n]\nA[n] = X / sqrt(c)\nB[n] = X / sqrt(c / h)\nD[n] = X * (0.1 * c)\nE[n] = X / c"
    sizes = {"n": 1, "c": 12, "h": 4}
    evaluate(parse(text.replace("X[n]\n", "X[n]\nc\nh\n")), algebra, {"X": np.ones(1)}, sizes)
    assert [(s * s).rational() for s in algebra.seen] == [
        Fraction(1, 12),
        Fraction(1, 3),
        Fraction(36, 25),
        Fraction(1, 144),
    ]


def test_a_scalar_minus_a_tensor_is_not_a_tensor_minus_a_scalar() -> None:
    text = "X[n]\ns\nY[n] = s - X"
    np.testing.assert_array_equal(run(text, {"n": 2, "s": 5}, X=np.array([1.0, 2.0])), [4.0, 3.0])


@pytest.mark.parametrize(
    ("expression", "value"),
    [("n / h", 3), ("-n + 2 * h", -2), ("sqrt(n * n)", 6), ("n - h", 4), ("sqrt(n / h / 3)", 1)],
)
def test_fold_gives_the_exact_value_of_a_scalar(expression: str, value: int) -> None:
    (equation,) = parse(f"X[n]\nh\nY[n] = X * ({expression})").equations
    assert isinstance(equation.expression, Op)
    assert fold(equation.expression.args[1], {"n": 6, "h": 2}).rational() == value


def test_fold_refuses_what_is_no_scalar_operation() -> None:
    with pytest.raises(SpecError, match="merge is not an operation on scalars"):
        fold(Op("merge", (Ref("n"),)), {"n": 2})


def test_a_vector_is_lifted_below_batch_axes() -> None:
    """X[B, n, d] + b[B, d]: the bias of a sample goes to that sample's rows."""
    X, b = np.zeros((2, 3, 4)), np.arange(8.0).reshape(2, 4)
    found = run("X[n, d]\nb[d]\nY[n, d] = X + b", {}, X=X, b=b)
    np.testing.assert_array_equal(found, np.broadcast_to(b[:, None, :], (2, 3, 4)))


def test_a_matrix_times_heads_is_lifted_before_the_matrix() -> None:
    draw = np.random.default_rng(3)
    X, H = draw.normal(size=(2, 3, 4)), draw.normal(size=(2, 5, 4, 6))
    found = run("X[n, d]\nH[h, d, c]\nY[h, n, c] = X @ H", {}, X=X, H=H)
    np.testing.assert_allclose(found, X[:, None] @ H, rtol=1e-13)


def test_a_narrow_mask_is_lifted_to_the_scores() -> None:
    X, k = np.zeros((2, 3, 2, 4)), np.array([[True, False, True, False], [True, True, False, True]])
    text = "X[h, n, m]\nk[m]\nA[h, n, m] = softmax(X, axis=2, where=k)"
    found = run(text, {}, X=X, k=k)
    expected = (k / k.sum(-1, keepdims=True))[:, None, None, :]
    np.testing.assert_allclose(found, np.broadcast_to(expected, X.shape), rtol=1e-15)


# --- functions that adjoints use ---------------------------------------------------------------


def test_sum_keeps_its_axis() -> None:
    X = np.arange(24.0).reshape(2, 3, 4)
    rows = run("X[n, d]\nY[1, d] = sum(X, axis=0)", {}, X=X)
    columns = run("X[n, d]\nY[n, 1] = sum(X, axis=1)", {}, X=X)
    np.testing.assert_array_equal(rows, X.sum(1, keepdims=True))
    np.testing.assert_array_equal(columns, X.sum(2, keepdims=True))


def test_sum_to_adds_up_what_was_broadcast() -> None:
    G, b = np.arange(24.0).reshape(2, 3, 4), np.zeros(4)
    found = run("G[n, d]\nb[d]\ndb[d] = sum_to(G, b)", {}, G=G, b=b)
    np.testing.assert_array_equal(found, G.sum((0, 1)))
    m = np.zeros((3, 1))
    found = run("G[n, d]\nm[n, d]\ndm[n, d] = sum_to(G, m)", {}, G=G, m=m)
    np.testing.assert_array_equal(found, G.sum((0, 2))[:, None])


def test_scatter_add_is_the_adjoint_of_take() -> None:
    draw = np.random.default_rng(4)
    E, G, i = (
        draw.normal(size=(5, 2)),
        draw.normal(size=(2, 3, 2)),
        np.array([[0, 4, 0], [1, 0, 4]]),
    )
    taken = run("E[t, d]\ni[n]\nX[n, d] = take(E, i)", {}, E=E, i=i)
    spread = run("G[n, d]\ni[n]\nE[t, d]\nD[t, d] = scatter_add(G, i, E)", {}, G=G, i=i, E=E)
    assert taken.shape == G.shape
    assert spread.shape == E.shape
    np.testing.assert_allclose((taken * G).sum(), (E * spread).sum(), rtol=1e-13)


def test_pad_is_the_adjoint_of_head() -> None:
    draw = np.random.default_rng(4)
    P, G = draw.normal(size=(5, 2)), draw.normal(size=(3, 2))
    first = run("P[p, d]\nn\nX[n, d] = first(P, n)", {"n": 3}, P=P)
    padded = run("G[n, d]\nP[p, d]\nD[p, d] = pad(G, P)", {}, G=G, P=P)
    assert padded.shape == P.shape
    np.testing.assert_allclose((first * G).sum(), (P * padded).sum(), rtol=1e-13)


# --- masks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "keys"), [(3, 3), (2, 4), (4, 2), (1, 5), (0, 3)])
def test_the_causal_triangle_in_both_alignments(length: int, keys: int) -> None:
    masks = Arrays()
    i, j = np.arange(length)[:, None], np.arange(keys)
    np.testing.assert_array_equal(masks.causal(length, keys), j <= i)
    bottom = masks.causal(length, keys, alignment="bottom-right")
    np.testing.assert_array_equal(bottom, j <= i + keys - length)


def test_a_finite_bias_keeps_its_key() -> None:
    lowest = np.finfo(np.float64).min
    mask = np.array([0.0, -np.inf, lowest, 3.0])
    np.testing.assert_array_equal(Arrays().finite(mask), [True, False, True, True])


def test_conjunction_keeps_what_both_keep() -> None:
    left, right = np.array([[True], [False]]), np.array([True, False])
    np.testing.assert_array_equal(
        Arrays().conjunction(left, right), [[True, False], [False, False]]
    )
