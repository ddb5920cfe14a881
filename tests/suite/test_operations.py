"""Operations are defined once: what the definitions say holds in every interpretation."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import qkvac.spec
from qkvac.spec.faults.evaluator import Machine
from qkvac.spec.formats import dtype
from qkvac.spec.grammar.algebra import Algebra
from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.equations import evaluate, parse
from qkvac.spec.grammar.normal_form import normal
from qkvac.spec.grammar.operations import FUNCTIONS, OPERATIONS
from qkvac.spec.grammar.rearrangements import Rearrangements
from qkvac.spec.grammar.syntax import Op, Program, SpecError, walk
from qkvac.spec.registry import forward_profiles, gradient_profiles
from qkvac.spec.symbolic import numpy_code, shapes
from qkvac.spec.symbolic.homogeneity import InhomogeneousError, degrees
from qkvac.spec.symbolic.shapes import Shapes
from qkvac.tests.suite import test_adjoint
from qkvac.tests.suite.arrays import Arrays

Array = np.ndarray[Any, Any]

PROFILES = {**forward_profiles(), **gradient_profiles()}
PROGRAMS = {f"{n}-{v}": p.program(v) for n, p in PROFILES.items() for v in p.texts}

METHODS = [name for name, _ in inspect.getmembers(Algebra, inspect.isfunction) if name[0] != "_"]


# --- algebras ------------------------------------------------------------------------------


def descendants(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from descendants(child)


def algebras() -> list[type]:
    """Every algebra of the package, its tests' included."""
    for module in pkgutil.walk_packages(qkvac.spec.__path__, "qkvac.spec."):
        importlib.import_module(module.name)
    importlib.import_module("qkvac.checks.normality")
    found = [Shapes, Arrays, *descendants(Shapes), *descendants(Rearrangements)]
    found.append(importlib.import_module("qkvac.tests.suite.multiprecision").Multiprecision)
    return [kind for kind in found if kind.__module__.startswith("qkvac.")]


@pytest.mark.parametrize("kind", algebras(), ids=lambda kind: kind.__name__)
def test_an_algebra_has_every_operation(kind: type) -> None:
    for name in METHODS:
        method = inspect.getattr_static(kind, name, None)
        assert method is not None, f"{kind.__name__} has no {name}"
        expected = inspect.signature(getattr(Algebra, name)).parameters
        asked: list[Any] = [None] * (len(expected) - 1)
        # Raises TypeError unless it can be called with as many operands.
        inspect.signature(getattr(kind, name)).bind(None, *asked)


def test_the_algebras_are_found() -> None:
    names = {kind.__name__ for kind in algebras()}
    assert names >= {
        *("Shapes", "Counts", "FaultyShapes", "Rounding", "Bounds", "Spread", "Exactly"),
        *("BallAlgebra", "IntervalAlgebra", "DoubleDoubleAlgebra", "Machine", "Granules"),
    }


def test_the_evaluation_asks_for_nothing_else() -> None:
    """Whatever the grammar can say is put to the methods of the protocol, and to all of them."""
    asked = set[str]()

    class Recording(Arrays):
        def __getattribute__(self, name: str) -> Any:
            if name[0] != "_":
                asked.add(name)
            return super().__getattribute__(name)

    texts = list(PROGRAMS.values())
    texts += [forward for forward, _ in test_adjoint.FORWARD.values()]
    texts += [parse(f"X[n, n]\nY[n, n] = {call}") for call in SAMPLES]
    texts.append(parse("X[h, n, n]\nb[n, n]\ng[n, n] = sum_to(X, b)"))
    for program in texts:
        evaluate(program, Recording(), drawn(program), test_adjoint.SIZES)
    assert asked - {"reported", "center"} == set(METHODS)


SAMPLES = ("1 - X", "X + 2", "X * X", "-X", "sum(X, axis=1) + X")


def test_a_missing_operation_is_an_error_of_the_spec() -> None:
    class Without(Arrays):
        matmul = None  # type: ignore[assignment]

    program = parse("X[n, n]\nY[n, n] = X @ X")
    with pytest.raises(SpecError, match="the algebra Without has no operation matmul"):
        evaluate(program, Without(), {"X": np.ones((2, 2))}, {"n": 2})  # type: ignore[arg-type]


# --- definitions ---------------------------------------------------------------------------


def test_every_operation_stands_in_some_text_and_has_a_printer_for_each_medium() -> None:
    programs = [*PROGRAMS.values(), *map(test_adjoint.derived, test_adjoint.TEXTS)]
    used = {
        node.name
        for program in programs
        for equation in program.equations
        for node in walk(equation.expression)
        if isinstance(node, Op)
    }
    assert used == set(OPERATIONS)
    assert set(FUNCTIONS) < used


def test_what_was_renamed_is_pointed_to() -> None:
    with pytest.raises(SpecError, match="unknown function 'head'; it is called first now"):
        parse("P[p, d]\nX[n, d] = head(P, n)")


def test_axes_agree_with_shapes() -> None:
    for program in PROGRAMS.values():
        symbols = {n: shapes.Axis.symbol(n) for n in (*program.axis_names, *program.parameters)}
        found = shapes.check(program)
        for equation in program.equations:
            axes = axes_of(equation.expression, program.tensors)
            assert (
                tuple(shapes.fold(axis, symbols) for axis in axes)
                == found[equation.target.name].axes[-len(axes) :]
            )


def test_definitions_need_no_certified_arithmetic() -> None:
    """Workers and ports read equations where python-flint, SciPy and frameworks are absent."""
    code = """
import sys
sys.modules.update(dict.fromkeys(("flint", "scipy", "torch", "jax", "tensorflow", "mpmath")))
from qkvac.spec.grammar import parsing, syntax, adjoint, printing, operations, normal_form
from qkvac.spec.symbolic import numpy_code, homogeneity
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- NumPy source --------------------------------------------------------------------------


def drawn(program: Program, batch: tuple[int, ...] = ()) -> dict[str, Array]:
    return test_adjoint.drawn(program, batch)


def test_heads_are_printed_for_numpy() -> None:
    program = forward_profiles()["multi_head_attention"].program("causal")
    assert numpy_code.sizes(program) == ("n = X.shape[-2]", "c = Wq.shape[-1]")
    assert numpy_code.statements(program)[3:] == (
        "Ω = split(Q, h) @ split(K, h).swapaxes(-1, -2)",
        "A = softmax(Ω / math.sqrt(c / h), -1, np.tri(n, n, dtype=bool))",
        "C = merge(A @ split(V, h))",
        "Y = C @ Wo",
    )


@pytest.mark.parametrize("name", [*PROGRAMS, *test_adjoint.TEXTS])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
def test_printed_code_computes_the_program(name: str, batch: tuple[int, ...]) -> None:
    program = PROGRAMS[name] if name in PROGRAMS else test_adjoint.derived(name)
    inputs = drawn(program, batch)
    scope: dict[str, Any] = {"np": np, "math": math, **inputs}
    scope |= {n: test_adjoint.SIZES[n] for n in program.parameters if n == "h"}
    scope |= {"scale": 0.375} if "scale" in program.parameters else {}
    lines = [*numpy_code.helpers(program), *numpy_code.sizes(program)]
    exec("\n".join([*lines, *numpy_code.statements(program)]), scope)
    with np.errstate(all="ignore"):
        expected = evaluate(program, Machine("float64"), inputs, test_adjoint.SIZES)
    for target, value in expected.items():
        assert scope[target].shape == value.shape, target
        np.testing.assert_allclose(scope[target], value, rtol=1e-10, atol=1e-12)
    calls = any("math." in line for line in numpy_code.statements(program))
    assert numpy_code.needs_math(program) == calls


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_printed_code_stays_in_the_dtype(kind: str) -> None:
    program = forward_profiles()["attention"].program()
    scope: dict[str, Any] = {"np": np, "math": math}
    scope |= {n: array.astype(dtype(kind)) for n, array in drawn(program).items()}
    lines = [*numpy_code.helpers(program), *numpy_code.sizes(program)]
    exec("\n".join([*lines, *numpy_code.statements(program)]), scope)
    assert {scope[e.target.name].dtype.name for e in program.equations} == {kind}


# --- degrees -------------------------------------------------------------------------------

WEIGHTS = {"Wq": -2, "Wk": -2, "Wv": -2}

SCALED = {
    ("attention", ""): ({"X": 2, **WEIGHTS}, {}),
    ("causal_attention", ""): ({"Wq": 1, "Wk": -1, "Wv": 3}, {"Q": 1, "K": -1, "V": 3, "C": 3}),
    ("multi_head_attention", ""): (
        {"Wq": 1, "Wk": -1, "Wv": 3, "Wo": -2},
        {"Q": 1, "K": -1, "V": 3, "C": 3, "Y": 1},
    ),
    ("attention_linear_layers", "bias"): (
        {"Wq": 1, "bq": 1, "Wk": -1, "bk": -1, "Wv": 3, "bv": 3},
        {"Q": 1, "K": -1, "V": 3, "C": 3},
    ),
    ("scaled_dot_product_attention", "additive-causal-scale"): (
        {"Q": 1, "K": -1, "V": 3},
        {"C": 3},
    ),
    ("embedding", ""): ({"E": 2, "P": 2}, {"X": 2}),
    ("attention_gradients", ""): (
        {"dC": 4},
        dict.fromkeys(("dA", "dS", "dΩ", "dV", "dK", "dQ", "dX", "dWq", "dWk", "dWv"), 4),
    ),
}


@pytest.mark.parametrize(("profile", "variant"), SCALED)
def test_powers_of_two_go_through_a_program(profile: str, variant: str) -> None:
    given, expected = SCALED[profile, variant]
    program = PROFILES[profile].program(variant or None)
    found = degrees(program, given)
    assert {name: k for name, k in found.items() if k} == expected
    inputs = drawn(program)
    moved = {n: np.ldexp(a, given[n]) if n in given else a for n, a in inputs.items()}
    before, after = (evaluate(program, Arrays(), i, test_adjoint.SIZES) for i in (inputs, moved))
    for name, k in found.items():
        np.testing.assert_array_equal(after[name], np.ldexp(before[name], k), name)


@pytest.mark.parametrize(
    ("profile", "variant", "given", "message"),
    [
        ("attention", None, {"X": 1}, "softmax of degree 2"),
        ("attention", None, {"Wq": 1}, "softmax of degree 1"),
        ("embedding", None, {"E": 1}, "a sum of degrees 1 and 0"),
        ("attention_linear_layers", "bias", {"Wv": 1}, "a sum of degrees 1 and 0"),
    ],
)
def test_what_is_not_homogeneous_is_named(
    profile: str, variant: str | None, given: dict[str, int], message: str
) -> None:
    with pytest.raises(InhomogeneousError, match=message):
        degrees(PROFILES[profile].program(variant), given)


def test_signs_count_modulo_2() -> None:
    program = PROFILES["dot_product_attention"].program()
    assert degrees(program, {"X": 1}, signs=True) == {"Ω": 0, "A": 0, "C": 1}
    with pytest.raises(InhomogeneousError):
        degrees(program, {"X": 1})
    masked = PROFILES["scaled_dot_product_attention"].program("additive")
    with pytest.raises(InhomogeneousError):
        degrees(masked, {"mask": 1, "Q": 1}, signs=True)


def test_parts_have_degrees_too() -> None:
    program = normal(PROFILES["multi_head_attention"].program())
    assert degrees(program, {"Wv": 1})["C1"] == 1
