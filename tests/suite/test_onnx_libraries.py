"""ONNX `Attention` and OpenVINO: what the models say, what is refused, and that the named ran."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError
from qkvac.targets.packages import adapter as module
from qkvac.tests.suite.laboratory import Array, inside, refusal

LIBRARIES = {
    "onnx-reference": ("onnx", ("opset23", "opset24")),
    "onnxruntime": ("onnxruntime", ("opset23", "opset24")),
    "openvino": ("openvino", ("accuracy",)),
}
MODES = pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, (_, modes) in LIBRARIES.items() for mode in modes]
)


def _needs(name: str) -> None:
    for package in {LIBRARIES[name][0], "openvino" if name == "openvino" else "onnx"}:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@cache
def _opened(name: str, mode: str) -> Any:
    return module(name).open(mode, "cpu")


def _call(name: str, mode: str, arrays: list[Array], keywords: dict[str, Any]) -> dict[str, Array]:
    outputs = _opened(name, mode).scaled_dot_product_attention(*arrays, **keywords)
    return {key: np.array(value) for key, value in outputs.items()}


def _refusal(name: str, mode: str, arrays: list[Array], keywords: dict[str, Any]) -> str:
    def call() -> None:
        _call(name, mode, arrays, keywords)

    return refusal(NotImplementedError, call)


def drawn(*batch: int, dtype: type = np.float32) -> list[Array]:
    """Q [.., 4, 3, 5], K [.., 4, 6, 5], V [.., 4, 6, 2]."""
    draw = np.random.default_rng(0).standard_normal
    return [draw((*batch, 4, *last)).astype(dtype) for last in ((3, 5), (6, 5), (6, 2))]


def expected(arrays: list[Array], keep: Array | None = None, scale: float | None = None) -> Array:
    """C in float64."""
    Q, K, V = (array.astype(float) for array in arrays)
    logits = Q @ K.swapaxes(-1, -2) * (Q.shape[-1] ** -0.5 if scale is None else scale)
    if keep is not None:
        logits = np.where(keep, logits, -np.inf)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    C: Array = powers / powers.sum(axis=-1, keepdims=True) @ V
    return C


@MODES
def test_masks_scales_and_axes(name: str, mode: str) -> None:
    _needs(name)
    keep = np.random.default_rng(1).random((3, 6)) < 0.6
    keep[:, 0] = True
    triangle = np.tri(3, 6, dtype=bool)
    for arrays in (drawn(), drawn(2)):
        for keywords, kept, scale in (
            ({}, None, None),
            ({"scale": 0.5}, None, 0.5),
            ({"mask": keep}, keep, None),
            ({"causal": True}, triangle, None),
        ):
            found = inside(name, _call, name, mode, arrays, keywords)
            np.testing.assert_allclose(found["C"], expected(arrays, kept, scale), atol=1e-5)
            assert found["C"].dtype == np.float32
            if "A" in found:
                np.testing.assert_allclose(found["A"].sum(axis=-1), 1, atol=1e-5)


@MODES
def test_what_cannot_be_said_is_refused(name: str, mode: str) -> None:
    _needs(name)
    if name == "openvino":
        grouped = [drawn()[0], *(array[:2] for array in drawn()[1:])]
        assert "head of keys" in inside(name, _refusal, name, mode, grouped, {})
        masked = {"causal": True, "mask": np.ones((3, 6), bool)}
        assert "causal replaces" in inside(name, _refusal, name, mode, drawn(), masked)
        return
    assert "batch axis" in inside(name, _refusal, name, mode, drawn(2, 2), {})
    assert "root" in inside(name, _refusal, name, mode, drawn(), {"scale": -1.0})
    wide = drawn(dtype=np.float64)
    assert "float32" in inside(name, _refusal, name, mode, wide, {"scale": 0.3})
    column = {"mask": np.ones((3, 1), bool)}
    if mode == "opset24":
        assert "one column" in inside(name, _refusal, name, mode, drawn(), column)


def _evidence(name: str, mode: str) -> Any:
    return _opened(name, mode).evidence()


@MODES
def test_the_evidence_names_what_ran(name: str, mode: str) -> None:
    _needs(name)
    inside(name, _call, name, mode, drawn(), {})
    found = inside(name, _evidence, name, mode)
    assert found["calls"] > 0
    if name == "openvino":
        precisions = {operation.rpartition(" ")[2] for operation in found["operations"]}
        assert "f32" in precisions
        assert not precisions & {"bf16", "f16"}
    else:
        assert found["opset"] == int(mode.removeprefix("opset"))


def _in_bfloat16() -> str:
    """Compile as OpenVINO does by default, behind the adapter's back."""
    openvino = _opened("openvino", "accuracy")

    class Core:
        def compile_model(self, model: Any, device: str, hints: dict[str, Any]) -> Any:
            del hints["EXECUTION_MODE_HINT"]
            return openvino.core.compile_model(model, device, hints)

    fresh = module("openvino").open("accuracy", "cpu")
    fresh.core = Core()
    return refusal(ModeError, fresh.scaled_dot_product_attention, *drawn())


def test_openvino_without_its_hint_is_noticed() -> None:
    _needs("openvino")
    assert "hint" in inside("openvino", _in_bfloat16)


def _other_opset() -> str:
    from qkvac.backends import onnx_attention

    onnx_reference: Any = module("onnx-reference")

    original = onnx_reference.model

    def older(shapes: Any, dtypes: Any, opset: int, **attributes: Any) -> Any:
        return onnx_attention.model(shapes, dtypes, 23, **attributes)

    onnx_reference.model = older
    try:
        arrays = [array[:, :2] for array in drawn()]
        return refusal(
            ModeError,
            module("onnx-reference").open("opset24").scaled_dot_product_attention,
            *arrays,
        )
    finally:
        onnx_reference.model = original


def test_another_operator_set_is_noticed() -> None:
    _needs("onnx-reference")
    assert "operator sets" in inside("onnx-reference", _other_opset)
