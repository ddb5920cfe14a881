"""Gradients in JAX: `jax.vjp` of functions that compute attention.

What JAX differentiates is a function of real arrays: tokens, boolean masks and absent biases are
closed over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Forward: TypeAlias = "Callable[..., Mapping[str, Any]]"

SUFFIX: Final = "_gradients"
"""What the profile of a function's gradients is called, behind the function's own profile."""


def gradients(forward: Forward) -> Forward:
    """The function of the gradients of `forward`, by that of the last quantity it returns.

    It takes the arguments of `forward` and the cotangent behind the positional ones; `wanted`
    names the only inputs whose gradients are wanted. A is reported besides.
    """
    names = inputs_of(forward)

    def found(*arrays: Any, wanted: Sequence[str] | None = None, **keywords: Any) -> dict[str, Any]:
        import jax

        *given, cotangent = arrays
        arguments = {**dict(zip(names, given, strict=True)), **keywords}
        real = {
            name: value
            for name, value in arguments.items()
            if is_real(value) and (wanted is None or name in wanted)
        }

        def last(real: Mapping[str, Any]) -> tuple[Any, Any]:
            results = forward(**{**arguments, **real})
            return [*results.values()][-1], results.get("A")

        _, pull, weights = jax.vjp(last, real, has_aux=True)
        (handed,) = pull(cotangent)
        return {"A": weights, **{f"d{name}": handed[name] for name in real}}

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


def is_real(value: Any) -> bool:
    """Whether a value is an array that has a gradient."""
    import jax
    import jax.numpy as jnp

    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))
