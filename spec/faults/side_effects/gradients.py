"""Misbehaviour of functions that return gradients: what they add up, leave out, or read wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from qkvac.spec.faults.side_effects.calls import Array, Function, Habit
from qkvac.spec.faults.side_effects.memory import in_memory_order


def cotangent_of(inputs: Mapping[str, Array]) -> str:
    """The name of the cotangent among the inputs."""
    return next(name for name in reversed(list(inputs)) if name.startswith("d"))


def accumulated(plain: Function) -> Function:
    """What earlier calls of the same shapes have returned is added, as if nobody had set it to 0.

    One call for one shape is forgotten after the second, so that sums stay in range.
    """
    kept = dict[Any, dict[str, Array]]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        key = tuple((name, a.shape, a.dtype.name) for name, a in inputs.items())
        results = plain(inputs)
        earlier = kept.pop(key, None)
        if earlier is None:
            kept[key] = {name: array.copy() for name, array in results.items()}
            return results
        return {name: (a + earlier[name]).astype(a.dtype) for name, a in results.items()}

    return call


def saved_forward(plain: Function) -> Function:
    """Inputs of the first forward pass of these shapes are kept for every backward pass."""
    kept = dict[Any, dict[str, Array]]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = cotangent_of(inputs)
        key = tuple((name, a.shape, a.dtype.name) for name, a in inputs.items())
        saved = kept.setdefault(key, {n: a.copy() for n, a in inputs.items() if n != given})
        return plain({**saved, given: inputs[given]})

    return call


def graph_freed(plain: Function) -> Function:
    """A second call with the same arrays is refused: their graph has been freed."""
    seen = dict[int, Mapping[str, Array]]()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if seen.pop(id(inputs), None) is not None:
            raise RuntimeError("backward through the graph a second time")
        seen.clear()
        seen[id(inputs)] = inputs
        return plain(inputs)

    return call


def _cotangent(change: Callable[[Array], Array]) -> Callable[[Function], Function]:
    """The cotangent is read otherwise."""

    def wrap(plain: Function) -> Function:
        def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
            given = cotangent_of(inputs)
            return plain({**inputs, given: change(inputs[given])})

        return call

    return wrap


def scaled_in_place(plain: Function) -> Function:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results, given = plain(inputs), inputs[cotangent_of(inputs)]
        if given.flags.writeable:
            given *= given.dtype.type(0.5)
        return results

    return call


def in_cotangent(plain: Function) -> Function:
    """A gradient that fits lies in the memory of the cotangent."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results, given = plain(inputs), inputs[cotangent_of(inputs)]
        if not given.flags.writeable or not given.flags.c_contiguous:
            return results
        for name, value in results.items():
            if value.size <= given.size:
                place = given.reshape(-1)[: value.size].reshape(value.shape)
                place[...] = value
                return {**results, name: place}
        return results

    return call


def repeated_rows(array: Array) -> Array:
    """As if no axis had stride 0: memory is read on from where the one row lies."""
    if 0 not in array.strides or array.size == 0:
        return array
    row = np.ascontiguousarray(array[(0,) * (array.ndim - 1)])
    flat = np.zeros(array.size, array.dtype)
    flat[: row.size] = row
    return flat.reshape(array.shape)


def _each(
    change: Callable[[str, Array, Mapping[str, Array]], Array | None],
) -> Callable[[Function], Function]:
    """A change of every gradient, given its name and the inputs; None leaves it out."""

    def wrap(plain: Function) -> Function:
        def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
            changed = {n: change(n, a, inputs) for n, a in plain(inputs).items()}
            return {name: array for name, array in changed.items() if array is not None}

        return call

    return wrap


def _for(*names: str, change: Callable[[Array], Array | None]) -> Callable[[Function], Function]:
    return _each(lambda name, array, _: change(array) if name in names else array)


def over_samples(name: str, gradient: Array, inputs: Mapping[str, Array]) -> Array:
    """The sum over samples for every sample; without a batch nothing changes."""
    if name not in ("dX", "dQ") or gradient.ndim <= (2 if name == "dX" else 3):
        return gradient
    total = gradient.astype(np.float64).sum(axis=0, keepdims=True)
    return np.broadcast_to(total, gradient.shape).astype(gradient.dtype)


def clipped(plain: Function) -> Function:
    """All gradients are scaled so that their norm is at most 1."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        total = sum(float(np.sum(a.astype(np.float64) ** 2)) for a in results.values())
        factor = min(1.0, total**-0.5) if total else 1.0
        return {n: (a.astype(np.float64) * factor).astype(a.dtype) for n, a in results.items()}

    return call


def exchanged(plain: Function) -> Function:
    """The last two gradients come back under each other's names."""

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = plain(inputs)
        *_, one, two = results
        return {**results, one: results[two], two: results[one]}

    return call


LEFT_OUT: Final = ("dWk", "dK", "dP")

HABITS: Final = (
    Habit("gradients-accumulated", "adds its gradients to those of the call before", accumulated),
    Habit("forward-saved", "uses the first call's forward pass for every gradient", saved_forward),
    Habit("graph-freed", "refuses to compute gradients twice", graph_freed),
    Habit(
        *("gradient-missing", "leaves one gradient out"),
        _for(*LEFT_OUT, change=lambda a: None),
        ("paiml/aprender#2203",),
    ),
    Habit(
        *("weights-gradients-missing", "returns the gradient of X alone"),
        _each(lambda name, a, _: a if name == "dX" else None),
        inputs=("X", "Wq"),
    ),
    Habit(
        *("cotangent-strides-ignored", "reads the cotangent in the order of its memory"),
        _cotangent(in_memory_order),
        ("Dao-AILab/flash-attention#355",),
    ),
    Habit(
        *("cotangent-expansion-ignored", "reads on where the cotangent repeats a row"),
        _cotangent(repeated_rows),
    ),
    Habit("cotangent-scaled-in-place", "scales the cotangent in place", scaled_in_place),
    Habit(
        *("gradient-in-cotangent", "returns a gradient in the memory of the cotangent"),
        in_cotangent,
    ),
    Habit(
        *("gradients-clipped", "scales its gradients to a norm of 1"),
        clipped,
    ),
    Habit(
        *("sample-gradients-summed", "returns the sum over the batch for every sample"),
        _each(over_samples),
    ),
    Habit(
        *("gradients-exchanged", "returns its last two gradients under each other's names"),
        exchanged,
    ),
    Habit(
        *("gradients-per-sample", "returns gradients of weights for each sample"),
        _for("dWq", "dWk", "dWv", "dE", "dP", change=lambda a: a[None]),
    ),
    Habit(
        *("gradients-float64", "returns gradients in float64"),
        _each(lambda name, a, _: a.astype(np.float64)),
    ),
)
