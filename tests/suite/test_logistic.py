"""σ and tanh: bounds that hold for right implementations and are needed, and sharp enclosures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

from qkvac.checks.normality import Granules, granule
from qkvac.spec.attention import SIGMOID_FORMS, Arithmetic
from qkvac.spec.bounds import logistic
from qkvac.spec.bounds.exactness import exact
from qkvac.spec.bounds.rounding import bounds
from qkvac.spec.bounds.spread import spread
from qkvac.spec.enclosures.arb_balls import BallAlgebra, working_precision
from qkvac.spec.enclosures.double_double import DoubleDouble, DoubleDoubleAlgebra
from qkvac.spec.enclosures.enclosure import Enclosure, certify
from qkvac.spec.enclosures.midpoint_radius import IntervalAlgebra
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.formats import FORMATS, dtype
from qkvac.spec.grammar.equations import evaluate, parse
from qkvac.tests.suite.ratios import SINGLE, UNIT

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]

SIGMOID = parse("X[n]\nY[n] = sigmoid(X)")
TANH = parse("X[n]\nY[n] = tanh(X)")

DTYPES = ("float64", "float32", "float16")

FAMILIES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "hot": lambda rng, n: rng.uniform(-40, 40, n),
    "high": lambda rng, n: rng.uniform(5, 80, n),
    "low": lambda rng, n: rng.uniform(-80, -5, n),
    "tiny": lambda rng, n: rng.standard_normal(n) * 1e-3 ** rng.uniform(0, 2, n),
    "both ends": lambda rng, n: rng.uniform(-760, 760, n),
    "beyond": lambda rng, n: rng.uniform(-108, -85, n),
}


def drawn(family: str, name: str, count: int = 400) -> Array:
    return FAMILIES[family](np.random.default_rng(5), count).astype(dtype(name))


def true(function: str, x: Array) -> Array:
    """Correctly rounded to float64, up to double rounding."""
    with mpmath.workprec(200):
        if function == "tanh":
            return np.array([float(mpmath.tanh(float(v))) for v in x])
        return np.array([float(1 / (1 + mpmath.exp(-float(v)))) for v in x])


def errors(function: str, x: Array, computed: Array) -> Array:
    with mpmath.workprec(200):
        of = mpmath.tanh if function == "tanh" else lambda v: 1 / (1 + mpmath.exp(-v))
        pairs = zip(x, computed, strict=True)
        return np.array([float(abs(mpmath.mpf(float(y)) - of(float(v)))) for v, y in pairs])


def ratio(function: str, x: Array, computed: Array, model: Arithmetic) -> float:
    """The largest error over bound; at least 1e9 where the computed value is no number."""
    program = TANH if function == "tanh" else SIGMOID
    limit = bounds(program, {"X": x}, {"n": len(x)}, model)["Y"]
    assert np.all(np.isfinite(limit))
    found = errors(function, x, computed)
    return float(np.max(np.where(np.isnan(found), 1e9, found / limit)))


def quiet(function: Function, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return function(x)


def one(x: Array) -> Any:
    return x.dtype.type(1)


RIGHT: dict[str, tuple[Function, str | None]] = {
    "quotient": (lambda x: one(x) / (one(x) + np.exp(-x)), "quotient"),
    "two-sided": (
        lambda x: np.where(x >= 0, one(x), e := np.exp(-np.abs(x))) / (one(x) + e),
        "quotient",
    ),
    "logarithm": (lambda x: np.exp(-np.logaddexp(x.dtype.type(0), -x)), "logarithm"),
    "undeclared logarithm": (lambda x: np.exp(-np.logaddexp(x.dtype.type(0), -x)), None),
    "naive logarithm": (
        lambda x: np.exp(-(np.maximum(-x, 0) + np.log(one(x) + np.exp(-np.abs(x))))),
        "logarithm",
    ),
    "tanh": (lambda x: (one(x) + np.tanh(x / 2)) / 2, "tanh"),
}


def model(name: str, form: str | None) -> Arithmetic:
    """Everything in the dtype itself: NumPy rounds after every operation."""
    return Arithmetic.for_dtype(name, {"sigmoid": form, "accumulation": name})


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("implementation", RIGHT)
def test_right_sigmoids_lie_inside(implementation: str, name: str) -> None:
    function, form = RIGHT[implementation]
    worst = {
        family: ratio("sigmoid", x := drawn(family, name), quiet(function, x), model(name, form))
        for family in FAMILIES
    }
    assert max(worst.values()) <= 1, worst
    # Not so wide that nothing would be told apart.
    assert max(worst.values()) > 0.1, worst


@pytest.mark.parametrize("name", DTYPES)
def test_a_machine_computes_them_right(name: str) -> None:
    for family in FAMILIES:
        x = drawn(family, name)
        for function, program in (("sigmoid", SIGMOID), ("tanh", TANH)):
            computed = compute(program, {"X": x}, {"n": len(x)}, name)["Y"]
            assert ratio(function, x, computed, Arithmetic.for_dtype(name)) <= 1, family


def test_torch_lies_inside() -> None:
    torch = pytest.importorskip("torch")
    for name in ("float64", "float32"):
        for family in FAMILIES:
            x = drawn(family, name)
            given = torch.from_numpy(x)
            for function in ("sigmoid", "tanh"):
                computed = getattr(torch, function)(given).numpy()
                assert ratio(function, x, computed, model(name, None)) <= 1, (family, function)


WRONG: dict[str, tuple[Function, str]] = {
    "hard": (lambda x: np.clip(x / 6 + one(x) / 2, 0, 1), "normal"),
    "cut off at −6": (lambda x: np.where(x < -6, 0 * x, RIGHT["quotient"][0](x)), "low"),
    "of 1.702 x": (lambda x: RIGHT["quotient"][0](x * x.dtype.type(1.702)), "normal"),
    "undeclared tanh": (lambda x: RIGHT["tanh"][0](x), "low"),
    "naive at the top": (lambda x: np.exp(x) / (one(x) + np.exp(x)), "both ends"),
    "in half precision": (
        lambda x: RIGHT["quotient"][0](x.astype(np.float16)).astype(x.dtype),
        "normal",
    ),
}


@pytest.mark.parametrize("name", ["float64", "float32"])
@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_sigmoids_do_not(mistake: str, name: str) -> None:
    function, family = WRONG[mistake]
    x = drawn(family, name)
    assert ratio("sigmoid", x, quiet(function, x), model(name, None)) > 1.5


@pytest.mark.parametrize("name", DTYPES)
def test_right_tangents_lie_inside(name: str) -> None:
    worst = {f: ratio("tanh", x := drawn(f, name), np.tanh(x), model(name, None)) for f in FAMILIES}
    assert max(worst.values()) <= 1, worst
    assert max(worst.values()) > 0.05, worst


WRONG_TANGENTS: dict[str, tuple[Function, str]] = {
    "by an exponential": (lambda x: one(x) - 2 / (np.exp(2 * x) + one(x)), "tiny"),
    "by the sigmoid": (lambda x: 2 * RIGHT["quotient"][0](2 * x) - one(x), "tiny"),
    "hard": (lambda x: np.clip(x, -1, 1), "normal"),
    "clipped at 3": (lambda x: np.tanh(np.clip(x, -3, 3)), "hot"),
    "Padé": (lambda x: np.clip(x * (27 + x * x) / (27 + 9 * x * x), -1, 1), "normal"),
    "of half the argument": (lambda x: np.tanh(x / 2), "normal"),
}


@pytest.mark.parametrize("name", ["float64", "float32"])
@pytest.mark.parametrize("mistake", WRONG_TANGENTS)
def test_wrong_tangents_do_not(mistake: str, name: str) -> None:
    function, family = WRONG_TANGENTS[mistake]
    x = drawn(family, name)
    assert ratio("tanh", x, quiet(function, x), model(name, None)) > 1.5


# --- every term is needed ------------------------------------------------------------------


def worst_quotient(x: Array, slip: float) -> Array:
    """A quotient whose roundings all go upwards, as far as they may."""
    x = x.astype(np.float64)
    argument = -x - slip * 3 * UNIT * np.abs(x)
    e = np.exp(argument) * (1 - slip * 6 * UNIT)
    return np.asarray((1 + slip * UNIT) / ((1 + e) * (1 - slip * UNIT)))


def worst_logarithm(x: Array, slip: float) -> Array:
    x = x.astype(np.float64)
    size = np.abs(x)
    e = np.exp(-size * (1 + slip * 3 * UNIT)) * (1 - slip * 6 * UNIT)
    inner = np.log1p(e) * (1 - slip * 6 * UNIT) - slip * UNIT
    length = (np.maximum(-x, 0) + inner) * (1 - slip * 3 * UNIT)
    return np.asarray(np.exp(-length) * (1 + slip * 6 * UNIT))


NEEDED = [
    ("ARGUMENT", "quotient", -64.0),
    ("EXPONENTIAL", "quotient", -1.0),
    ("QUOTIENT", "quotient", 30.0),
    ("LOGARITHM", "logarithm", 0.0),
    ("LENGTH", "logarithm", -64.0),
    ("EXPONENTIAL", "logarithm", 30.0),
]


@pytest.mark.parametrize(("constant", "form", "at"), NEEDED)
def test_no_constant_of_the_sigmoid_can_be_dropped(
    constant: str, form: str, at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.array([at], np.float32)
    computed = (worst_quotient if form == "quotient" else worst_logarithm)(x, 0.95)
    declared = replace(SINGLE, sigmoid=form)
    assert 0.5 < ratio("sigmoid", x, computed, declared) <= 1
    assert ratio("sigmoid", x, computed, SINGLE) <= 1, "undeclared, either form may be meant"
    monkeypatch.setattr(logistic, constant, 0)
    assert ratio("sigmoid", x, computed, declared) > 1


def test_a_lost_reciprocal_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below −88.7, e^(−x) is beyond float32, and the σ that is lost is a subnormal number."""
    x = np.linspace(-103, -88.8, 50).astype(np.float32)
    computed = quiet(RIGHT["quotient"][0], x)
    assert not computed.any()
    assert 0.9 < ratio("sigmoid", x, computed, SINGLE) <= 1
    monkeypatch.setattr(logistic, "overflows", lambda a, x, theta: np.zeros(x.shape, bool))
    assert ratio("sigmoid", x, computed, replace(SINGLE, sigmoid="quotient")) > 100


@pytest.mark.parametrize("flushes", [False, True])
def test_flushed_results_must_be_declared(flushes: bool) -> None:
    x = np.array([-88.0], np.float32)
    found = ratio("sigmoid", x, np.zeros(1, np.float32), replace(SINGLE, flushes=flushes))
    assert (found <= 1) == flushes


def test_no_constant_of_the_tangent_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([0.5, 3.0], np.float32)
    computed = np.tanh(x.astype(np.float64)) * (1 + 0.95 * 10 * UNIT)
    assert 0.9 < ratio("tanh", x, computed, SINGLE) <= 1
    monkeypatch.setattr(logistic, "TANGENT", 0)
    assert ratio("tanh", x, computed, SINGLE) > 1


@pytest.mark.parametrize("function", ["sigmoid", "tanh"])
@pytest.mark.parametrize("form", [None, *SIGMOID_FORMS])
def test_errors_of_the_argument_are_carried(function: str, form: str | None) -> None:
    """The worst that an argument's error can do is allowed, and half of the bound would not be."""
    rng = np.random.default_rng(2)
    x, E = rng.uniform(-60, 60, 3000), 10 ** rng.uniform(-6, 2, 3000)
    x[:2000] /= 10
    bounded = logistic.sigmoid_error if function == "sigmoid" else logistic.tanh_error
    value, bound = bounded(replace(SINGLE, sigmoid=form), x, E, 1 + 2.0**-29)
    of = logistic.logistic if function == "sigmoid" else np.tanh
    with np.errstate(over="ignore"):
        moved = np.maximum(np.abs(of(x + E) - of(x)), np.abs(of(x - E) - of(x)))
    assert np.all(moved <= bound * (1 + 1e-12) + 2.0**-52)
    np.testing.assert_allclose(value, of(x), rtol=1e-12)
    visible = (moved > 100 * UNIT) & (E < 0.1)
    assert np.sum(visible) > 100
    assert np.min(bound[visible] / moved[visible]) < 1.05
    assert np.max(bound[visible] / moved[visible]) < 3


@pytest.mark.parametrize("function", ["sigmoid", "tanh"])
def test_hopeless_arguments_have_the_trivial_bound(function: str) -> None:
    bounded = logistic.sigmoid_error if function == "sigmoid" else logistic.tanh_error
    x = np.array([-1000.0, 1000.0, -1e30, 0.0, 5.0])
    _, bound = bounded(SINGLE, x, np.array([2000.0, 2000.0, 1e31, 1e38, np.inf]), 1 + 2.0**-29)
    assert np.all(bound[:4] >= 1)
    assert np.all(bound[:4] <= (1.001 if function == "sigmoid" else 2.001))
    assert np.isinf(bound[4])


def test_a_form_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(ValueError, match="sigmoid = 'hard'; choose from quotient, log"):
        Arithmetic.for_dtype("float32", {"sigmoid": "hard"})


# --- the other interpretations -------------------------------------------------------------

POINTS = np.concatenate(
    [
        *([s * 10.0**k for k in range(-300, 3, 7)] for s in (1, -1)),
        *([s * logistic_point for logistic_point in (2.0**-10, 2.0**-10 * (1 + 2**-52), 20.0, 37.0)]
          for s in (1, -1)),
        [0.0, 5e-324, -700.0, 700.0, -745.0, -800.0, 800.0],
    ]
)  # fmt: skip


@pytest.mark.parametrize("program", [SIGMOID, TANH], ids=["sigmoid", "tanh"])
@pytest.mark.parametrize("sharpness", [(IntervalAlgebra(), -38.0), (DoubleDoubleAlgebra(), -62.0)])
def test_enclosures_contain_the_value_and_are_sharp_for_every_size(
    program: Any, sharpness: tuple[Any, float]
) -> None:
    algebra, bits = sharpness
    with np.errstate(all="ignore"):
        given = {"X": algebra.constant(POINTS)}
        found = Enclosure.of(evaluate(program, algebra, given, {"n": len(POINTS)})["Y"])
    function = "tanh" if program is TANH else "sigmoid"
    with mpmath.workprec(3000):
        of = mpmath.tanh if function == "tanh" else lambda v: 1 / (1 + mpmath.exp(-v))
        for x, hi, lo, radius in zip(POINTS, found.hi, found.lo, found.radius, strict=True):
            value = of(mpmath.mpf(float(x)))
            off = abs(mpmath.mpf(float(hi)) + mpmath.mpf(float(lo)) - value)
            assert off <= float(radius), x
            assert float(radius) <= 2.0**bits * abs(value) + 64 * 2.0**-1074, x


def test_an_uncertain_argument_stays_inside() -> None:
    """A radius of the argument is carried, also across the end of the series."""
    x = np.array([2.0**-10, -(2.0**-11), 3.0, 1e-200])
    off = np.array([2.0**-40, 2.0**-12, 0.01, 1e-201])
    value = DoubleDouble(x, np.zeros(4), off)
    algebra = DoubleDoubleAlgebra()
    for function, of in ((algebra.tanh, np.tanh), (algebra.sigmoid, logistic.logistic)):
        found = Enclosure.of(function(value))
        for end in (x - off, x, x + off):
            assert np.all(np.abs(of(end) - found.center) <= found.radius * (1 + 1e-9) + 1e-16)
        # The two weights of a softmax count the error more often than once.
        assert np.all(found.radius <= 10 * off + 2.0**-70)


def test_balls_know_both_ends() -> None:
    with working_precision(128):
        balls = BallAlgebra()
        x = balls.constant(np.array([-1e6, 1e6, 0.0]))
        sigmoid, tanh = balls.sigmoid(x).flat, balls.tanh(x).flat
        assert 0 < sigmoid[0] < 1e-300
        assert sigmoid[1].overlaps(1)
        assert sigmoid[2] == 0.5
        assert tanh[2] == 0
        assert tanh[0].overlaps(-1)


@pytest.mark.parametrize("name", DTYPES)
def test_certified_values_are_sharp_enough_for_the_bounds(name: str) -> None:
    for program in (SIGMOID, TANH):
        for family in FAMILIES:
            x = drawn(family, name, 50)
            limit = bounds(program, {"X": x}, {"n": 50}, Arithmetic.for_dtype(name))
            found = certify(program, {"X": x}, {"n": 50}, name, bound=limit)["Y"]
            assert np.all(found.sharp(limit["Y"])), family


def test_the_spread_is_what_is_usual() -> None:
    for function, program in (("sigmoid", SIGMOID), ("tanh", TANH)):
        x = drawn("normal", "float32", 1000)
        sigma = spread(program, {"X": x}, {"n": 1000}, SINGLE)["Y"]
        computed = RIGHT["quotient"][0](x) if function == "sigmoid" else np.tanh(x)
        rms = np.sqrt(np.mean((errors(function, x, computed) / sigma) ** 2))
        assert 0.2 < rms < 1.5


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_claimed_exact_is_exact_in_every_form(name: str) -> None:
    x = np.array([0.0, -0.0, 1.0, 800.0, -800.0, 40.0, -40.0], dtype(name))
    arithmetic = Arithmetic.for_dtype(name)
    proved = exact(SIGMOID, {"X": x}, {"n": 7}, arithmetic)["Y"]
    assert proved.holds.tolist() == [False] * 3 + [True] * 2 + [False] * 2
    for function, _ in RIGHT.values():
        assert np.array_equal(quiet(function, x)[proved.holds], proved.value[proved.holds])
    proved = exact(TANH, {"X": x}, {"n": 7}, arithmetic)["Y"]
    assert proved.holds.tolist() == [True, True] + [False] * 5
    assert not np.any(np.tanh(x)[proved.holds])


@pytest.mark.parametrize("family", ["normal", "tiny", "hot"])
def test_granules_divide_what_is_computed(family: str) -> None:
    x = drawn(family, "float32")
    for operation, function in (("sigmoid", RIGHT["quotient"][0]), ("tanh", np.tanh)):
        algebra = Granules(FORMATS["float32"], {})
        found = getattr(algebra, operation)(algebra.given(x))
        assert 0 < found.granule <= granule(function(x).astype(np.float64))
