"""The ONNX operator `Attention` as a model of one node, for whatever runs ONNX models.

Its 4-D inputs are [B, h, L, d]: there is at most one batch axis. The model also asks for the
fourth output in mode 3, the weights after the softmax.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from qkvac.backends.adapter import Array

MODES: Final = {"opset23": 23, "opset24": 24}
"""Version of ONNX's operator set by the mode that is named after it."""

INPUTS: Final = ("Q", "K", "V", "mask")
WEIGHTS: Final = 3
"""Mode of the fourth output in which it holds A."""


def with_batch(array: Array) -> Array:
    """The array with the batch axis that the operator wants."""
    if array.ndim > 4:
        raise NotImplementedError("more than one batch axis")
    return array[np.newaxis] if array.ndim == 3 else array


def check_mask(mask: Array | None, keys: int, opset: int) -> None:
    """Raise NotImplementedError for a mask that the operator set reads in another way.

    Since opset 24 a mask that is shorter than the keys is filled up with −∞, and one column is
    such a mask, not one that broadcasts.
    """
    if mask is not None and opset >= 24 and mask.shape[-1] < keys:
        raise NotImplementedError("opset 24 fills up a mask of one column")


def check_scale(scale: float | None, dtype: str) -> None:
    """Raise NotImplementedError for a scale that the operator's attribute cannot hold.

    The operator is defined by √scale, of Q and of K.
    """
    if scale is not None and scale < 0:
        raise NotImplementedError("the operator takes the root of the scale")
    if dtype == "float64" and scale is not None and float(np.float32(scale)) != scale:
        raise NotImplementedError("the attribute scale is a float32")


def model(
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    opset: int,
    *,
    causal: bool,
    scale: float | None,
) -> Any:
    """The model for inputs Q, K, V and perhaps mask of these shapes and dtypes."""
    from onnx import TensorProto, helper

    types = {
        "float64": TensorProto.DOUBLE,
        "float32": TensorProto.FLOAT,
        "bfloat16": TensorProto.BFLOAT16,
        "float16": TensorProto.FLOAT16,
        "bool": TensorProto.BOOL,
    }
    names = INPUTS[: len(shapes)]
    attributes: dict[str, Any] = {} if scale is None else {"scale": scale}
    node = helper.make_node(
        "Attention",
        names,
        ["C", "", "", "A"],
        is_causal=int(causal),
        qk_matmul_output_mode=WEIGHTS,
        **attributes,
    )
    inputs = [
        helper.make_tensor_value_info(name, types[dtype], shape)
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
    ]
    outputs = [helper.make_tensor_value_info(name, types[dtypes[0]], None) for name in "CA"]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = min(made.ir_version, IR_VERSION)
    return made


IR_VERSION: Final = 11
"""Of the file format: the one that came with opset 23, which every runtime with it can read."""
