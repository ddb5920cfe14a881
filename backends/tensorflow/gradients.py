"""Gradients in TensorFlow: a tape over functions that compute attention.

The tape lies inside whatever is traced, so that a graph, or XLA's program, holds both directions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Forward: TypeAlias = "Callable[..., Mapping[str, Any]]"

SUFFIX: Final = "_gradients"
"""What the profile of a function's gradients is called, behind the function's own profile."""

STEPS: Final = ("A", "Ω", "Q", "K", "V")
"""Intermediates whose gradients are reported too."""


def gradients(forward: Forward) -> Forward:
    """The function of the gradients of `forward`, by that of the last quantity it returns.

    It takes the arguments of `forward` and the cotangent behind the positional ones; `wanted`
    names the only inputs whose gradients are wanted. Raises ValueError for an input that plays no
    part: it has no gradient, where the tape would give None.
    """
    names = inputs_of(forward)

    def found(
        *tensors: Any, wanted: Sequence[str] | None = None, **keywords: Any
    ) -> dict[str, Any]:
        import tensorflow as tf

        *given, cotangent = tensors
        arguments = {**dict(zip(names, given, strict=True)), **keywords}
        real = {name: x for name, x in arguments.items() if tf.is_tensor(x) and x.dtype.is_floating}
        if wanted is not None:
            real = {name: tensor for name, tensor in real.items() if name in wanted}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(real)
            results = forward(**arguments)
        last = [*results][-1]
        steps = {name: results[name] for name in STEPS if name in results and name != last}
        handed = tape.gradient(results[last], {**steps, **real}, cotangent)
        if wanted is not None:
            # Steps before which no gradient is wanted have none.
            handed = {name: t for name, t in handed.items() if name in wanted or t is not None}
        absent = [name for name, tensor in handed.items() if tensor is None]
        if absent:
            raise ValueError(f"{last} does not depend on {', '.join(absent)}")
        # The gradient of a lookup comes as the rows that were looked up.
        dense = {f"d{name}": tf.convert_to_tensor(tensor) for name, tensor in handed.items()}
        return {"A": results.get("A"), **dense}

    found.__name__ = f"{getattr(forward, '__name__', 'function')}{SUFFIX}"
    return found


def with_gradients(functions: Mapping[str, Forward]) -> dict[str, Forward]:
    """Functions by profile, and those of their gradients."""
    found = {f"{name}{SUFFIX}": gradients(function) for name, function in functions.items()}
    return {**functions, **found}


def inputs_of(forward: Forward) -> tuple[str, ...]:
    """The names of a function's positional arguments."""
    parameters = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
