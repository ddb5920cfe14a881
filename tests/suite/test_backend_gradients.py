"""Gradients of the adapters: against differences of their own results, and how modes prove them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError
from qkvac.spec.registry import forward_profiles
from qkvac.targets.packages import FRAMEWORKS
from qkvac.targets.ports import known_functions
from qkvac.tests.suite.laboratory import Array, adapter, inside, needs, refusal

DECLARATIONS = {
    name: importlib.import_module(f"qkvac.backends.{name}.adapter").QKVAC for name in FRAMEWORKS
}
EVERY_MODE = pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}/{mode}")
        for name in FRAMEWORKS
        for mode in DECLARATIONS[name]["modes"]
        if "cpu" in DECLARATIONS[name].get("mode_devices", {}).get(mode, ("cpu",))
    ],
)
Keywords = dict[str, Any]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([*shape, seed]).standard_normal(shape)


def inputs(profile: str) -> tuple[list[Array | None], Keywords]:
    """A small call of the profile's function: a batch, one bias of three, a row without keys."""
    n, d, c = 4, 3, 2
    X, weights = draw(2, n, d), [draw(d, c, seed=i) for i in range(3)]
    if profile in ("attention", "causal_attention"):
        return [X, *weights], {}
    if profile == "dot_product_attention":
        return [X], {}
    if profile == "attention_linear_layers":
        return [X, *(W.T.copy() for W in weights), None, draw(c), None], {}
    if profile == "multi_head_attention":
        return [X, *(draw(d, 4, seed=i) for i in range(3)), draw(4, 2)], {"heads": 2}
    if profile == "embedding":
        return [np.array([[0, 3, 0], [1, 1, 3]]), draw(5, d), draw(4, d)], {}
    mask = draw(1, 1, 3, 5, seed=7)
    mask[..., 1, :] = -np.inf
    mask[..., 2, 3] = -np.inf
    keywords: Keywords = {"mask": mask, "scale": 0.7}
    return [draw(2, 4, 3, d), draw(2, 2, 5, d, seed=1), draw(2, 2, 5, c, seed=2)], keywords


def _answers(name: str, mode: str, profile: str, calls: list[Any]) -> list[dict[str, Array]]:
    tried = adapter(name, mode)
    found = [tried.answer(profile, *arrays, **keywords) for arrays, keywords in calls]
    return [{key: np.array(value) for key, value in answer.items()} for answer in found]


def places(arrays: list[Array | None], keywords: Keywords) -> Iterator[tuple[str | int, Any]]:
    """What has a gradient: a position or a keyword, and an entry that is finite."""
    given: list[tuple[str | int, Any]] = [*enumerate(arrays), *keywords.items()]
    for key, array in given:
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            yield from ((key, place) for place in np.argwhere(np.isfinite(array)).tolist())


def nudged(arrays: list[Array | None], keywords: Keywords, at: Any, by: float) -> Any:
    key, place = at
    copied = [None if x is None else x.copy() for x in arrays]
    named = {k: x.copy() if isinstance(x, np.ndarray) else x for k, x in keywords.items()}
    (copied if isinstance(key, int) else named)[key][tuple(place)] += by
    return copied, named


STEP = 2.0**-17
"""About the cube root of the unit roundoff: its square and its share of the rounding are alike."""


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(p, marks=[] if p == "attention" else pytest.mark.long)
        for p in forward_profiles()
    ],
)
@EVERY_MODE
def test_gradients_are_slopes(name: str, mode: str, profile: str) -> None:
    """⟨dC, C(x + h) − C(x − h)⟩ / 2h, with the truncation measured by halving the step."""
    needs(name, mode)
    if mode in ("compile", "xla") and profile not in ("attention", "embedding"):
        pytest.skip("compiled anew for every profile; the conformance matrix asks for more")
    arrays, keywords = inputs(profile)
    # The forward pass of a plain mode: what is compared with must not be compiled for each step.
    plain = DECLARATIONS[name]["modes"][0]
    last = forward_profiles()[profile].last
    (forward,) = inside(name, _answers, name, plain, profile, [(arrays, keywords)])
    cotangent = draw(*forward[last].shape, seed=9)
    call = ([*arrays, cotangent], keywords)
    (found,) = inside(name, _answers, name, mode, f"{profile}_gradients", [call])

    where = list(places(arrays, keywords))
    steps = [s * STEP for s in (2, -2, 1, -1)]
    calls = [nudged(arrays, keywords, at, by) for at in where for by in steps]
    values = [
        float(np.sum(answer[last] * cotangent))
        for answer in inside(name, _answers, name, plain, profile, calls)
    ]
    signature = known_functions()[profile].positional
    for number, (key, place) in enumerate(where):
        further, back, up, down = values[4 * number : 4 * number + 4]
        coarse, fine = (further - back) / (4 * STEP), (up - down) / (2 * STEP)
        # The truncation falls to a quarter; 2⁻⁵³ of values of a few, over the step, is the rest.
        allowed = abs(coarse - fine) + 64 * 2.0**-53 * max(1, abs(up)) / STEP
        gradient = found[f"d{signature[key] if isinstance(key, int) else key}"]
        assert abs(gradient[tuple(place)] - fine) <= allowed, (key, place)
    if "mask" in keywords:
        assert not found["dmask"][np.isneginf(keywords["mask"])].any()
    shapes = {f"d{signature[i]}": x.shape for i, x in enumerate(arrays) if x is not None}
    shapes.pop("dtokens", None)
    assert {key: found[key].shape for key in shapes} == shapes
    assert not {"dbq", "dbv", "dtokens"} & found.keys()


def _twice(name: str, mode: str) -> Any:
    """Two equal calls, and whether what was given is as it was."""
    tried = adapter(name, mode)
    arrays, _ = inputs("attention")
    shared = np.broadcast_to(draw(2), (2, 4, 2))
    given = [*arrays, shared]
    before = [x.tobytes() for x in given if x is not None]
    first = {k: np.array(x) for k, x in tried.attention_gradients(*given).items()}
    second = {k: np.array(x) for k, x in tried.attention_gradients(*given).items()}
    unchanged = before == [x.tobytes() for x in given if x is not None]
    return first, second, unchanged, tried.evidence()


@EVERY_MODE
def test_nothing_is_left_behind(name: str, mode: str) -> None:
    needs(name, mode)
    first, second, unchanged, _ = inside(name, _twice, name, mode)
    assert unchanged
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], key)


def test_the_backward_pass_is_compiled_and_counted() -> None:
    needs("torch", "compile")
    *_, before = inside("torch", _twice, "torch", "compile")
    *_, after = inside("torch", _twice, "torch", "compile")
    assert after["graphs"] == before["graphs"]
    assert after["runs"] == before["runs"] + 2
    assert after["backward_runs"] == before["backward_runs"] + 2
    assert after["graph_breaks"] == 0


# Wrong variants -------------------------------------------------------------------------------


def _replaced(way: str) -> str:
    """What a call says whose backward pass is not what Inductor made."""
    import torch

    from qkvac.backends.torch.gradients import gradients, inputs_of, trained

    tried = adapter("torch", "compile")
    forward = tried.functions["attention"]

    def uncounted(last: Any, sources: Any, cotangent: Any) -> Any:
        return torch.autograd.grad(last, sources, cotangent)

    def scaled(*tensors: Any) -> Any:
        results = tried.to_compile(trained(forward))(*tensors)
        return {**results, "C": 1.0 * results["C"]}

    names = inputs_of(forward)
    kept = tried.compiled["attention_gradients"]
    tried.compiled["attention_gradients"] = {
        "eager": gradients(forward, names, tried.backward),
        "partly eager": gradients(
            lambda **given: scaled(*(given[name] for name in names)), names, tried.backward
        ),
        "uncounted": gradients(tried.to_compile(trained(forward)), names, uncounted),
    }[way]
    arrays, _ = inputs("attention")
    try:
        return refusal(ModeError, tried.attention_gradients, *arrays, np.ones((2, 4, 2)))
    finally:
        tried.compiled["attention_gradients"] = kept


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("eager", "not compiled"),
        ("partly eager", "not compiled"),
        ("uncounted", "without compiled code"),
    ],
)
def test_a_backward_pass_that_is_not_compiled_is_an_error(way: str, message: str) -> None:
    needs("torch", "compile")
    assert message in inside("torch", _replaced, way)


def _constant(name: str) -> str:
    """What is said of an input that the last quantity does not depend on."""
    module = importlib.import_module(f"qkvac.backends.{name}.gradients")

    def forward(X: Any, W: Any) -> dict[str, Any]:
        return {"C": X * 2}

    given = [adapter(name, "eager").to_framework(np.ones(3)) for _ in range(3)]
    return refusal(Exception, module.gradients(forward), *given)


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_an_input_without_a_path_is_an_error_and_not_none(name: str) -> None:
    needs(name)
    assert inside(name, _constant, name)


def _paths(name: str, detached: bool) -> int:
    """How many operations take a gradient through the maximum of a softmax."""
    if name == "torch":
        import torch

        from qkvac.backends.torch.profiles import softmax

        x = torch.ones(2, 3, requires_grad=True)
        weights = softmax(x) if detached else (x - x.amax(-1, keepdim=True)).exp()
        return reached(weights.grad_fn, "AmaxBackward0")
    import tensorflow as tf

    from qkvac.backends.tensorflow.profiles import softmax as of_tensorflow

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            shifted = x - tf.reduce_max(x, axis=-1, keepdims=True)
            weights = of_tensorflow(x) if detached else tf.exp(shifted)
        return tape.gradient(weights, x)

    graph = tf.function(gradient).get_concrete_function(tf.TensorSpec((2, 3), tf.float32)).graph
    # The gradient of a maximum goes to the entries that are equal to it.
    return sum(operation.type == "Equal" for operation in graph.get_operations())


def reached(node: Any, name: str) -> int:
    """How many nodes of that name lie before a node of autograd's graph."""
    before = () if node is None else (reached(entry, name) for entry, _ in node.next_functions)
    return (type(node).__name__ == name) + sum(before)


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_no_gradient_goes_through_the_maximum(name: str) -> None:
    needs(name)
    assert inside(name, _paths, name, True) == 0
    assert inside(name, _paths, name, False) == 1


def _accumulated() -> list[Array]:
    """Two equal calls, where `backward` adds to the `.grad` of inputs that live on."""
    import torch

    from qkvac.backends.torch.gradients import gradients, inputs_of
    from qkvac.backends.torch.profiles import attention

    kept: dict[int, Any] = {}

    def forward(*, mask: Any = None, **given: Any) -> dict[str, Any]:
        return attention(**given)

    def backward(last: Any, sources: Any, cotangent: Any) -> Any:
        last.backward(cotangent, inputs=list(sources))
        for place, source in enumerate(sources):
            kept[place] = source.grad + kept.get(place, 0)
        return [kept[place] for place in range(len(sources))]

    arrays, _ = inputs("attention")
    tensors = [torch.from_numpy(array) for array in (*arrays, np.ones((2, 4, 2)))]
    leaking = gradients(forward, inputs_of(attention), backward)
    return [leaking(*tensors)["dX"].numpy().copy() for _ in range(2)]


def test_gradients_that_add_up_are_seen() -> None:
    """The comparison of `test_nothing_is_left_behind`, on an adapter that leaks."""
    needs("torch")
    first, second = inside("torch", _accumulated)
    assert not np.array_equal(first, second)


def test_a_wrong_gradient_is_no_slope() -> None:
    """Halving the step leaves less room than any of the usual mistakes takes."""
    x, step = draw(5), STEP
    slope = (math.sin(x[0] + step) - math.sin(x[0] - step)) / (2 * step)
    coarse = (math.sin(x[0] + 2 * step) - math.sin(x[0] - 2 * step)) / (4 * step)
    allowed = abs(coarse - slope) + 64 * 2.0**-53 / step
    assert abs(math.cos(x[0]) - slope) <= allowed
    assert abs(1.001 * math.cos(x[0]) - slope) > allowed
