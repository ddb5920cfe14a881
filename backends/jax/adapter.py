"""Self-attention in JAX: eager, and compiled by `jit`.

JAX makes float64 into float32 unless x64 is enabled; `open` enables it, and the dtype of every
array that JAX made is looked at. The jit mode lowers and compiles ahead of the call, so what runs
is an executable and cannot be anything else. Arrays in JAX have no strides: layouts end here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import (
    Adapter,
    Array,
    Budget,
    Contraction,
    Functions,
    ModeError,
    choose,
    installed,
    require,
    threads,
)
from qkvac.backends.jax.gradients import with_gradients
from qkvac.backends.jax.profiles import FUNCTIONS as FORWARD

FUNCTIONS: Final[Functions] = with_gradients(FORWARD)

ARITHMETIC: Final[dict[str, Any]] = {
    "softmax": "reciprocal",
    "flushes": True,
    # The normal range of float32, in which float16 is computed, holds its subnormals.
    "float16": {"flushes": False},
    # Accelerators are not measured: no bits are promised of their softmax.
    **{kind: {"softmax": "fused", "flushes": True} for kind in ("cuda", "rocm", "tpu")},
}

PROOF: Final = {"runs": "each call", "executables": "some"}
"""What shows that a call ran compiled."""

QKVAC: Final[dict[str, Any]] = {
    "name": "jax",
    "requires": "jax",
    "modes": ("eager", "jit", "tf32"),
    "shapes": {"eager": "some", "tf32": "some", "jit": "few"},
    "evidence": {"jit": PROOF},
    "mode_devices": {"tf32": ("cuda",)},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": tuple(FUNCTIONS),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {**ARITHMETIC, "float32": {"tf32": {"operands": "tfloat32"}}},
}


def open(mode: str = "eager", device: str = "cpu") -> Jax:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return (Jit if mode == "jit" else Jax)(mode, device, FUNCTIONS)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that JAX finds: cpu, cpu:1, cuda:0, ..."""
    return tuple(table())


def table() -> dict[str, Any]:
    """Device name → JAX's device. The first call starts JAX's backends, with our settings."""
    prepare()
    import jax

    found = {name_of(device): device for device in jax.devices("cpu")}
    return found | {name_of(device): device for device in jax.devices()}


def name_of(device: Any) -> str:
    """A device's name: the first CPU is `cpu`; GPUs are named after their platform."""
    kind = device.platform
    if kind == "gpu":
        kind = "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
    return "cpu" if (kind, device.id) == ("cpu", 0) else f"{kind}:{device.id}"


def prepare() -> None:
    """Settings that JAX reads when its backends start: GPU memory as needed, and threads.

    The size of the CPU's thread pool has no option but this variable;
    `--xla_cpu_multi_thread_eigen=false` leaves products on several threads.
    """
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["PJRT_NPROC"] = os.environ["NPROC"] = str(threads())
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("jax", "jaxlib", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """Backend, flags and precision settings."""
    import jax

    return {
        "backend": jax.default_backend(),
        "x64": bool(jax.config.jax_enable_x64),
        "matmul_precision": jax.config.jax_default_matmul_precision,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "threads": os.environ.get("PJRT_NPROC"),
        "preallocate": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE"),
    }


class Jax(Adapter):
    """JAX as its user calls it, operation by operation."""

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        import jax

        super().__init__(mode, device, functions)
        self.placement = table()[device]
        self.precision = "tensorfloat32" if mode == "tf32" else "highest"
        jax.config.update("jax_default_matmul_precision", self.precision)
        self.dtype = ""
        """Of the last call."""

    def answer(self, profile: str, *arrays: Array | None, **keywords: Any) -> dict[str, Array]:
        import jax

        dtype = next(a.dtype.name for a in arrays if a is not None and a.dtype.kind not in "bi")
        if self.dtype and dtype != self.dtype:
            # What was compiled for another dtype, a gigabyte of it, is not asked for again.
            jax.clear_caches()
        self.dtype = dtype
        return super().answer(profile, *arrays, **keywords)

    def check_settings(self) -> None:
        import jax

        if not jax.config.jax_enable_x64:
            raise ModeError("jax_enable_x64 is off: float64 would silently become float32")
        found = jax.config.jax_default_matmul_precision
        if found != self.precision:
            raise ModeError(f"float32 products may use TensorFloat-32 or bfloat16: {found}")

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return self.functions[profile](*tensors, **keywords)

    def to_framework(self, array: Array) -> Any:
        import jax

        return jax.device_put(array, self.placement)

    def to_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def device_of(self, tensor: Any) -> str:
        return ", ".join(sorted(map(name_of, tensor.devices())))

    def evidence(self) -> dict[str, Any]:
        import jax

        return {
            "calls": self.calls,
            "device": str(self.placement),
            "x64": bool(jax.config.jax_enable_x64),
            "matmul_precision": jax.config.jax_default_matmul_precision,
        }

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        """The operations of the jaxpr, nested ones too."""
        import jax

        tensors, named = self.given(arrays, keywords)
        traced = jax.make_jaxpr(partial(self.functions[profile], **named))(*tensors)
        return count(traced.jaxpr)


class Jit(Jax):
    """JAX compiled: one executable for each combination of flags, shapes and dtypes."""

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        super().__init__(mode, device, functions)
        self.executables: dict[Any, Any] = {}
        self.programs: set[str] = set()
        self.runs = 0

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import jax

        arrays = {name: x for name, x in keywords.items() if isinstance(x, jax.Array)}
        flags = {name: x for name, x in keywords.items() if name not in arrays}
        signature = (
            profile,
            *(None if x is None else (x.dtype.name, x.shape) for x in tensors),
            *((name, x.dtype.name, x.shape) for name, x in arrays.items()),
            *flags.items(),
        )
        if signature not in self.executables:
            self.executables[signature] = self.compile(profile, tensors, arrays, flags)
        results: Mapping[str, Any] = self.executables[signature](*tensors, **arrays)
        self.runs += 1
        return results

    def compile(
        self,
        profile: str,
        tensors: Sequence[Any],
        arrays: Mapping[str, Any],
        flags: Mapping[str, Any],
    ) -> Any:
        """XLA's executable. Raises ModeError where jit is disabled."""
        import jax

        if jax.config.jax_disable_jit:
            raise ModeError("jax_disable_jit is on: nothing would be compiled")
        function = jax.jit(self.functions[profile], static_argnames=tuple(flags))
        executable = function.lower(*tensors, **arrays, **flags).compile()
        header = executable.as_text().partition(",")[0]
        if not header.startswith("HloModule"):
            raise ModeError("XLA returned no program")
        self.programs.add(header)
        return executable

    def evidence(self) -> dict[str, Any]:
        return super().evidence() | {
            "runs": self.runs,
            "executables": len(self.executables),
            "programs": sorted(self.programs),
        }


def count(jaxpr: Any) -> Budget:
    """Contractions and transpositions of a jaxpr.

    A product that contracts the last axis of its right factor, or an earlier axis of its left
    one, transposes that factor.
    """
    contractions, transpositions = [], 0
    for equation in equations(jaxpr):
        name = equation.primitive.name
        transpositions += name == "transpose"
        if name == "dot_general":
            (of_left, of_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
            left, right = (variable.aval.shape for variable in equation.invars)
            transpositions += of_left != (len(left) - 1,)
            transpositions += of_right != (max(len(right) - 2, 0),)
            contractions.append(
                Contraction(
                    name,
                    ordered(left, (*batch_left, *rest(left, batch_left, of_left), *of_left)),
                    ordered(right, (*batch_right, *of_right, *rest(right, batch_right, of_right))),
                    equation.outvars[0].aval.shape,
                )
            )
    return Budget(tuple(contractions), transpositions)


def rest(shape: tuple[int, ...], *used: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(len(shape)) if not any(axis in axes for axes in used))


def ordered(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in axes)


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
