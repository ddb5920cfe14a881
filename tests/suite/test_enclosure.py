"""The oracle against 250-digit arithmetic, and the object that carries its result."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from importlib.util import find_spec
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flint import ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvac.spec import equations, interval
from qkvac.spec.attention import PROFILES, SDPA_VARIANTS, Arithmetic
from qkvac.spec.ball import BallAlgebra, working_precision
from qkvac.spec.doubledouble import DoubleDoubleAlgebra
from qkvac.spec.enclosure import Enclosure, certify
from qkvac.spec.equations import fold, parse
from qkvac.spec.formats import FORMATS
from qkvac.spec.formats import dtype as numpy_dtype
from qkvac.spec.interval import GRID, IntervalAlgebra
from qkvac.spec.rearrangements import Array
from qkvac.spec.rounding import bounds
from qkvac.tests.suite.multiprecision import misses, truth

ATTENTION = PROFILES["attention"].program()
CARRIERS: dict[str, Any] = {
    "interval": IntervalAlgebra,
    "double-double": DoubleDoubleAlgebra,
    "double-double, 4 slices": lambda conventions=None: DoubleDoubleAlgebra(conventions, slices=4),
    "balls": BallAlgebra,
}
FAMILIES = (
    *("normal", "wide", "hot", "scalding", "huge", "tiny", "subnormal"),
    *("cancelling", "whole", "sparse"),
)

everyone = pytest.mark.parametrize("carrier", CARRIERS)


def draw(rng: np.random.Generator, shape: Any, family: str) -> Any:
    """Doubles of one family; every one is the start of a different kind of trouble."""
    x = rng.standard_normal(shape)
    if family == "wide":
        return x * 2.0 ** rng.integers(-40, 41, shape)
    if family == "hot":
        return x * 30.0
    if family == "scalding":
        return x * 2.0 ** rng.integers(20, 40)
    if family == "tiny":
        return x * 2.0**-530
    if family == "subnormal":
        return np.ldexp(
            rng.integers(-9, 10, shape).astype(float), rng.choice([-1074, -40, 0], shape)
        )
    if family == "cancelling":
        pattern = np.where(np.arange(x.size).reshape(shape) % 2 == 0, 1.0, -1.0)
        return pattern * (1.0 + rng.integers(-2, 3, shape) * 2.0**-50) * 3.0
    if family == "whole":
        return rng.integers(-8, 9, shape).astype(float)
    if family == "sparse":
        return x * (rng.random(shape) < 0.4)
    if family == "huge":
        return x * 2.0 ** rng.integers(60, 120, shape)
    return x


def run(
    carrier: str, program: Any, inputs: Any, sizes: Any, bits: int = 128, conventions: Any = None
) -> dict[str, Enclosure]:
    algebra = CARRIERS[carrier](conventions)
    kinds = {tensor.name: tensor.kind for tensor in program.inputs}
    with working_precision(bits), np.errstate(all="ignore"):
        values = {
            name: algebra.constant(array) if kinds[name] == "real" else array
            for name, array in inputs.items()
        }
        results = equations.evaluate(program, algebra, values, sizes)
        return {name: Enclosure.of(value) for name, value in results.items()}


def attention_case(
    seed: int, family: str, n: int, d: int, c: int, batch: Any = ()
) -> tuple[dict[str, Array], dict[str, int]]:
    rng = np.random.default_rng(seed)
    families = rng.choice(FAMILIES, 4) if family == "mixed" else [family] * 4
    shapes = [(*batch, n, d), (d, c), (d, c), (d, c)]
    names = ("X", "Wq", "Wk", "Wv")
    inputs = {k: draw(rng, s, f) for k, s, f in zip(names, shapes, families, strict=True)}
    return inputs, {"n": n, "d": d, "c": c}


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
    "adjoints": """
        X[n, d]
        b[d]
        E[t, d]
        tokens[n]
        P[p, d]
        G[n, d] = take(E, tokens) + head(P, n) * X
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
@pytest.mark.parametrize("variant", SDPA_VARIANTS)
@pytest.mark.parametrize("empty_row", ["zeros", "mean"])
def test_kernels_with_masks_heads_and_batches(carrier: str, variant: str, empty_row: str) -> None:
    program = PROFILES["scaled_dot_product_attention"].program(variant)
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
    program = PROFILES["multi_head_attention"].program("causal")
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
    monkeypatch.setattr(interval, "UNIT", 2.0**-60)
    found = run("interval", ATTENTION, inputs, sizes)
    assert all(misses(found[name], true[name]) for name in ("Q", "Ω"))


def test_a_weight_radius_without_the_scores_errors_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, sizes = attention_case(1, "normal", 5, 4, 3)
    true = truth(ATTENTION, inputs, sizes)
    honest = interval.weight_radius

    def blind(weights: Any, log_error: Any, *rest: Any) -> Array:
        return honest(weights, np.minimum(log_error, 2.0**-58), *rest)

    monkeypatch.setattr(interval, "weight_radius", blind)
    assert misses(run("interval", ATTENTION, inputs, sizes)["A"], true["A"])


# --- certify -------------------------------------------------------------------------------


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arithmetics that certifications go through."""
    names = []
    original = equations.evaluate

    def spying(program: Any, algebra: Any, *rest: Any) -> Any:
        label = type(algebra).__name__.removesuffix("Algebra")
        detail = (
            f" {ctx.prec}" if label == "Ball" else f" {algebra.slices}" if label[0] == "D" else ""
        )
        names.append(label + detail)
        return original(program, algebra, *rest)

    monkeypatch.setattr(equations, "evaluate", spying)
    return names


@pytest.mark.parametrize(
    ("dtype", "n", "expected"),
    [
        ("float16", 8, ["Interval"]),
        ("bfloat16", 8, ["Interval"]),
        ("float32", 600, ["Interval"]),
        ("float64", 8, ["Ball 128"]),
        ("float64", 600, ["DoubleDouble 2"]),
    ],
)
def test_the_arithmetic_follows_from_dtype_and_length(
    tried: list[str], dtype: str, n: int, expected: list[str]
) -> None:
    inputs, sizes = attention_case(0, "normal", n, 4, 3)
    inputs = {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}
    found = certify(ATTENTION, inputs, sizes, dtype)
    assert tried == expected
    assert list(found) == ["Q", "K", "V", "Ω", "A", "C"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("family", "shape"),
    [
        *product(
            ["normal", "hot", "sparse", "cancelling", "wide", "tiny"],
            [(1, 1, 1), (6, 3, 2), (33, 20, 7)],
        ),
        ("normal", (600, 9, 5)),
        ("hot", (600, 9, 5)),
    ],
)
def test_radii_are_small_beside_the_bounds(dtype: str, family: str, shape: tuple[int, ...]) -> None:
    """What identical means is decided by the bound alone, the oracle takes under 1/1024 of it."""
    inputs, sizes = attention_case(4, family, *shape)
    if family in ("wide", "tiny") and dtype != "float64":
        inputs = {name: np.ldexp(x, -np.frexp(np.abs(x).max())[1]) for name, x in inputs.items()}
    inputs = {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}
    bound = bounds(ATTENTION, inputs, sizes, Arithmetic.for_dtype(dtype))
    found = certify(ATTENTION, inputs, sizes, dtype, bound=bound)
    assert all(found[name].sharp(limit).all() for name, limit in bound.items())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", [33, 600])
def test_the_first_arithmetic_is_sharp_enough_for_ordinary_data(
    tried: list[str], dtype: str, n: int
) -> None:
    inputs, sizes = attention_case(4, "normal", n, 20, 7)
    inputs = {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}
    bound = bounds(ATTENTION, inputs, sizes, Arithmetic.for_dtype(dtype))
    tried.clear()
    certify(ATTENTION, inputs, sizes, dtype, bound=bound)
    assert len(tried) == 1


def test_precision_rises_until_the_radius_is_small_beside_the_bound(tried: list[str]) -> None:
    inputs, sizes = attention_case(2, "normal", 4, 3, 2)
    inputs["X"] *= 2.0**45  # scores near 2**90: 128 bits leave 38 for the exponentials
    bound = {name: np.full((4, 4), 2.0**-60) for name in ("A",)}
    found = certify(ATTENTION, inputs, sizes, "float64", wanted=["A"], bound=bound)
    assert tried == ["Ball 128", "Ball 256"]
    assert list(found) == ["A"]
    assert found["A"].sharp(bound["A"]).all()
    assert misses(found["A"], truth(ATTENTION, inputs, sizes)["A"]) == []


def test_precision_stops_rising_where_it_cannot_help(tried: list[str]) -> None:
    inputs, sizes = attention_case(2, "normal", 4, 3, 2)
    inputs["X"][1, 1] = np.inf
    found = certify(ATTENTION, inputs, sizes, "float64")
    assert tried == ["Ball 128", "Ball 256"]
    assert np.isinf(found["Q"].radius[1]).all()
    assert found["Q"].known[[0, 2, 3]].all()


def test_an_unattainable_bound_ends_at_the_cap(tried: list[str]) -> None:
    inputs, sizes = attention_case(2, "normal", 4, 3, 2)
    found = certify(ATTENTION, inputs, sizes, "float64", bound={"A": np.zeros((4, 4))})
    assert tried[0] == "Ball 128"
    assert tried[-1] in ("Ball 256", "Ball 512")
    assert (found["A"].radius > 0).any()


def test_exact_quantities_are_certified_until_their_rounding_is(tried: list[str]) -> None:
    """Tied scores near 2**60: float64 cannot bound the weights, Arb has them exactly 1/2."""
    program = parse("S[n, n]\nA[n, n] = softmax(S / 3, axis=1)")
    inputs = {"S": np.full((2, 2), 2.0**60, dtype=np.float32)}
    vague = certify(program, inputs, {"n": 2}, "float32")["A"]
    assert not vague.rounded("float32")[1].all()
    found = certify(program, inputs, {"n": 2}, "float32", exact=["A"])["A"]
    assert tried == ["Interval", "Interval", "Ball 128"]
    value, certain = found.rounded("float32")
    assert certain.all()
    assert value.tolist() == [[0.5, 0.5]] * 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("culprit", [np.nan, np.inf, -np.inf])
def test_entries_that_depend_on_no_number_are_unknown_and_no_others(
    dtype: str, culprit: float
) -> None:
    program = ATTENTION.restricted(frozenset({"A", "V"}), "C")
    rng = np.random.default_rng(0)
    A, V = rng.random((4, 4)), draw(rng, (4, 3), "normal")
    A[2, 1], V[3, 0] = culprit, culprit
    inputs = {"A": A.astype(numpy_dtype(dtype)), "V": V.astype(numpy_dtype(dtype))}
    found = certify(program, inputs, {"n": 4, "c": 3, "d": 1}, dtype)["C"]
    unknown = np.zeros((4, 3), dtype=bool)
    unknown[2], unknown[:, 0] = True, True
    assert np.isinf(found.radius).tolist() == unknown.tolist()
    assert np.isnan(found.hi).tolist() == unknown.tolist()
    assert np.isinf(found.error(found.hi)).tolist() == unknown.tolist()
    assert not found.rounded(dtype)[1][unknown].any()


def test_values_beyond_float64_are_known_to_be(recwarn: pytest.WarningsRecorder) -> None:
    program = parse("X[n, n]\nY[n, n] = X @ X\nZ[n, n] = Y - Y")
    inputs = {"X": np.array([[1e200, 0.0], [1.0, -1e200]])}
    found = certify(program, inputs, {"n": 2}, "float64")
    assert found["Y"].hi.tolist() == [[np.inf, 0], [0, np.inf]]
    value, certain = found["Y"].rounded("float32")
    assert certain.all()
    assert value.tolist() == [[np.inf, 0], [0, np.inf]]
    assert found["Z"].known.all()
    assert not recwarn


def test_only_what_is_wanted_is_evaluated(tried: list[str]) -> None:
    inputs, sizes = attention_case(0, "normal", 3, 3, 2)
    found = certify(ATTENTION, {k: inputs[k] for k in ("X", "Wq")}, sizes, "float64", wanted=["Q"])
    assert list(found) == ["Q"]


def test_float32_operands_reach_from_the_largest_to_the_smallest() -> None:
    largest, smallest = float(np.float32(3.4e38)), 2.0**-149
    X = np.array([[largest, smallest], [-largest, 1.0]], dtype=np.float32)
    W = np.array([[largest, smallest], [smallest, largest]], dtype=np.float32)
    inputs = {"X": X, "Wq": W, "Wk": W, "Wv": W}
    sizes = {"n": 2, "d": 2, "c": 2}
    true, found = truth(ATTENTION, inputs, sizes), certify(ATTENTION, inputs, sizes, "float32")
    for name in true:
        assert misses(found[name], true[name]) == []
        assert found[name].known.all()


def test_working_precision_is_restored() -> None:
    before = ctx.prec
    with working_precision(333):
        assert ctx.prec == 333
    assert ctx.prec == before
    with pytest.raises(ZeroDivisionError), working_precision(333):
        1 // (ctx.prec - 333)
    assert ctx.prec == before


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which can flush subnormals")
def test_nothing_is_certified_where_subnormals_are_flushed() -> None:
    script = """
import numpy, torch
from qkvac.spec import enclosure, equations
if not torch.set_flush_denormal(True):
    print("refused")
else:
    program = equations.parse("X[n]\\nY[n] = X + X")
    try:
        enclosure.certify(program, {"X": numpy.ones(1)}, {"n": 1}, "float32")
    except enclosure.FlushedSubnormalsError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


# --- the enclosure itself ------------------------------------------------------------------


def nearest(value: Fraction, name: str) -> float:
    """Round to nearest, ties to even, in rational arithmetic."""
    chosen = FORMATS[name]
    if value == 0:
        return 0.0
    magnitude, exponent = abs(value), 0
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, chosen.emin) - chosen.precision + 1)
    rounded = round(magnitude / step) * step  # Fraction rounds half to even
    sign = 1 if value > 0 else -1
    if rounded >= Fraction(2) ** (chosen.emax + 1):
        return sign * float("inf")
    return sign * float(rounded)


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
@settings(max_examples=300, deadline=None)
@given(
    mantissa=st.integers(-(2**13), 2**13),
    nudge=st.sampled_from([-1, 0, 1]),
    place=st.integers(1, 60),
    exponent=st.integers(-40, 12),
    where=st.sampled_from(["top", "middle", "bottom"]),
)
def test_rounding_of_pairs_is_correct(
    name: str, mantissa: int, nudge: int, place: int, exponent: int, where: str
) -> None:
    """Around the ties of each format: no double rounding, right subnormals, right overflow."""
    chosen = FORMATS[name]
    origin = {
        "top": chosen.emax - 6,
        "middle": 0,
        "bottom": chosen.emin - chosen.precision - 4,
    }[where]
    p = chosen.precision
    with np.errstate(over="ignore"):
        hi = np.ldexp(float(mantissa) + 2.0**-p, max(origin + exponent, -1070))
    if not np.isfinite(hi):
        return
    lo = float(nudge * np.ldexp(abs(hi), -53 - place))
    value, certain = Enclosure(np.array([hi]), np.array([lo]), np.zeros(1)).rounded(name)
    expected = nearest(Fraction(hi) + Fraction(lo), name)
    assert value.dtype == numpy_dtype(name)
    assert certain.all()
    assert float(value[0]) == expected
    assert not np.signbit(float(value[0])) or expected < 0


@pytest.mark.parametrize(("name", "ulp"), [("float64", 2.0**-52), ("float32", 2.0**-23)])
def test_rounding_is_certain_only_off_the_ties(name: str, ulp: float) -> None:
    tie = np.array([1.0 + ulp / 2]) if name == "float32" else np.array([1.0])
    lo = np.zeros(1) if name == "float32" else np.array([ulp / 2])
    radius = np.array([2.0**-80])
    assert not Enclosure(tie, lo, radius).rounded(name)[1].any()
    assert Enclosure(tie, lo, radius * 0).rounded(name)[1].all()
    assert Enclosure(tie, lo + 2.0**-79, radius).rounded(name)[1].all()
    assert float(Enclosure(tie, lo + 2.0**-79, radius).rounded(name)[0][0]) == 1.0 + ulp
    assert float(Enclosure(tie, lo, radius * 0).rounded(name)[0][0]) == 1.0


def test_bfloat16_is_rounded_once() -> None:
    """1 + 2**-8 + 2**-40 lies above a tie of bfloat16, but rounds to it in float32."""
    value = 1.0 + 2.0**-8 + 2.0**-40
    assert float(np.float32(value).astype(ml_dtypes.bfloat16)) == 1.0
    found = Enclosure(np.array([value]), np.zeros(1), np.zeros(1))
    assert float(found.rounded("bfloat16")[0][0]) == 1.0 + 2.0**-7


@settings(max_examples=300, deadline=None)
@given(
    hi=st.floats(-1e300, 1e300),
    y=st.floats(allow_nan=False, allow_infinity=False),
    offset=st.integers(-4, 4),
    part=st.floats(-1, 1),
    relative=st.integers(0, 60),
)
def test_errors_are_bracketed(hi: Any, y: Any, offset: int, part: float, relative: int) -> None:
    y = y if offset == 4 else float(hi + offset * np.spacing(abs(hi)))
    lo = float(part * np.spacing(abs(hi)) / 2)
    radius = float(np.spacing(abs(hi)) * 2.0**-relative)
    found = Enclosure(np.array([hi]), np.array([lo]), np.array([radius]))
    middle = abs(Fraction(y) - Fraction(hi) - Fraction(lo)) if np.isfinite(y) else None
    if middle is None:
        return
    upper, lower = found.error(np.array([y]))[0], found.least_error(np.array([y]))[0]
    assert Fraction(lower) <= max(middle - Fraction(radius), Fraction(0))
    if np.isfinite(upper):
        assert Fraction(upper) >= middle + Fraction(radius)
        assert upper <= (float(middle) + radius) * (1 + 1e-14)


def test_an_exact_result_has_no_error() -> None:
    inputs, sizes = attention_case(0, "whole", 4, 3, 4)
    found = certify(ATTENTION, inputs, sizes, "float64")
    exact = inputs["X"] @ inputs["Wq"]
    assert found["Q"].error(exact).tolist() == np.zeros((4, 4)).tolist()
    assert found["Q"].error(exact.astype(np.float32)).tolist() == np.zeros((4, 4)).tolist()


def test_a_value_below_all_doubles_has_the_smallest_radius() -> None:
    program = parse("S[n, m]\nA[n, m] = softmax(S, axis=1)")
    for m in (2, 600):
        scores = np.full((1, m), -900.0)
        scores[0, 0] = 0.0
        found = certify(program, {"S": scores}, {"n": 1, "m": m}, "float64")["A"]
        assert found.hi[0, 1] == 0
        assert GRID <= found.radius[0, 1] <= 4 * GRID
        assert found.sharp(np.full((1, m), GRID))[0, 1:].all()


def test_enclosures_survive_as_plain_arrays() -> None:
    found = certify(ATTENTION, *attention_case(0, "normal", 3, 3, 2), "float64")["C"]
    arrays = found.arrays()
    again = Enclosure.from_arrays(arrays)
    assert all((again.arrays()[name] == arrays[name]).all() for name in ("hi", "lo", "radius"))
    with pytest.raises(ValueError, match="consists of"):
        Enclosure.from_arrays({"hi": found.hi, "lo": found.lo})
    with pytest.raises(ValueError, match="consists of"):
        Enclosure.from_arrays(arrays | {"lo": found.lo[:1]})


@everyone
def test_a_weight_below_half_the_smallest_double_certainly_rounds_to_zero(carrier: str) -> None:
    """exp(-745.133) is just below 2**-1075, exp(-745.1) above it."""
    program = parse("S[n, m]\nA[n, m] = softmax(S, axis=1)")
    scores = np.array([[0.0, -745.0, -745.1, -745.3, -760.0, -1e6, -1e300]])
    found = run(carrier, program, {"S": scores}, {"n": 1, "m": 7})["A"]
    assert misses(found, truth(program, {"S": scores}, {"n": 1, "m": 7})["A"]) == []
    value, certain = found.rounded("float64")
    if carrier != "interval":
        assert certain[0].tolist()[3:] == [True] * 4
        assert not certain[0, 1:3].any()
        assert value[0, 3:].tolist() == [0.0] * 4
    value, certain = found.rounded("float32")
    assert certain.all()
    assert value.tolist() == [[1.0, *[0.0] * 6]]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["float32", "bfloat16", "float16"]))
def test_sums_that_fit_into_a_double_have_no_radius(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    inputs, sizes = attention_case(seed, "normal", 4, 3, 2)
    places = 2.0 ** -rng.integers(1, 7)
    inputs = {
        k: (np.rint(x / places) * places).astype(numpy_dtype(name)) for k, x in inputs.items()
    }
    true, found = truth(ATTENTION, inputs, sizes), certify(ATTENTION, inputs, sizes, name)
    for quantity in ("Q", "K", "V", "Ω"):
        assert (found[quantity].radius == 0).all()
        assert misses(found[quantity], true[quantity]) == []
