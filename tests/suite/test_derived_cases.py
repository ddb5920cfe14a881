"""Cases made from texts alone: what they promise, and which ports they tell from right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from qkvac.spec import registry
from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds import exactness
from qkvac.spec.cases.case import Case
from qkvac.spec.cases.catalogue import cases, find
from qkvac.spec.cases.derived_cases import Maker
from qkvac.spec.faults import evaluator
from qkvac.spec.faults.catalogue import FAULTS
from qkvac.spec.formats import DTYPES, FORMATS, dtype
from qkvac.spec.grammar.parsing import parse
from qkvac.spec.grammar.syntax import Program, Ref
from qkvac.spec.inputs import layouts
from qkvac.spec.inputs.anatomy import Anatomy
from qkvac.spec.inputs.derived_families import lookup, plain
from qkvac.spec.inputs.families import Frame
from qkvac.spec.inputs.steering import Steering, UnreachableError
from qkvac.spec.profile import PLAIN, Flag, Mask, Parameter, Profile
from qkvac.spec.registry import known_profiles
from qkvac.spec.symbolic import shapes
from qkvac.spec.verdicts.verdict import Question, judge

Array = np.ndarray[Any, Any]

VARIANTS: Final = Path(__file__).parents[2] / "docs" / "examples" / "variants"
NAMES: Final = ("cross", "differential", "latent", "sigmoid", "temperature")
CROSS: Final = "weighted_cross_attention"
TWO: Final = "differential_attention"
LATENT: Final = "latent_attention"
TEMPERED: Final = "tempered_attention"
SIGMOID: Final = "sigmoid_attention"
PROFILES: Final = (CROSS, TWO, LATENT, SIGMOID, TEMPERED)
EVERY: Final = (*PROFILES, *(f"{name}_gradients" for name in PROFILES))

pytestmark = pytest.mark.skipif(
    not VARIANTS.exists(), reason="needs a checkout, not an installed package"
)


@pytest.fixture(autouse=True)
def chosen() -> Iterator[None]:
    registry.choose([VARIANTS / name / "equations.py" for name in NAMES])
    yield
    registry.choose()


def family(name: str, profile: str = CROSS) -> list[Case]:
    found = [case for case in cases(profile) if case.family == name]
    assert found, name
    return found


def values(case: Case, name: str = "float64") -> dict[str, Array]:
    """All quantities of the normal form, as a machine computes them."""
    with np.errstate(all="ignore"):
        return evaluator.compute(case.program, case.inputs(name), case.bindings, name)


def scaled(case: Case) -> Array:
    """The scores of cross-attention as its softmax takes them."""
    return np.asarray(values(case)["Ω"] / case.sizes["c"] ** 0.5)


def statuses(case: Case, name: str, outputs: dict[str, Array]) -> dict[str, str]:
    model = Arithmetic.for_dtype(name, {"softmax": "shifted, divided"})
    question = Question(case, name, model)
    shaped = {
        quantity: outputs[quantity].reshape(question.contract[quantity])
        if outputs[quantity].size == np.prod(question.contract[quantity])
        else outputs[quantity]
        for quantity in case.quantities
        if quantity in outputs
    }
    return {quantity: found.status for quantity, found in judge(question, shaped).items()}


# --- what is promised -------------------------------------------------------------------------


def everything() -> Iterator[Case]:
    for profile in EVERY:
        yield from cases(profile)


def test_ids_are_unique_stable_and_say_profile_family_variant_and_sizes() -> None:
    ids = [case.id for case in everything()]
    assert len(set(ids)) == len(ids)
    for case in everything():
        shape = "x".join(map(str, (*case.batch, *case.sizes.values())))
        assert case.id == "/".join(filter(None, (case.profile, case.family, case.variant, shape)))
        assert case.why
        assert "\n" not in case.why
        assert find(case.id) == case
    again = {id: find(id).inputs("float64") for id in ids[:5]}  # type: ignore[union-attr]
    registry.choose()
    registry.choose([VARIANTS / name / "equations.py" for name in NAMES])
    for id, inputs in again.items():
        found = find(id)
        assert found is not None
        assert all(np.array_equal(array, inputs[k]) for k, array in found.inputs("float64").items())


def test_the_matrix_stays_affordable() -> None:
    for profile in EVERY:
        first = [c for c in cases(profile) if c.variant in ("", PLAIN) and c.tier == "default"]
        gradients = profile.endswith("_gradients")
        assert (18 if gradients else 35) <= len(first) <= (26 if gradients else 45), profile
        assert 1 <= sum(case.compiled for case in first) <= 3
        assert max(max(case.sizes.values()) for case in first) < 140
    assert max(max(case.sizes.values()) for case in cases(CROSS)) >= 257


def test_inputs_fit_the_contract_and_are_stored_exactly() -> None:
    for case in everything():
        for name in case.dtypes:
            inputs = case.inputs(name)
            given = {key: array.shape for key, array in inputs.items()}
            contract = shapes.contract(case.program, dict(case.bindings), given=given)
            for tensor in case.program.inputs:
                array = inputs[tensor.name]
                assert array.shape == contract[tensor.name]
                assert array.dtype == dtype(name)
                assert np.all(np.isfinite(array.astype(np.float64)))
                shared = tensor.name in case.declared.shared
                assert array.ndim == tensor.rank + (0 if shared else len(case.batch))


def test_what_is_claimed_to_be_exact_is_proved_in_every_text() -> None:
    claimed = set[str]()
    for case in (
        case for name in (CROSS, f"{CROSS}_gradients", TWO, LATENT) for case in cases(name)
    ):
        claimed.update(f"{case.profile} {case.family} {name}" for name in case.exact)
        for name in case.dtypes:
            for program in case.alternatives:
                own = tuple(
                    q for q in case.exact if q in {e.target.name for e in program.equations}
                )
                exactness.prove(program, case.inputs(name), case.bindings, name, own)
    for word in ("whole Q", "whole Ω", "lookup A", "lookup C", "ties C", "uniform C", "copies V"):
        assert f"{CROSS} {word}" in claimed
    for word in ("uniform A", "uniform C", "lookup A", "ties C"):
        assert f"{TWO} {word}" in claimed
    for gradient in ("dX", "dZ", "dWq", "dWk", "dWv"):
        assert f"{CROSS}_gradients balanced-few {gradient}" in claimed


def test_every_family_has_a_place_in_cross_attention() -> None:
    names = {case.family for case in cases(CROSS)}
    assert names >= {
        *("normal", "hot", "low", "shifted", "row-shift", "lookup", "ties", "equal-rows", "whole"),
        *("uniform", "copies", "cancelling", "tiny", "ranged-columns", "zero-row", "subnormal"),
        *("empty", "one", "batch", "batch-whole", "layout-F", "layout-strided"),
        *("layout-reversed", "layout-readonly", "layout-stride0"),
    }
    sent = {case.family for case in cases(f"{CROSS}_gradients")}
    assert sent >= {
        *("normal", "normal-single", "normal-zero", "normal-rows", "normal-faint", "cool", "hot"),
        *("tiny", "row-shift", "equal-rows", "cancelling", "balanced-few", "empty", "batch"),
        *("layout-F", "layout-strided", "layout-readonly", "layout-stride0-rows"),
    }


# --- what the families are --------------------------------------------------------------------


def test_axes_differ_are_alike_or_are_small() -> None:
    sizes = [tuple(case.sizes.values()) for case in family("normal")]
    assert any(len(set(shape)) == len(shape) == 5 for shape in sizes)
    assert any(len(set(shape)) == 1 for shape in sizes)
    lengths = {case.sizes[name] for case in family("normal") for name in "nm"}
    assert lengths >= {17, 33, 65, 129}
    for name in "nm":
        assert any(case.sizes[name] == 0 for case in family("empty"))
        assert any(case.sizes[name] == 1 for case in family("one"))
    for case in everything():
        assert "h" not in case.sizes or case.sizes["c"] % case.sizes["h"] == 0


def test_plain_scores_are_of_order_one() -> None:
    for profile in (CROSS, LATENT, TWO):
        for case in family("normal", profile):
            reported = values(case)
            if min(case.sizes.values()) >= 3:
                spread = [np.std(reported[name]) for name in reported if name[0] in "QKV"]
                assert all(0.2 < deviation < 5 for deviation in spread), (case.id, spread)


def test_hot_low_and_shifted_scores_are_where_they_should_be() -> None:
    (hot,), (low,), (high,), (rows,) = map(family, ("hot", "low", "shifted", "row-shift"))
    assert np.std(scaled(hot)) > 8
    assert np.max(scaled(low)) < -800
    assert np.min(scaled(high)) > 800
    level = scaled(rows).mean(axis=-1)
    assert level.max() > 800
    assert level.min() < -800
    assert np.max(np.ptp(scaled(rows), axis=-1)) < 20
    for case in family("low", TWO):
        assert values(case)["Q1"].shape  # both softmaxes are moved
        first = values(case)["Q1"] @ values(case)["K1"].T
        second = values(case)["Q2"] @ values(case)["K2"].T
        assert max(first.max(), second.max()) < -2000


def test_a_lookup_finds_one_key_and_ties_share_two() -> None:
    for profile in (CROSS, TEMPERED):
        (found,) = [case for case in family("lookup", profile) if case.variant != "causal"]
        for name in found.dtypes:
            A = values(found, name)["A"].astype(np.float64)
            assert set(np.unique(A)) == {0.0, 1.0}
            assert np.all(A.sum(-1) == 1)
            assert len(np.unique(A.argmax(-1))) > 3
    (ties,) = family("ties")
    assert set(np.unique(values(ties)["A"])) == {0.0, 0.5}
    (equal,) = family("uniform")
    assert np.all(values(equal)["A"] == 0.25)
    (balanced,) = family("balanced-few", f"{CROSS}_gradients")
    gradients = values(balanced)
    assert np.all(gradients["A"] == 0.25)
    assert all(np.any(gradients[name]) for name in balanced.results)


def test_data_are_what_their_family_says() -> None:
    (alike,), (zero,), (tiny,), (low,) = map(
        family, ("equal-rows", "zero-row", "tiny", "subnormal")
    )
    for name in DTYPES:
        assert np.all(alike.inputs(name)["Z"] == alike.inputs(name)["Z"][:1])
        assert np.sum(~zero.inputs(name)["X"].astype(bool).any(-1)) == 1
        small = tiny.inputs(name)["X"].astype(np.float64)
        assert np.abs(small).max() < 2.0 ** (FORMATS[name].emin / 4 + 4)
        last = low.inputs(name)["Wv"].astype(np.float64)
        assert 0 < np.abs(last).max() < FORMATS[name].tiny
    (lost,), (spread,) = map(family, ("cancelling", "ranged-columns"))
    inputs = lost.inputs("float64")
    for token, weight in (("X", "Wq"), ("Z", "Wk"), ("Z", "Wv")):
        terms = np.abs(inputs[token]) @ np.abs(inputs[weight])
        assert np.median(terms / np.abs(inputs[token] @ inputs[weight])) > 20
    columns = np.abs(spread.inputs("float32")["X"]).max(0)
    assert columns.max() / columns.min() > 2**10
    assert np.std(values(spread)["Q"]) < 5


def test_layouts_are_those_of_the_plain_case_and_batches_have_samples_of_their_own() -> None:
    plain_case = family("normal")[0]
    met = dict[str, set[str]]()
    for case in cases(CROSS):
        for name, layout in case.layouts.items():
            met.setdefault(layout, set()).add(name)
            for array in (case.inputs("float32")[name],):
                assert np.array_equal(layouts.apply(array, layout), array)
        if case.layouts and "stride0" not in case.layouts.values():
            assert case.recipe == plain_case.recipe  # the same question, judged once
    assert (
        met["F"]
        == met["strided"]
        == met["reversed"]
        == met["readonly"]
        == {*("X", "Z", "Wq", "Wk", "Wv")}
    )
    assert met["stride0"] == {"X", "Z"}
    batches = {case.batch for case in family("batch")}
    assert batches == {(3,), (1,), (2, 3)}
    (heated,) = [case for case in family("batch") if case.batch == (3,)]
    X = heated.inputs("float64")["X"]
    assert np.std(X[0]) > 2 * np.std(X[1]) > 8 * np.std(X[2])


# --- other kinds of inputs --------------------------------------------------------------------


def kernel(mask: str, scale: str) -> str:
    scores = "Ω * scale" if scale else "Ω / sqrt(d)"
    kept = {"": "", "boolean": ", where=mask", "additive": ", where=finite(mask)"}[mask]
    scores += " + mask" if mask == "additive" else ""
    declared = ("mask[h, L, S]\n" if mask else "") + ("scale\n" if scale else "")
    return f"""
Q[h, L, d]
K[g, S, d]
V[g, S, v]
{declared}Ω[h, L, S] = Q @ repeat(K, h).T
A[h, L, S] = softmax({scores}, axis=2{kept})
C[h, L, v] = A @ repeat(V, h)
"""


def looked_up(bias: str, causal: str) -> str:
    added = " + b" if bias else ""
    kept = ", where=causal(n, n)" if causal else ""
    return f"""
E[t, d]
W[d, c]
{"b[c]" if bias else ""}
tokens[n]
X[n, d] = take(E, tokens)
H[n, c] = X @ W{added}
Ω[n, n] = H @ X.T @ X @ H.T
A[n, n] = softmax(Ω / sqrt(d), axis=1{kept})
C[n, c] = A @ H
"""


KERNEL: Final = Profile(
    "kernel",
    "as kernels have it",
    kernel,
    takes="Q, K, V",
    returns="A, C",
    reports="Ω",
    keywords={"mask": Mask(), "scale": Parameter("scale", optional=True, values=(0.5, -2.0))},
    samples=True,
)
LOOKED_UP: Final = Profile(
    "looked_up",
    "tokens of a table, and a bias that may be missing",
    looked_up,
    takes="tokens, E, W, b",
    returns="X, H, C",
    reports="Ω, A",
    shared="E, W, b",
    optional={"bias": "b"},
    keywords={"causal": Flag()},
)


def made(profile: Profile, variant: str) -> list[Case]:
    """All cases of one variant, as those of a first one."""
    return list(Maker(Anatomy(profile, variant)).everything())


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = {p.name: p for p in (KERNEL, LOOKED_UP)}
    gradients = {p.gradients.name: p.gradients for p in (KERNEL, LOOKED_UP)}
    choice = registry.Choice((registry.Source("-", "", tuple(forward.values())),))
    assert choice.every.keys() >= forward.keys() | gradients.keys()
    monkeypatch.setattr(registry, "_chosen", choice)


@pytest.mark.usefixtures("others")
def test_masks_broadcast_open_and_close() -> None:
    for variant in ("boolean", "additive-scale"):
        found = dict[str, Case]()
        for case in made(KERNEL, variant):
            found.setdefault(case.family, case)
        masks = {name: case.inputs("float64")["mask"] for name, case in found.items()}
        kept = {n: m if m.dtype == np.bool_ else np.isfinite(m) for n, m in masks.items()}
        assert kept["normal"].any(-1).all()
        assert 0.5 < kept["normal"].mean() < 1
        assert kept["open"].all()
        assert np.all(~kept["empty-row"][..., ::3, :])
        shapes_met = {mask.shape for name, mask in masks.items() if name.startswith("mask-")}
        sizes = found["normal"].sizes
        assert shapes_met >= {(sizes["S"],), (sizes["L"], 1), (sizes["L"], sizes["S"])}
        assert all(case.masked and case.batch for case in found.values())


@pytest.mark.usefixtures("others")
def test_keywords_groups_and_indices_are_met() -> None:
    given = {case.attributes.get("scale") for case in made(KERNEL, "scale")}
    assert given == {0.5, -2.0, 0.0, 1.0, 8.0}
    for case in cases("looked_up"):
        limit = case.sizes["t"]
        tokens = case.inputs("float32")["tokens"]
        assert tokens.dtype.kind == "i"
        assert np.all((tokens >= 0) & (tokens < limit))
        assert ("b" in case.inputs("float32")) == ("bias" in case.variant)
        assert case.attributes.get("causal", False) == ("causal" in case.variant)
    assert {case.variant for case in cases("looked_up")} == set(LOOKED_UP.texts)
    for case in made(KERNEL, PLAIN):
        assert case.sizes["h"] % case.sizes["g"] == 0


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("name", ["kernel", "looked_up", "kernel_gradients"])
def test_right_ports_of_other_profiles_pass(name: str) -> None:
    for case in cases(name):
        if max(case.sizes.values()) <= 40:
            with np.errstate(all="ignore"):
                found = statuses(case, case.dtypes[-1], values(case, case.dtypes[-1]))
            assert set(found.values()) <= {"passed", "indecisive"}, (case.id, found)


def test_sizes_respect_divisors_and_tables() -> None:
    anatomy = Anatomy(KERNEL, "scale")
    fitted = anatomy.fitting({"h": 3, "L": 5, "d": 4, "g": 2, "S": 6, "v": 3})
    assert fitted is not None
    assert fitted["h"] == 4
    assert anatomy.fitting({"h": 2, "L": 0, "d": 4, "g": 2, "S": 0, "v": 3}) is not None
    assert Anatomy(KERNEL, PLAIN).fitting({**fitted, "d": 0}) is None  # it stands below a bar
    assert Anatomy(LOOKED_UP, PLAIN).fitting({"t": 0, "d": 3, "c": 2, "n": 4}) is None


def test_what_cannot_be_steered_is_left_out() -> None:
    anatomy = Anatomy(known_profiles()["dot_product_attention"], PLAIN)
    sizes = {"n": 4, "d": 20}
    frame = Frame("seed", FORMATS["float64"], sizes)
    with pytest.raises(UnreachableError, match="two tasks"):
        lookup(frame, anatomy)
    names = {case.family for case in Maker(anatomy).everything()}
    assert names.isdisjoint({"lookup", "ties", "low", "row-shift"})
    assert names >= {"normal", "hot", "whole", "uniform", "one"}
    steering = Steering(anatomy, frame, plain(frame, anatomy))
    with pytest.raises(UnreachableError, match="too few columns"):
        steering.free(Ref("X"), 21)


# --- right and wrong ports --------------------------------------------------------------------


@pytest.mark.parametrize("profile", EVERY)
@pytest.mark.parametrize(
    "name", ["float32", pytest.param("bfloat16", marks=pytest.mark.long), "float16"]
)
def test_right_ports_pass_and_are_seen_to(profile: str, name: str) -> None:
    """A machine that carries the equations out in the dtype fails nothing."""
    decided, open_ = set[str](), 0
    for case in cases(profile):
        if name in case.dtypes and max(case.sizes.values()) <= 40 and not case.layouts:
            found = statuses(case, name, values(case, name))
            assert set(found.values()) <= {"passed", "indecisive"}, (case.id, name, found)
            decided.update(quantity for quantity, status in found.items() if status == "passed")
            open_ += sum(status == "indecisive" for status in found.values())
    asked = {q for case in cases(profile) if name in case.dtypes for q in case.results}
    assert asked <= decided
    assert open_ <= 8, open_


def changed(profile: str, old: str, new: str) -> Program:
    text = known_profiles()[profile].texts[PLAIN]
    assert old in text, old
    return parse(text.replace(old, new))


WRONG: Final = (
    (CROSS, " / sqrt(c)", " / sqrt(d)"),
    (CROSS, " / sqrt(c)", ""),
    (CROSS, " / sqrt(c)", " / c"),
    (CROSS, "axis=1", "axis=0"),
    (CROSS, "K[m, c] = Z @ Wk", "K[m, c] = Z @ Wv"),
    (CROSS, "V[m, c] = Z @ Wv", "V[m, c] = Z @ Wk"),
    (CROSS, "C[n, c] = A @ V", "C[n, c] = A @ K"),
    (CROSS, "C[n, c] = A @ V", "C[n, c] = A @ V + Q"),
    (CROSS, "Ω / sqrt(c), axis=1", "Ω / sqrt(c), axis=1, where=causal(n, m)"),
    (TWO, "lam * softmax", "softmax"),
    (TWO, ") - lam", ") + lam"),
    (TWO, "Q2[n, c] = X @ W2", "Q2[n, c] = X @ W1"),
    (TWO, "K2[n, c] = X @ U2", "K2[n, c] = X @ U1"),
    (TWO, "Q2 @ K2.T / sqrt(c)", "Q2 @ K2.T / sqrt(d)"),
    (LATENT, "sqrt(c / h)", "sqrt(c)"),
    (LATENT, ", where=causal(n, n)", ""),
    (LATENT, "V[n, c] = L @ Uv", "V[n, c] = L @ Uk"),
    (LATENT, "merge(A @ split(V, h))", "merge(A @ split(K, h))"),
    (TEMPERED, "Ω * tau", "Ω"),
    (TEMPERED, "split(Q, h)", "split(K, h)"),
    (SIGMOID, "+ bias", ""),
    (SIGMOID, "sqrt(c)", "sqrt(d)"),
)


@pytest.mark.parametrize(("profile", "old", "new"), WRONG)
def test_wrong_texts_are_caught_in_every_dtype(profile: str, old: str, new: str) -> None:
    program = changed(profile, old, new)
    for name in ("float32", "float16"):
        for case in cases(profile):
            if name in case.dtypes and case.variant in ("", PLAIN):
                with np.errstate(all="ignore"):
                    inputs = case.inputs(name)
                    outputs = evaluator.compute(program, inputs, case.bindings, name)
                last = case.quantities[-1]
                if "failed" in statuses(case, name, {last: outputs[last]}).values():
                    break
        else:
            raise AssertionError(f"{new} for {old} passes in {name}")


@pytest.mark.parametrize("fill", ["1e4", "1e9"])
@pytest.mark.parametrize("profile", [LATENT, TEMPERED])
def test_a_finite_number_in_the_place_of_masked_scores_is_caught(profile: str, fill: str) -> None:
    def caught(case: Case) -> bool:
        program = FAULTS[f"mask-fill-{fill}"].program(case.program)
        if program is None:
            return False
        with np.errstate(all="ignore"):
            outputs = evaluator.compute(program, case.inputs("float64"), case.bindings, "float64")
        return "failed" in statuses(case, "float64", {"C": outputs["C"]}).values()

    (below,) = family(f"below-{fill}", profile)
    assert caught(below)
    assert not any(map(caught, family("normal", profile)))


Port = Callable[..., Array]


def softmax(S: Array, top: Array | float | None = None) -> Array:
    with np.errstate(all="ignore"):
        high = S.max(-1, keepdims=True, initial=-np.inf) if top is None else top
        E = np.exp(S - high)
        total = E.sum(-1, keepdims=True)
        return np.asarray(E / np.where(total > 0, total, 1) if top is None else E / total)


def scores(X: Array, Z: Array, Wq: Array, Wk: Array) -> Array:
    keys = np.swapaxes(Z @ Wk, -1, -2)
    return np.asarray(X @ Wq @ keys / X.dtype.type(np.sqrt(Wq.shape[-1])))


def right(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return np.asarray(softmax(scores(X, Z, Wq, Wk)) @ (Z @ Wv))


def no_maximum(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return np.asarray(softmax(scores(X, Z, Wq, Wk), 0.0) @ (Z @ Wv))


def one_maximum(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    S = scores(X, Z, Wq, Wk)
    return np.asarray(softmax(S, S.max(initial=-np.inf)) @ (Z @ Wv))


def clamped(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return np.asarray(softmax(np.clip(scores(X, Z, Wq, Wk), -10, 10)) @ (Z @ Wv))


def epsilon(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return np.asarray(right(X, Z, Wq, Wk, Wv) * X.dtype.type(1 - 1e-5))


def flushed(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    tiny = np.finfo(X.dtype).tiny
    return right(X, Z, Wq, Wk, np.where(np.abs(Wv) < tiny, 0, Wv).astype(X.dtype))


def half_weights(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return right(X, Z, Wq, Wk, Wv.astype(np.float16).astype(X.dtype))


def first_keys(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return right(X, Z[..., :64, :], Wq, Wk, Wv)


def whole_tiles(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    keys = max(Z.shape[-2] // 16 * 16, 1) if Z.shape[-2] > 16 else Z.shape[-2]
    return right(X, Z[..., :keys, :], Wq, Wk, Wv)


def first_sample(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    shared = Z[:1] if Z.ndim > 2 else Z
    return right(X, shared, Wq, Wk, Wv)


def refuses_nothing(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    with np.errstate(all="ignore"):
        S = scores(X, Z, Wq, Wk)
        return np.asarray(softmax(S) @ (Z @ Wv)) if Z.shape[-2] else np.full(S.shape, np.nan)


def best_only(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    S = scores(X, Z, Wq, Wk)
    if not S.size:
        return right(X, Z, Wq, Wk, Wv)
    best = np.take_along_axis(Z @ Wv, S.argmax(-1)[..., None], -2)
    alone = np.ptp(S, axis=-1, keepdims=True) > 6
    return np.where(alone, best, right(X, Z, Wq, Wk, Wv))


def buffers(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return right(*(np.ascontiguousarray(a.ravel("K").reshape(a.shape)) for a in (X, Z, Wq, Wk, Wv)))


def square_weights_turned(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    turned = Wq.T if Wq.shape[0] == Wq.shape[1] else Wq
    return right(X, Z, turned, Wk, Wv)


def as_many_keys(X: Array, Z: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    keys = min(X.shape[-2], Z.shape[-2])
    return right(X, Z[..., :keys, :], Wq, Wk, Wv)


CARELESS: Final = (
    *(no_maximum, one_maximum, clamped, epsilon, flushed, half_weights, first_keys, whole_tiles),
    *(first_sample, refuses_nothing, best_only, buffers, square_weights_turned, as_many_keys),
)


def caught_on(port: Port) -> list[str]:
    """Ids of cross-attention's cases that a port in float32 fails."""
    found = []
    for case in cases(CROSS):
        if "float32" in case.dtypes and case.tier == "default":
            inputs = case.inputs("float32")
            laid = {k: layouts.apply(a, case.layouts.get(k, "C")) for k, a in inputs.items()}
            C = np.asarray(port(**laid)).astype(np.float32)
            if statuses(case, "float32", {"C": C})["C"] == "failed":
                found.append(case.id)
    return found


@pytest.mark.parametrize("port", CARELESS, ids=lambda port: port.__name__)
def test_careless_ports_are_caught(port: Port) -> None:
    assert caught_on(port)


def test_a_right_port_is_not() -> None:
    assert not caught_on(right)


def test_each_family_that_strains_one_step_catches_who_is_careless_there() -> None:
    assert {case.split("/")[1] for case in caught_on(no_maximum)} >= {"low", "shifted", "row-shift"}
    assert {case.split("/")[1] for case in caught_on(one_maximum)} >= {"row-shift"}
    assert {case.split("/")[1] for case in caught_on(flushed)} == {"subnormal"}
    assert {case.split("/")[1] for case in caught_on(first_sample)} == {"batch", "batch-whole"}


BACKWARD: Final = (
    ("dS", "the sum missing"),
    ("dK", "queries and keys mixed"),
    ("dWq", "not turned"),
    ("dZ", "a path missing"),
)


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_wrong_gradients_are_caught(name: str) -> None:
    profile = known_profiles()[f"{CROSS}_gradients"]
    program = profile.program()
    for equation in program.equations:
        target = equation.target.name
        if target not in profile.results():
            continue
        caught = False
        for case in cases(profile.name):
            if name in case.dtypes and not caught:
                outputs = values(case, name)
                wrong = outputs[target] * outputs[target].dtype.type(1.0625)
                caught = statuses(case, name, {**outputs, target: wrong})[target] == "failed"
        assert caught, target
