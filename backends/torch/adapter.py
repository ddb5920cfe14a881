"""Self-attention in PyTorch: eager, and compiled by Inductor.

Compiled code is proved by counting: what Inductor compiled is wrapped, and a call must run it once.
Dynamo otherwise runs plain Python without a word, after 8 recompilations for instance.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from qkvac.backends.adapter import (
    Adapter,
    Array,
    Budget,
    Contraction,
    Functions,
    ModeError,
    UnavailableError,
    choose,
    installed,
    require,
    threads,
)
from qkvac.backends.torch.gradients import (
    STEPS,
    SUFFIX,
    gradients,
    inputs_of,
    trained,
    with_gradients,
)
from qkvac.backends.torch.profiles import FUNCTIONS as FORWARD

ACCELERATORS = ("cuda", "mps", "xpu")

FUNCTIONS: Final[Functions] = with_gradients(FORWARD, STEPS)

PROOF: Final = {"runs": "each call", "graphs": "some", "graph_breaks": "none"}
"""What shows that a call ran compiled."""

QKVAC: Final[dict[str, Any]] = {
    "name": "torch",
    "requires": "torch",
    "modes": ("eager", "compile", "tf32"),
    "shapes": {"compile": "few"},
    "evidence": {"compile": PROOF},
    "mode_devices": {"tf32": ("cuda",)},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", *ACCELERATORS),
    "profiles": tuple(FUNCTIONS),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {
        "softmax": "shifted, divided",
        "flushes": False,
        # oneDNN multiplies bfloat16 with instructions that treat subnormals as zero.
        "bfloat16": {"flushes": True},
        "float32": {"tf32": {"operands": "tfloat32"}},
        # Accelerators are not measured: no bits are promised of their softmax.
        **{kind: {"softmax": "fused", "flushes": True} for kind in ACCELERATORS},
    },
}

RECOMPILE_LIMIT = 1 << 20


def open(mode: str = "eager", device: str = "cpu") -> Torch:
    """The adapter. Raises ModeError, DeviceError and UnavailableError."""
    require(mode, QKVAC["modes"])
    if reason := unavailable(mode):
        raise UnavailableError(reason)
    choose(device, devices())
    return (Compiled if mode == "compile" else Torch)(mode, device)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None; asked without importing PyTorch."""
    if mode != "compile":
        return None
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX") or usual
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler, and there is no {compiler}"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "torch.compile needs Python's C headers, and there is no Python.h"
    return None


def devices() -> tuple[str, ...]:
    """Devices that PyTorch finds: cpu, cuda:0, mps:0, ..."""
    import torch

    found = ["cpu"]
    for kind in ACCELERATORS:
        count = getattr(getattr(torch, kind, None), "device_count", None)
        found += [f"{kind}:{index}" for index in range(count() if count else 0)]
    return tuple(found)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("torch", "triton", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """CPU code path, threads and precision settings."""
    import torch

    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda": torch.version.cuda,
    }


class Torch(Adapter):
    """PyTorch as its user calls it, operation by operation."""

    def __init__(self, mode: str, device: str, functions: Functions = FUNCTIONS) -> None:
        import torch

        super().__init__(mode, device, functions)
        torch.set_num_threads(threads())
        self.precision = "high" if mode == "tf32" else "highest"
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        torch.backends.cudnn.allow_tf32 = mode == "tf32"
        # Parts of a long sum would be stored in the dtype of the factors.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.set_flush_denormal(False)
        self.dtypes = {
            "float64": torch.float64,
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }

    def check_settings(self) -> None:
        import torch

        found = torch.get_float32_matmul_precision()
        if found != self.precision:
            raise ModeError(f"float32 products may use TensorFloat-32 or bfloat16: {found}")

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return self.functions[profile](*tensors, **keywords)

    def to_framework(self, array: Array) -> Any:
        """Strides are kept, zero ones too; PyTorch has no negative strides, so those are copied."""
        import torch

        if self.device.startswith("mps") and array.dtype == np.float64:
            raise NotImplementedError("MPS has no float64")
        steps = [stride % array.itemsize for stride in array.strides]
        if min(array.strides, default=0) < 0 or any(steps) or not array.flags.aligned:
            array = array.copy()
        brain = array.dtype == ml_dtypes.bfloat16
        with warnings.catch_warnings():
            # PyTorch warns of read-only memory; nothing here writes to its inputs.
            warnings.filterwarnings("ignore", message=".*not writable")
            tensor = torch.from_numpy(array.view(np.int16) if brain else array)
        return (tensor.view(torch.bfloat16) if brain else tensor).to(self.device)

    def to_numpy(self, tensor: Any) -> Array:
        import torch

        tensor = tensor.detach().cpu()
        brain = tensor.dtype == torch.bfloat16
        array: Array = (tensor.view(torch.int16) if brain else tensor).numpy()
        return array.view(ml_dtypes.bfloat16) if brain else array

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def device_of(self, tensor: Any) -> str:
        return str(tensor.device)

    def undo_flushing(self) -> None:
        import torch

        torch.set_flush_denormal(False)

    def evidence(self) -> dict[str, Any]:
        import torch

        return {
            "calls": self.calls,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "flushing_undone": self.flushing_undone,
        }

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        tensors, named = self.given(arrays, keywords)
        return record(partial(self.functions[profile], **named), *tensors)


class Compiled(Torch):
    """PyTorch compiled by Dynamo and Inductor, one graph for each signature."""

    def __init__(self, mode: str, device: str, functions: Functions = FUNCTIONS) -> None:
        import torch
        import torch._dynamo

        super().__init__(mode, device, functions)
        separate_cache()
        self.graphs = 0
        self.runs = 0
        self.backward_runs = 0
        self.latest: tuple[Any, ...] = ()
        limits = ("recompile_limit", "accumulated_recompile_limit")
        for name in (*limits, "cache_size_limit", "accumulated_cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, RECOMPILE_LIMIT)
        self.compiled = {profile: self.to_run(profile) for profile in functions}
        # The first compilation prepares C++ headers for all: long enough to time a case out.
        self.to_compile(torch.add)(*2 * [torch.ones(2, 2, device=device)])
        self.graphs = self.runs = 0

    def to_run(self, profile: str) -> Callable[..., Any]:
        """The compiled function of a profile; of gradients, both directions are compiled."""
        if not profile.endswith(SUFFIX):
            return self.to_compile(self.functions[profile])
        forward = self.functions[profile.removesuffix(SUFFIX)]
        return gradients(self.to_compile(trained(forward)), inputs_of(forward), self.backward)

    def to_compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which is compiled anew for each signature that it is called with."""
        import torch

        compiled: Callable[..., Any] = torch.compile(
            function, backend=self.compile, fullgraph=True, dynamic=False
        )
        return compiled

    def compile(self, graph: Any, examples: Any) -> Any:
        """Compile a captured graph with Inductor, and count its runs."""
        from torch._inductor.compile_fx import compile_fx

        kernel = compile_fx(graph, examples)
        self.graphs += 1

        def counted(*tensors: Any) -> Any:
            self.runs += 1
            self.latest = (graph, *tensors)
            return kernel(*tensors)

        return counted

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        before = self.runs, self.backward_runs
        results: Mapping[str, Any] = self.compiled[profile](*tensors, **keywords)
        expected = before[0] + 1, before[1] + profile.endswith(SUFFIX)
        if (self.runs, self.backward_runs) != expected:
            raise ModeError("Dynamo gave up: the call ran without compiled code")
        return results

    def backward(self, last: Any, sources: Sequence[Any], cotangent: Any) -> Sequence[Any]:
        """What `torch.autograd.grad` does, by the compiled backward graph and nothing else.

        AOTAutograd's node stands for the whole of a compiled function: it calls what Inductor made
        of the backward graph, and is preceded by inputs alone.
        """
        import torch

        node = last.grad_fn
        made: Any = getattr(type(node), "_forward_cls", None)
        before = {type(previous).__name__ for previous, _ in node.next_functions if previous}
        if not hasattr(made, "compiled_bw") or before != {"AccumulateGrad"}:
            raise ModeError(f"the backward pass is not compiled: it starts with {node.name()}")

        def count(*_: Any) -> None:
            self.backward_runs += 1

        node.register_hook(count)
        found: Sequence[Any] = torch.autograd.grad(last, sources, cotangent)
        if made.compiled_bw is None:
            raise ModeError("the backward pass ran without compiled code")
        return found

    def evidence(self) -> dict[str, Any]:
        from torch._dynamo.utils import counters

        breaks = sum(counters["graph_break"].values())
        return super().evidence() | {
            "graphs": self.graphs,
            "runs": self.runs,
            "backward_runs": self.backward_runs,
            "graph_breaks": breaks,
        }

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        """The operations of the graph that Dynamo captured, which Inductor then compiles."""
        if profile.endswith(SUFFIX):
            raise NotImplementedError("operations of a compiled backward pass are not recorded")
        self.run(profile, *self.given(arrays, keywords))
        return record(*self.latest)


def separate_cache() -> str:
    """Give Inductor a cache of its own for each vector width, and return its folder.

    Its cache does not know which width the code was generated for: code for AVX-512 that is built
    again under ATEN_CPU_CAPABILITY=avx2 leaves half of each vector unwritten.
    """
    import torch
    from torch._inductor.runtime.runtime_utils import cache_dir

    capability = torch.backends.cpu.get_cpu_capability()
    folder = str(cache_dir())
    if not folder.endswith(f"-{capability}"):
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}-{capability}"
    return folder


def record(function: Any, *tensors: Any) -> Budget:
    """What PyTorch dispatches while `function` runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    contractions: list[Contraction] = []
    transpositions = 0

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal transpositions
            result = operation(*args, **(kwargs or {}))
            name = operation.overloadpacket.__name__
            if name in PRODUCTS:
                left, right = [tuple(x.shape) for x in args if hasattr(x, "shape")][-2:]
                contractions.append(Contraction(name, left, right, tuple(result.shape)))
            transpositions += name in TRANSPOSITIONS
            return result

    with Recorder():
        function(*tensors)
    return Budget(tuple(contractions), transpositions)


PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot")
TRANSPOSITIONS = ("t", "transpose", "permute", "numpy_T", "mT", "adjoint")
