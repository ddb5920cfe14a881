"""OpenVINO's operation `ScaledDotProductAttention` on its CPU plugin.

A model is compiled for each signature, with the hint to keep the model's precision: without it,
a CPU that has bfloat16 instructions computes float32 models in bfloat16. The plugin has no
float64 inside. Causal replaces a mask, and query heads share keys only where there is one head of
keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from qkvac.backends.adapter import Array, Library, ModeError, choose, installed, require, threads

QKVAC: Final[dict[str, Any]] = {
    "name": "openvino",
    "requires": "openvino",
    "modes": ("accuracy",),
    "evidence": {"accuracy": {"models": "some", "operations": "some"}},
    "dtypes": ("float32", "bfloat16", "float16"),
    "devices": ("cpu",),
    "profiles": ("scaled_dot_product_attention",),
    "supports": (
        *("cross_length", "empty", "grouped_heads", "layouts"),
        *("masks", "scale", "value_width"),
    ),
    "deterministic": True,
    "arithmetic": {"softmax": "fused", "flushes": True},
    "conventions": {"empty_row": "NaN"},
}


def open(mode: str = "accuracy", device: str = "cpu") -> OpenVino:
    """The adapter. Raises ModeError and DeviceError."""
    require(mode, QKVAC["modes"])
    choose(device, devices())
    return OpenVino(mode, device)


def unavailable(mode: str) -> str | None:
    """Why a mode cannot run here, or None."""
    return None


def devices() -> tuple[str, ...]:
    """Devices that are tested: other plugins have other kernels."""
    return ("cpu",)


def versions() -> dict[str, str]:
    """Versions of what computes the results."""
    return installed("openvino", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """What the plugin says that it can compute in."""
    import openvino

    found = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {"capabilities": list(found), "threads": threads()}


class OpenVino(Library):
    """A compiled model for each signature."""

    def __init__(self, mode: str, device: str) -> None:
        super().__init__(mode, device, {"scaled_dot_product_attention": self.attend})
        import openvino

        self.core = openvino.Core()
        self.compiled: dict[Any, Any] = {}
        self.operations: set[str] = set()

    def attend(
        self,
        Q: Any,
        K: Any,
        V: Any,
        *,
        causal: bool = False,
        mask: Any = None,
        scale: float | None = None,
    ) -> dict[str, Any]:
        """C of Q[…, h, L, d], K[…, g, S, d] and V[…, g, S, v]."""
        if causal and mask is not None:
            raise NotImplementedError("causal replaces the mask")
        heads, groups = (tuple(x.shape)[-3] for x in (Q, K))
        if groups not in (1, heads):
            raise NotImplementedError("more than one head of keys for several of queries")
        if mask is not None and len(mask.shape) < 2:
            raise NotImplementedError("a mask has at least two axes")
        given = [Q, K, V, *([] if mask is None else [mask])]
        signature = (*((str(x.element_type), tuple(x.shape)) for x in given), causal, scale)
        if signature not in self.compiled:
            self.compiled[signature] = self.compile(given, causal, scale)
        request = self.compiled[signature].create_infer_request()
        for index, tensor in enumerate(given):
            request.set_input_tensor(index, tensor)
        request.infer()
        return {"C": request.get_output_tensor(0)}

    def compile(self, given: Sequence[Any], causal: bool, scale: float | None) -> Any:
        """The compiled model. Raises ModeError where it computes in another precision."""
        import openvino
        from openvino import opset13

        inputs = [opset13.parameter(list(x.shape), x.element_type) for x in given]
        optional = {"attention_mask": inputs[3]} if len(inputs) > 3 else {}
        if scale is not None:
            dtype = inputs[0].get_element_type()
            # The mask stands before the scale; the scalar 0 is none.
            zero = opset13.convert(opset13.constant(np.float32(0)), dtype.get_type_name())
            factor = opset13.convert(opset13.constant(np.float32(scale)), dtype.get_type_name())
            optional = {"attention_mask": zero, **optional, "scale": factor}
        node = opset13.scaled_dot_product_attention(*inputs[:3], causal=causal, **optional)
        compiled = self.core.compile_model(
            openvino.Model([node], inputs),
            "CPU",
            {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": threads()},
        )
        if str(compiled.get_property("EXECUTION_MODE_HINT")).rpartition(".")[2] != "ACCURACY":
            raise ModeError("OpenVINO did not take the hint to keep the model's precision")
        for operation in compiled.get_runtime_model().get_ops():
            info = operation.get_rt_info()
            if "layerType" in info:
                kind = info["layerType"].astype(str)
                self.operations.add(f"{kind} {info['runtimePrecision'].astype(str)}")
        return compiled

    def check_settings(self) -> None:
        return None

    def run(
        self, profile: str, tensors: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return self.functions[profile](*tensors, **keywords)

    def to_framework(self, array: Array) -> Any:
        import openvino

        if array.dtype != ml_dtypes.bfloat16:
            return openvino.Tensor(np.ascontiguousarray(array))
        tensor = openvino.Tensor(openvino.Type.bf16, list(array.shape))
        if array.size:
            tensor.data.view(np.uint16)[...] = array.view(np.uint16)
        return tensor

    def to_numpy(self, tensor: Any) -> Array:
        array = np.array(tensor.data)
        if self.dtype_of(tensor) == "bfloat16":
            return array.view(ml_dtypes.bfloat16)
        return array

    def dtype_of(self, tensor: Any) -> str:
        name = str(tensor.element_type.get_type_name())
        return {"boolean": "bool", "bf16": "bfloat16"}.get(name, name.replace("f", "float"))

    def device_of(self, tensor: Any) -> str:
        return "cpu"

    def evidence(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "models": len(self.compiled),
            "operations": sorted(self.operations),
        }
