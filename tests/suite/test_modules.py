"""Trainable modules: the two classic forms hold the same weights, whoever saved them."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import pytest

from qkvac.digests import same_bits
from qkvac.isolation import tensors
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.verdicts.verdict import Question, Verdict, judge
from qkvac.targets.declaration import parse
from qkvac.targets.packages import adapter as module
from qkvac.tests.suite.laboratory import DTYPES, Array, inside, refusal, whole

Form = tuple[str, str]
Arrays = dict[str, Array]

STORED: dict[Form, str] = {
    ("numpy", "parameters"): "d×c",
    ("numpy", "linear"): "c×d",
    ("torch", "parameters"): "d×c",
    ("torch", "linear"): "c×d",
    ("jax", "parameters"): "d×c",
    ("jax", "linear-flax"): "d×c",
    ("jax", "linear-equinox"): "c×d",
    ("tensorflow", "parameters"): "d×c",
    ("tensorflow", "linear"): "d×c",
}
"""How each form keeps its matrices."""

LINEAR = [form for form in STORED if form[1] != "parameters"]

forms = pytest.mark.parametrize(
    "form",
    [
        # JAX compiles each of these; that its forms agree with the others is tested below.
        pytest.param(f, id="/".join(f), marks=pytest.mark.long if f[0] == "jax" else [])
        for f in STORED
    ],
)
dtypes = pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=[] if d == "float32" else pytest.mark.long) for d in DTYPES],
)


def available(form: Form) -> str:
    """Why a form cannot run here, or ""."""
    name, mode = form
    if importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    return module(f"{name}-modules").unavailable(mode) or ""


def need(form: Form) -> None:
    if reason := available(form):
        pytest.skip(reason)


def case(id: str) -> Any:
    return next(c for c in cases(id.partition("/")[0]) if c.id == id)


def judged(form: Form, id: str, dtype: str, outputs: Arrays) -> dict[str, Verdict]:
    """Verdicts by the arithmetic that the adapter declares."""
    name, mode = form
    fields = parse(module(f"{name}-modules").QKVAC).arithmetic(dtype, mode, "cpu")
    asked = case(id)
    found = judge(Question(asked, dtype, Arithmetic.for_dtype(dtype, fields)), outputs)
    return {quantity: found[quantity] for quantity in asked.results}


# --- in the process of a framework ------------------------------------------------------------


@cache
def _opened(form: Form) -> Any:
    name, mode = form
    return module(f"{name}-modules").open(mode, "cpu")


def _answer(form: Form, profile: str, inputs: Arrays) -> Arrays:
    """What the adapter returns; an input that is absent is None."""
    function = getattr(_opened(form), profile)
    linear = profile.startswith("attention_linear_layers")
    names = ("X", "Wq", "Wk", "Wv", *(("bq", "bk", "bv") if linear else ()))
    given = [*names, *(("dC",) if profile.endswith("_gradients") else ())]
    return {k: np.array(v) for k, v in function(*map(inputs.get, given)).items()}


def _saved(form: Form, weights: Arrays) -> bytes:
    """A file, by the usual writer, of the checkpoint of a module that was loaded."""
    from safetensors.numpy import save

    opened = _opened(form)
    given = {name: opened.to_framework(array) for name, array in weights.items()}
    loaded = opened.modules.loaded(next(iter(given.values())), given)
    kept = opened.modules.form.checkpoint(loaded)
    return bytes(save({name: opened.to_numpy(tensor) for name, tensor in kept.items()}))


def _shape_of_weights(form: Form) -> tuple[int, ...]:
    """As the first matrix [5, 3] is stored, by the form's own names."""
    opened = _opened(form)
    W = np.zeros((5, 3), np.float32)
    given = {name: opened.to_framework(W) for name in ("Wq", "Wk", "Wv")}
    held = opened.modules.loaded(given["Wq"], given)
    if form[1] == "parameters":
        held = held[0] if form[0] == "jax" else held
        found = getattr(held, "parameters", held) if form[0] == "numpy" else held
        return tuple((found["Wq"] if isinstance(found, dict) else found.Wq).shape)
    if form[0] == "numpy":
        return tuple(held.parameters["q.weight"].shape)
    layer = held.q
    return tuple((layer.weight if hasattr(layer, "weight") else layer.kernel).shape)


def _refused(form: Form, weights: Arrays) -> str:
    """What is said where a checkpoint does not fit a module for matrices [5, 3]."""
    opened = _opened(form)
    W = opened.to_framework(np.zeros((5, 3), np.float32))
    made = opened.modules.loaded(W, {"Wq": W, "Wk": W, "Wv": W})
    given = {name: opened.to_framework(array) for name, array in weights.items()}
    return refusal(Exception, opened.modules.form.load, made, given)


def _accumulated(form: Form, inputs: Arrays) -> list[Arrays]:
    """Two answers of a module whose gradients are never cleared."""
    import torch

    opened = module("torch-modules").open(form[1], "cpu")
    given = [inputs[name] for name in ("X", "Wq", "Wk", "Wv", "dC")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "zero_grad", lambda *_: None)
        return [
            {k: np.array(v) for k, v in opened.attention_gradients(*given).items()}
            for _ in range(2)
        ]


# --- the weights ------------------------------------------------------------------------------


@forms
def test_a_form_stores_matrices_as_its_framework_does(form: Form) -> None:
    need(form)
    shape = inside(form[0], _shape_of_weights, form)
    assert shape == ((5, 3) if STORED[form] == "d×c" else (3, 5))


@forms
def test_what_was_saved_is_what_was_loaded(form: Form) -> None:
    """Writers take the memory as it lies: a transposed view would come back as other numbers."""
    need(form)
    rng = np.random.default_rng(3)
    for dtype in DTYPES.values():
        weights = {name: rng.standard_normal((5, 3)).astype(dtype) for name in ("Wq", "Wk", "Wv")}
        if form in LINEAR:
            weights |= {f"b{x}": rng.standard_normal(3).astype(dtype) for x in "qkv"}
        found = tensors.decode(inside(form[0], _saved, form, weights))
        assert found.keys() == weights.keys()
        for name, array in weights.items():
            assert found[name].dtype == dtype
            assert same_bits(found[name], array), (dtype, name)


def test_the_trap_of_views_is_there() -> None:
    """Otherwise the test above could not fail."""
    from safetensors.numpy import save

    W = np.arange(15.0).reshape(3, 5).T
    if same_bits(tensors.decode(save({"W": W}))["W"], W):
        pytest.skip("this version of safetensors writes views as they are")


@dtypes
@pytest.mark.parametrize("id", ["attention/normal/6x3x2", "attention_gradients/fresh/5x6x3"])
def test_every_form_computes_with_what_the_one_before_it_saved(id: str, dtype: str) -> None:
    """A checkpoint wanders through all forms; each is judged by the spec."""
    inputs = case(id).inputs(dtype)
    weights = {name: inputs[name] for name in ("Wq", "Wk", "Wv")}
    for form in STORED:
        if available(form):
            continue
        weights = tensors.decode(inside(form[0], _saved, form, weights))
        for name, array in weights.items():
            assert same_bits(array, inputs[name]), (form, name)
        outputs = inside(form[0], _answer, form, id.partition("/")[0], {**inputs, **weights})
        for quantity, verdict in judged(form, id, dtype, outputs).items():
            assert verdict.status == "passed", (form, quantity, verdict)


@dtypes
@pytest.mark.parametrize("biased", [False, True])
def test_all_forms_agree_in_every_bit_where_no_rounding_occurs(dtype: str, biased: bool) -> None:
    """Forward, and every gradient; none of them is 0."""
    id = "attention_gradients/balanced-few/4x6x16"
    if biased:
        id = "attention_linear_layers_gradients/balanced-few/bias/4x6x16"
    inputs = case(id).inputs(dtype)
    gradients = id.partition("/")[0]
    for profile in (gradients, gradients.removesuffix("_gradients")):
        first: Arrays = {}
        for form in LINEAR if biased else STORED:
            if available(form):
                continue
            outputs = inside(form[0], _answer, form, profile, inputs)
            first = first or outputs
            for name in outputs.keys() & first.keys():
                assert outputs[name].any() or name in ("bk", "dbk"), name
                assert same_bits(outputs[name], first[name]), (form, name)


# --- mistakes ---------------------------------------------------------------------------------


@forms
def test_matrices_that_are_stored_the_other_way_round_are_noticed(form: Form) -> None:
    """Where shapes differ when they are loaded, and where d = c by the results."""
    need(form)
    turned = {name: np.zeros((3, 5), np.float32) for name in ("Wq", "Wk", "Wv")}
    assert inside(form[0], _refused, form, turned)
    id = "attention/ternary/16x16x16"
    inputs = case(id).inputs("float32")
    for correct in (True, False):
        given = {
            name: array if correct or name == "X" else np.ascontiguousarray(array.T)
            for name, array in inputs.items()
        }
        outputs = inside(form[0], _answer, form, "attention", given)
        found = judged(form, id, "float32", outputs)
        assert (found["C"].status == "passed") is correct


@forms
def test_what_does_not_fit_is_refused(form: Form) -> None:
    need(form)
    W = np.zeros((5, 3), np.float32)
    assert inside(form[0], _refused, form, {"Wq": W, "Wk": W})
    assert inside(form[0], _refused, form, {"Wq": W, "Wk": W, "Wv": W, "bq": W[0]})


@pytest.mark.parametrize("mode", ["parameters", "linear"])
def test_gradients_that_add_up_from_call_to_call_fail(mode: str) -> None:
    form = ("torch", mode)
    need(form)
    id = "attention_gradients/normal/6x3x2"
    first, second = inside("torch", _accumulated, form, case(id).inputs("float64"))
    assert {v.status for v in judged(form, id, "float64", first).values()} == {"passed"}
    found = judged(form, id, "float64", second)
    assert {name for name, v in found.items() if v.status == "failed"} == {"dWq", "dWk", "dWv"}


@pytest.mark.parametrize("form", LINEAR, ids="/".join)
def test_any_of_the_biases_may_be_absent(form: Form) -> None:
    need(form)
    X, Wq, Wk, Wv = whole("float32")
    inputs = {"X": X, "Wq": Wq.T, "Wk": Wk.T, "Wv": Wv.T, "bk": np.ones(7, np.float32)}
    outputs = inside(form[0], _answer, form, "attention_linear_layers", inputs)
    for name, bias in (("q", 0), ("k", 1), ("v", 0)):
        np.testing.assert_array_equal(outputs[name.upper()], X @ inputs[f"W{name}"].T + bias)
    gradients = inside(
        form[0], _answer, form, "attention_linear_layers_gradients", inputs | {"dC": X[:, :7]}
    )
    assert {name for name in gradients if name.startswith("db")} == {"dbk"}
    assert gradients["dWq"].shape == (7, 12)
