"""Self-attention in TensorFlow: eager, as a graph (`tf.function`), and compiled by XLA.

Tensors have no strides here: layouts end with the conversion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

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
from qkvac.backends.processor import architecture, cpu_features
from qkvac.backends.tensorflow.gradients import with_gradients
from qkvac.backends.tensorflow.profiles import FUNCTIONS as FORWARD

FUNCTIONS: Final[Functions] = with_gradients(FORWARD)


def truncates() -> bool:
    """Whether products of bfloat16 are cut off here.

    oneDNN has kernels that round where the processor has AVX-512. Elsewhere, and without oneDNN,
    TensorFlow multiplies in float32 and drops the lower half of every result.
    """
    held_back = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false")
    return architecture() == "X86_64" and (held_back or "AVX512F" not in cpu_features())


ARITHMETIC: Final[dict[str, Any]] = {
    "softmax": "shifted, divided",
    "flushes": True,
    "bfloat16": {"cpu": {"truncates": truncates()}},
    # The normal range of float32, in which float16 is computed, holds its subnormals.
    "float16": {"flushes": False},
    # Accelerators are not measured: no bits are promised of their softmax.
    **{kind: {"softmax": "fused", "flushes": True} for kind in ("cuda", "rocm", "tpu")},
}

QKVAC: Final[dict[str, Any]] = {
    "name": "tensorflow",
    "requires": "tensorflow",
    "modes": ("eager", "function", "xla", "tf32"),
    "shapes": {"function": "few", "xla": "few"},
    "evidence": {
        "function": {"graphs": "some", "untraced": "none"},
        "xla": {"graphs": "some", "untraced": "none", "programs": "some"},
    },
    "mode_devices": {"tf32": ("cuda",)},
    "dtypes": ("float64", "float32", "bfloat16", "float16"),
    "devices": ("cpu", "cuda", "rocm", "tpu"),
    "profiles": tuple(FUNCTIONS),
    "supports": "all",
    "deterministic": True,
    "arithmetic": {
        **ARITHMETIC,
        "bfloat16": {**ARITHMETIC["bfloat16"], "xla": {"cpu": {"truncates": False}}},
        "float32": {"tf32": {"operands": "tfloat32"}},
    },
}


def open(mode: str = "eager", device: str = "cpu") -> TensorFlow:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return (TensorFlow if mode in ("eager", "tf32") else Traced)(mode, device, FUNCTIONS)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that TensorFlow finds: cpu, cpu:1, cuda:0, ..."""
    return tuple(table())


def table() -> dict[str, str]:
    """Device name → TensorFlow's name. The first call starts TensorFlow, with our settings."""
    prepare()
    import tensorflow as tf

    found = [device.name for device in tf.config.list_logical_devices()]
    return {name_of(name): name for name in found if kind_of(name) in ("cpu", "gpu", "tpu")}


def kind_of(device: str) -> str:
    """`/job:…/device:CPU:1` → cpu."""
    return device.lower().split("device:")[-1].partition(":")[0]


def name_of(device: str) -> str:
    """`/job:…/device:CPU:1` → cpu:1; the first CPU is cpu, a GPU is named after its platform."""
    import tensorflow as tf

    kind, index = kind_of(device), device.rpartition(":")[-1]
    if kind == "gpu":
        kind = "cuda" if tf.test.is_built_with_cuda() else "rocm"
    return "cpu" if (kind, index) == ("cpu", "0") else f"{kind}:{index}"


def prepare() -> None:
    """Settings that TensorFlow reads when it starts: quiet, GPU memory as needed, threads."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != threads():
        threading.set_intra_op_parallelism_threads(threads())
    if threading.get_inter_op_parallelism_threads() != threads():
        threading.set_inter_op_parallelism_threads(threads())


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("tensorflow", "tensorflow-cpu", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """Threads, libraries and precision settings."""
    import tensorflow as tf

    return {
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "memory_growth": os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"),
        "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
    }


class TensorFlow(Adapter):
    """TensorFlow as its user calls it, operation by operation."""

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        super().__init__(mode, device, functions)
        self.placement = table()[device]
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(mode == "tf32")

    def check_settings(self) -> None:
        import tensorflow as tf

        if tf.config.experimental.tensor_float_32_execution_enabled() != (self.mode == "tf32"):
            raise ModeError("TensorFloat-32 for float32 products is not as the mode says")

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import tensorflow as tf

        if not tf.executing_eagerly():
            raise ModeError("TensorFlow does not execute eagerly here")
        with tf.device(self.placement):
            return self.functions[profile](*tensors, **keywords)

    def to_framework(self, array: Array) -> Any:
        import tensorflow as tf

        with tf.device(self.placement):
            return tf.convert_to_tensor(array)

    def to_numpy(self, tensor: Any) -> Array:
        array: Array = tensor.numpy()
        return array

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def device_of(self, tensor: Any) -> str:
        return name_of(tensor.device)

    def evidence(self) -> dict[str, Any]:
        import tensorflow as tf

        return {
            "calls": self.calls,
            "device": self.placement,
            "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        }

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        """The operations of the graph that the function of a profile traces to."""
        import tensorflow as tf

        tensors, named = self.given(arrays, keywords)
        traced = tf.function(partial(self.functions[profile], **named), autograph=False)
        return count(traced.get_concrete_function(*tensors).graph)


class Traced(TensorFlow):
    """Graphs, which XLA compiles in mode `xla`: one function for each profile and its flags.

    Python's part of a function counts its runs: they are traces, one for each combination of
    shapes and dtypes, and never calls.
    """

    def __init__(self, mode: str, device: str, functions: Functions) -> None:
        super().__init__(mode, device, functions)
        self.bodies = 0
        self.traced: dict[Any, Any] = {}
        self.compiled: set[Any] = set()

    def function(self, profile: str, flags: Mapping[str, Any]) -> Any:
        """The function of a profile with its flags, ready to be traced."""
        import tensorflow as tf

        def body(*tensors: Any, **arrays: Any) -> Mapping[str, Any]:
            self.bodies += 1
            results = self.functions[profile](*tensors, **arrays, **flags)
            return {name: x for name, x in results.items() if x is not None}

        return tf.function(body, autograph=False, jit_compile=True if self.mode == "xla" else None)

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        import tensorflow as tf

        arrays = {name: x for name, x in keywords.items() if tf.is_tensor(x)}
        flags = {name: x for name, x in keywords.items() if name not in arrays}
        key = (profile, *flags.items())
        if key not in self.traced:
            self.traced[key] = self.function(profile, flags)
        traced = self.traced[key]
        with tf.device(self.placement):
            results: Mapping[str, Any] = traced(*tensors, **arrays)
        graphs = self.graphs()
        if not traced.experimental_get_tracing_count() or graphs != self.bodies:
            raise ModeError(f"Python ran {self.bodies} times for {graphs} traced graphs")
        if self.mode == "xla":
            self.check_compiled(key, tensors, arrays)
        return results

    def graphs(self) -> int:
        """How often a function was traced."""
        return sum(traced.experimental_get_tracing_count() for traced in self.traced.values())

    def check_compiled(self, key: Any, tensors: Sequence[Any], arrays: Mapping[str, Any]) -> None:
        """Raise ModeError unless XLA must compile the graph, and has a program for the first."""
        traced = self.traced[key]
        graph = traced.get_concrete_function(*tensors, **arrays)
        if not graph.function_def.attr["_XlaMustCompile"].b:
            raise ModeError("the graph is not marked for XLA")
        if key not in self.compiled:
            program = traced.experimental_get_compiler_ir(*tensors, **arrays)("optimized_hlo")
            if not program.startswith("HloModule"):
                raise ModeError("XLA returned no program")
            self.compiled.add(key)

    def evidence(self) -> dict[str, Any]:
        graphs = self.graphs()
        return super().evidence() | {
            "graphs": graphs,
            "untraced": self.bodies - graphs,
            "programs": len(self.compiled),
        }


def count(graph: Any) -> Budget:
    """Contractions and transpositions of a graph; a transpose flag counts as one."""
    contractions, transpositions = [], 0
    for operation in graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"):
            shapes = [tuple(tensor.shape) for tensor in (*operation.inputs, *operation.outputs)]
            flags = [name for name in FLAGS if name in operation.node_def.attr]
            for shape, flag in zip((0, 1), flags, strict=False):
                if operation.get_attr(flag):
                    transpositions += 1
                    *batch, rows, columns = shapes[shape]
                    shapes[shape] = (*batch, columns, rows)
            left, right, out = shapes
            contractions.append(Contraction(operation.type, left, right, out))
        transpositions += operation.type in ("Transpose", "ConjugateTranspose")
    return Budget(tuple(contractions), transpositions)


FLAGS = ("transpose_a", "transpose_b", "adj_x", "adj_y")
