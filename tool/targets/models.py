"""ONNX models as ports: a graph whose inputs and outputs bear the names of the spec.

onnxruntime runs it where it is installed, else the reference evaluator of onnx. A model is one
function, of one dtype, and may be made for some shapes only; whatever it cannot take is
`unsupported`, so that nobody has to declare it.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

from qkvac.spec.registry import usual_profile
from qkvac.targets.arrays import first_line
from qkvac.targets.ports import Function, Port, PortError, known_functions

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Sequence[Any]]

DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {"double": "float64", "float": "float32", "bfloat16": "bfloat16", "float16": "float16"}
)
"""Dtypes by the name that ONNX gives to the type of a tensor's elements."""

PROVIDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cpu": "CPUExecutionProvider",
        "cuda": "CUDAExecutionProvider",
        "rocm": "ROCMExecutionProvider",
        "dml": "DmlExecutionProvider",
    }
)
"""onnxruntime's name for what runs a model on a kind of device."""


@dataclass(frozen=True)
class Input:
    """An input of a model: the type of its elements, and its sizes, numbers or symbols."""

    name: str
    type: str
    shape: tuple[object, ...] | None
    """None where the model leaves the rank open."""


@dataclass(frozen=True)
class Model:
    """A loaded model, whatever runs it."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    run: Run
    """From arrays by name to the outputs in order."""
    versions: Mapping[str, str]


def load(text: str) -> Port:
    """Loads a model; raises PortError."""
    path = Path(text)
    if not path.is_file():
        raise PortError(f"{text}: no such file" if not path.exists() else f"{text} is no file")
    model = _open(path)
    names = {given.name for given in model.inputs}
    functions = {
        function.name: partial(_call, model, function)
        for function in known_functions().values()
        if names <= {*function.positional, *function.keywords}
        and names.issuperset(function.positional)
        and _returned(model, function)
    }
    if not functions:
        raise PortError(f"{text}: {_mismatch(model)}")
    types = {given.type for given in model.inputs} & DTYPES.keys()
    if len(types) != 1:
        found = ", ".join(f"{given.name} {given.type}" for given in model.inputs)
        raise PortError(f"{text}: the inputs are not of one dtype that is tested: {found}")
    # Several profiles take the same inputs, and a model does not say which of them it is.
    profile = usual_profile() if usual_profile() in functions else next(iter(functions))
    known = {name for f in functions for name in _returned(model, known_functions()[f]).values()}
    notes = [f"output {name!r} is no quantity" for name in model.outputs if name not in known]
    if profile != usual_profile():
        notes.append(
            f"its inputs are {', '.join(given.name for given in model.inputs)}: it is judged as "
            f"{profile}; weights that a model holds have to be inputs of it"
        )
    fixed = [given for given in model.inputs if any(isinstance(n, int) for n in given.shape or ())]
    if fixed:
        shapes = ", ".join(f"{given.name}{_sizes(given)}" for given in fixed)
        notes.append(f"it takes {shapes} alone; export it with dynamic axes to have all cases run")
    declaration = {"profiles": [profile], "dtypes": [DTYPES[types.pop()]]}
    return Port(functions, declaration, tuple(notes), model.versions)


def _sizes(given: Input) -> str:
    """The shape of an input: `[6, d]`, a ? for what has no name."""
    sizes = (str(size) if size not in (None, "") else "?" for size in given.shape or ())
    return f"[{', '.join(sizes)}]"


def _returned(model: Model, function: Function) -> dict[str, str]:
    """Quantity → the output that holds it."""
    names = {name: name for name in (*function.returns, *function.optional)}
    if "Ω" in names:
        names["scores"] = "Ω"
    return {names[output]: output for output in model.outputs if output in names}


def _mismatch(model: Model) -> str:
    wanted = known_functions()["attention"]
    given = [i.name for i in model.inputs]
    if sorted(given) != sorted(wanted.positional):
        return (
            f"the inputs are matched by name and are {', '.join(given) or 'none'}; "
            f"attention takes {', '.join(wanted.positional)}, all of them as inputs"
        )
    return (
        f"the outputs are matched by name and are {', '.join(model.outputs)}; "
        f"attention returns {', '.join(wanted.returns)}, and scores for Ω"
    )


def _call(model: Model, function: Function, *positional: Array | None, **keywords: Any) -> Any:
    """Calls a model as the function of a port is called."""
    given = {**dict(zip(function.positional, positional, strict=True)), **keywords}
    sizes: dict[object, int] = {}
    feed = {}
    for input in model.inputs:
        value = given.pop(input.name, None)
        if value is None:
            raise NotImplementedError(f"no {input.name}")
        feed[input.name] = value = np.asarray(value)
        if input.type in DTYPES and value.dtype.name != DTYPES[input.type]:
            raise NotImplementedError(value.dtype.name)
        if not _fits(input.shape, value.shape, sizes):
            raise NotImplementedError("shape")
    left = [name for name, value in given.items() if value is not None and value is not False]
    if left:
        raise NotImplementedError(left[0])
    outputs = dict(zip(model.outputs, model.run(feed), strict=True))
    return {quantity: outputs[name] for quantity, name in _returned(model, function).items()}


def _fits(
    declared: tuple[object, ...] | None, shape: tuple[int, ...], sizes: dict[object, int]
) -> bool:
    """Whether an input of a shape may be put in; `sizes` binds the model's symbols."""
    if declared is None:
        return True
    if len(declared) != len(shape):
        return False
    return all(
        size == wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size) == size
        for wanted, size in zip(declared, shape, strict=True)
        if wanted not in (None, "")
    )


# --- what runs a model -----------------------------------------------------------------------


def _open(path: Path) -> Model:
    for runner in (_runtime, _reference):
        try:
            return runner(path)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("onnx", "onnxruntime"):
                raise
        except PortError:
            raise
        except Exception as error:
            raise PortError(f"{path} cannot be loaded: {first_line(error)}") from error
    raise PortError(f"{path} needs onnxruntime or onnx; pip install 'qkvac[onnx]' installs both")


def _runtime(path: Path) -> Model:
    """A model run by onnxruntime, on the device and with the threads of this process."""
    import onnxruntime

    kind, _, number = os.environ.get("QKVAC_DEVICE", "cpu").partition(":")
    provider = PROVIDERS.get(kind, kind)
    if provider not in onnxruntime.get_available_providers():
        raise PortError(f"{path}: this onnxruntime runs nothing on {kind} (no {provider})")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = int(os.environ.get("QKVAC_THREADS", "1"))
    options.inter_op_num_threads = 1
    settings = {"device_id": number} if number else {}
    session = onnxruntime.InferenceSession(path, options, providers=[(provider, settings)])
    if session.get_providers()[0] != provider:
        raise PortError(f"{path}: onnxruntime left {kind} for the CPU")
    inputs = tuple(
        Input(
            given.name, given.type.removeprefix("tensor(").rstrip(")"), tuple(given.shape) or None
        )
        for given in session.get_inputs()
    )
    outputs = tuple(output.name for output in session.get_outputs())

    def run(feed: Mapping[str, Array]) -> Sequence[Any]:
        if not any(array.dtype == ml_dtypes.bfloat16 for array in feed.values()):
            return list(session.run(None, dict(feed)))
        values = {name: _value(array) for name, array in feed.items()}
        return [_array(value) for value in session.run_with_ort_values(None, values)]

    return Model(inputs, outputs, run, {"onnxruntime": onnxruntime.__version__})


BFLOAT16: Final = 16
"""ONNX's number for the type of which onnxruntime makes no NumPy arrays."""


def _value(array: Array) -> Any:
    """An array as onnxruntime's own value, the only way in for bfloat16."""
    from onnxruntime import OrtValue

    if array.dtype != ml_dtypes.bfloat16:
        return OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(np.uint16)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, BFLOAT16)


def _array(value: Any) -> Any:
    """The array of onnxruntime's own value, which lies in the CPU's memory."""
    if value.element_type() != BFLOAT16:
        return value.numpy()
    shape = value.shape()
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.array(bits, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)


def _reference(path: Path) -> Model:
    """A model run by onnx's reference evaluator: NumPy, operator by operator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    evaluator = ReferenceEvaluator(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    types = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    inputs = tuple(
        Input(given.name, types[given.type.tensor_type.elem_type], _shape(given.type.tensor_type))
        for given in model.graph.input
        if given.name not in constants
    )
    outputs = tuple(output.name for output in model.graph.output)

    def run(feed: Mapping[str, Array]) -> Sequence[Any]:
        return list(evaluator.run(None, dict(feed)))

    return Model(inputs, outputs, run, {"onnx": onnx.__version__})


def _shape(tensor: Any) -> tuple[object, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(
        size.dim_value if size.HasField("dim_value") else size.dim_param
        for size in tensor.shape.dim
    )
