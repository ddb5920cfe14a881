"""What the adapters of PyTorch's own attention share: which kernels a call really dispatched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from qkvac.backends.adapter import Functions, Library, ModeError
from qkvac.backends.torch.adapter import Compiled, Torch

FUSED: Final = "_scaled_dot_product_flash_attention_for_cpu"
MATH: Final = "_safe_softmax"
"""The softmax of what PyTorch calls its math kernel, which is a composition of operations."""
SOFTMAX: Final = "_softmax"
NATIVE: Final = "_native_multi_head_attention"
FLEX: Final = "flex_attention"

KERNELS: Final = frozenset({FUSED, MATH, SOFTMAX, NATIVE, FLEX})
"""Operations by which implementations are told apart: each computes a softmax, or contains one."""

WIDE_INSIDE: Final = {"elementwise": "float32", "scores": "float32"}
"""Arithmetic of kernels that keep scores and softmax of 16-bit arrays in float32."""


class TorchLibrary(Library, Torch):
    """A function or layer of PyTorch's; each call shows by what it dispatched how it ran."""

    def __init__(
        self, mode: str, device: str, functions: Functions, kernels: Iterable[str] = KERNELS
    ) -> None:
        """`kernels` are those that the mode allows."""
        super().__init__(mode, device, functions)
        self.kernels = frozenset(kernels)
        self.seen = Counter[str]()

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import torch

        recorder = Recorded()
        with torch.no_grad(), recorder.mode:
            results = super().run(profile, tensors, keywords)
        self.seen.update(recorder.seen)
        self.check_kernels(recorder.seen, empty=_empty(tensors) or _empty(results.values()))
        return results

    def check_kernels(self, seen: Sequence[str], *, empty: bool) -> None:
        """Raise ModeError unless exactly one kernel ran, and one that the mode allows.

        PyTorch dispatches none for empty arrays.
        """
        if empty and not seen:
            return
        if len(seen) != 1 or not self.kernels.issuperset(seen):
            ran = " and ".join(seen) or "no known kernel"
            raise ModeError(
                f"{self.mode} stands for {' or '.join(sorted(self.kernels))}; {ran} ran"
            )

    def evidence(self) -> dict[str, Any]:
        return super().evidence() | {"kernels": dict(self.seen)}


class CompiledTorchLibrary(Library, Compiled):
    """A function of PyTorch's, compiled by Dynamo and Inductor; its calls are counted."""


class Recorded:
    """Names of those `KERNELS` that PyTorch dispatches within `mode`, in order."""

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = self.seen = list[str]()

        class Recorder(TorchDispatchMode):
            supports_higher_order_operators = True

            def __torch_dispatch__(
                self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                name = getattr(operation, "overloadpacket", operation).__name__
                if name in KERNELS:
                    seen.append(name)
                return operation(*args, **(kwargs or {}))

        self.mode = Recorder()


def _empty(tensors: Iterable[Any]) -> bool:
    return any(tensor is not None and tensor.numel() == 0 for tensor in tensors)
