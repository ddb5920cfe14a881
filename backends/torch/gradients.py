"""Gradients in PyTorch: autograd through functions that compute attention.

`torch.autograd.grad` hands gradients back instead of adding them to a tensor's `.grad`, so nothing
is left behind for a later call; an input that plays no part is an error and never None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Forward: TypeAlias = "Callable[..., Mapping[str, Any]]"
Backward: TypeAlias = "Callable[[Any, Sequence[Any], Any], Sequence[Any]]"

SUFFIX: Final = "_gradients"
"""What the profile of a function's gradients is called, behind the function's own profile."""

STEPS: Final = ("A", "Ω", "Q", "K", "V")
"""Intermediates of functions that are written out, whose gradients are reported too."""


def gradients(
    forward: Forward,
    inputs: Sequence[str] = (),
    backward: Backward | None = None,
    steps: Sequence[str] = (),
) -> Forward:
    """The function of the gradients of `forward`, by that of the last quantity it returns.

    It takes the arguments of `forward` and the cotangent behind the positional ones; `wanted`
    names the only inputs whose gradients are wanted. `inputs`
    names those, by default as the signature of `forward` does; `backward` does what
    `torch.autograd.grad` does; `steps` are intermediates that `forward` returns on its way.
    """
    names = tuple(inputs) or inputs_of(forward)

    def found(
        *tensors: Any, wanted: Sequence[str] | None = None, **keywords: Any
    ) -> dict[str, Any]:
        import torch

        *given, cotangent = tensors
        arguments = {**dict(zip(names, given, strict=True)), **keywords}
        for name in (*names, "mask"):
            if name in arguments and (wanted is None or name in wanted):
                arguments[name] = leaf(arguments[name])
        with torch.enable_grad():
            results = forward(**arguments)
        last = [*results.values()][-1]
        sources = {
            name: tensor
            for name, tensor in {**results, **arguments}.items()
            if (name in steps or name in arguments) and getattr(tensor, "requires_grad", False)
        }
        pulled = (backward or torch.autograd.grad)(last, tuple(sources.values()), cotangent)
        handed = {f"d{name}": tensor for name, tensor in zip(sources, pulled, strict=True)}
        return {"A": results.get("A"), **handed}

    found.__name__ = f"{getattr(forward, '__name__', 'function')}{SUFFIX}"
    return found


def with_gradients(
    functions: Mapping[str, Forward], steps: Sequence[str] = ()
) -> dict[str, Forward]:
    """Functions by profile, and those of their gradients."""
    found = {f"{name}{SUFFIX}": gradients(f, steps=steps) for name, f in functions.items()}
    return {**functions, **found}


def inputs_of(forward: Forward) -> tuple[str, ...]:
    """The names of a function's positional arguments."""
    parameters = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def leaf(value: Any) -> Any:
    """A real tensor as one whose gradient is wanted, on the same memory; others as they are."""
    real = value is not None and value.is_floating_point()
    return value.detach().requires_grad_() if real else value


def trained(forward: Forward) -> Forward:
    """What a user compiles who trains: it returns the last quantity, and A, without gradient."""

    def function(*tensors: Any, **keywords: Any) -> dict[str, Any]:
        results = forward(*tensors, **keywords)
        last = [*results][-1]
        shown = {"A": results["A"].detach()} if "A" in results else {}
        return {**shown, last: results[last]}

    function.__name__ = getattr(forward, "__name__", "function")
    return function
