"""The adapters: what each mode must do, and that what it declares is true."""

from __future__ import annotations

import ast
import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkvac.backends
from qkvac.backends.adapter import DeviceError, ModeError, UnavailableError
from qkvac.backends.tensorflow import adapter as tensorflow
from qkvac.spec.attention import Arithmetic
from qkvac.spec.formats import FORMATS
from qkvac.spec.inputs.layouts import apply
from qkvac.spec.registry import forward_profiles
from qkvac.targets.declaration import parse
from qkvac.targets.packages import FRAMEWORKS
from qkvac.tests.suite.laboratory import (
    CHANNELS,
    DTYPES,
    TOKENS,
    WIDTH,
    Array,
    adapter,
    assert_bits,
    attention,
    cliff,
    inside,
    lookup,
    needs,
    normal,
    refusal,
    uniform,
    whole,
)

DECLARATIONS = {
    name: importlib.import_module(f"qkvac.backends.{name}.adapter").QKVAC for name in FRAMEWORKS
}
BUILT_ON = {"flax": "jax", "equinox": "jax"}
"""Libraries of a framework, whose modules may use what is written in that."""
MODES = [
    pytest.param(name, mode, id=f"{name}/{mode}")
    for name in FRAMEWORKS
    for mode in DECLARATIONS[name]["modes"]
    if "cpu" in DECLARATIONS[name].get("mode_devices", {}).get(mode, ("cpu",))
]
EVERY_MODE = pytest.mark.parametrize(("name", "mode"), MODES)


def test_an_adapter_module_imports_no_framework() -> None:
    code = "; ".join(
        [
            "import sys",
            *(
                f"import qkvac.backends.{name}.adapter as b; b.unavailable('eager')"
                for name in FRAMEWORKS
            ),
            "print({'torch', 'jax', 'jaxlib', 'tensorflow'} & sys.modules.keys())",
        ]
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_adapters_share_nothing_with_the_spec_or_each_other() -> None:
    home = Path(qkvac.backends.__path__[0])
    modules = [path for path in home.rglob("*.py") if path.parent.name != "libraries"]
    assert len(modules) > len(FRAMEWORKS)
    for path in modules:
        imported = [
            node.module if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        ]
        ours = {module for module in imported if module and module.startswith("qkvac")}
        framework = f"qkvac.backends.{path.parent.name}."
        others = {module for module in ours if not module.startswith(framework)}
        assert others <= {"qkvac.backends.adapter", "qkvac.backends.processor"}, path.name


@EVERY_MODE
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_declaration_is_complete(name: str, mode: str, dtype: str) -> None:
    declaration = parse(DECLARATIONS[name])
    assert dtype in declaration.dtypes
    for device in ("cpu", "cuda:0"):
        model = Arithmetic.for_dtype(dtype, declaration.arithmetic(dtype, mode, device))
        assert model.storage == dtype
        assert (model.softmax == "fused") == (device != "cpu" and name != "numpy")


def test_without_a_compiler_torch_compile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = importlib.import_module("qkvac.backends.torch.adapter")
    assert backend.unavailable("eager") is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in backend.unavailable("compile")
    with pytest.raises(UnavailableError, match="C\\+\\+ compiler"):
        backend.open("compile", "cpu")


def test_without_headers_torch_compile_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = importlib.import_module("qkvac.backends.torch.adapter")
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert "Python.h" in backend.unavailable("compile")
    (tmp_path / "Python.h").touch()
    assert backend.unavailable("compile") is None


# What every mode must do ----------------------------------------------------------------------


@EVERY_MODE
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_families_are_exact(name: str, mode: str, dtype: str) -> None:
    needs(name, mode)
    inputs = whole(dtype)
    X, Wq, Wk, Wv = (x.astype(float) for x in inputs)
    products = {"Q": X @ Wq, "K": X @ Wk, "V": X @ Wv, "Ω": X @ Wq @ (X @ Wk).T}
    assert_bits(inside(name, attention, name, mode, inputs), products, dtype)
    for family in (uniform, lookup, cliff):
        inputs, expected = family(dtype)
        assert_bits(inside(name, attention, name, mode, inputs), expected, dtype)


@EVERY_MODE
def test_shapes_and_dtypes_are_kept(name: str, mode: str) -> None:
    needs(name, mode)
    for sizes, batch in (((0, 3, 2), ()), ((1, 1, 1), ()), ((5, 4, 3), (2, 3))):
        outputs = inside(name, attention, name, mode, whole("float32", *sizes, batch=batch))
        n, _, c = sizes
        square, long = (*batch, n, n), (*batch, n, c)
        shapes = dict(
            zip(
                forward_profiles()["attention"].quantities,
                (long, long, long, square, square, long),
                strict=True,
            )
        )
        assert {key: value.shape for key, value in outputs.items()} == shapes
        assert {value.dtype.name for value in outputs.values()} == {"float32"}


@EVERY_MODE
def test_a_batch_is_a_loop(name: str, mode: str) -> None:
    needs(name, mode)
    X, *weights = whole("float32", 5, 4, 3, batch=(2, 3))
    together = inside(name, attention, name, mode, [X, *weights])
    for index in np.ndindex(2, 3):
        single = inside(name, attention, name, mode, [X[index], *weights])
        for key in ("Q", "K", "V", "Ω"):
            np.testing.assert_array_equal(together[key][index], single[key], key)


def _laid_out(name: str, mode: str, inputs: list[Array], layout: str) -> tuple[Any, bool]:
    arrays = [apply(array, layout) for array in inputs]
    outputs = attention(name, mode, arrays)
    unchanged = all(x.tobytes() == y.tobytes() for x, y in zip(arrays, inputs, strict=True))
    return outputs, unchanged


@pytest.mark.parametrize("layout", ["F", "strided", "reversed", "offset", "readonly", "stride0"])
@EVERY_MODE
def test_layouts_change_nothing(name: str, mode: str, layout: str) -> None:
    needs(name, mode)
    if mode == "compile" and layout != "F":
        pytest.skip("compiled anew for every layout; the eager mode shows the conversion")
    for dtype in ("float32", "bfloat16"):
        inputs = whole(dtype)
        if layout == "stride0":
            inputs = [np.broadcast_to(x[:1], x.shape).copy() for x in inputs]
        plain = inside(name, attention, name, mode, inputs)
        outputs, unchanged = inside(name, _laid_out, name, mode, inputs, layout)
        assert unchanged
        for key in ("Q", "K", "V", "Ω"):
            np.testing.assert_array_equal(outputs[key], plain[key], key)


def _budget(name: str, mode: str, inputs: list[Array]) -> Any:
    return adapter(name, mode).budget("attention", *inputs)


@pytest.mark.parametrize(
    ("name", "mode"), [case for case in MODES if case.values != ("numpy", "loop")]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_five_products_and_one_transposition(name: str, mode: str, dtype: str) -> None:
    needs(name, mode)
    n, d, c = TOKENS, WIDTH, CHANNELS - 2
    budget = inside(name, _budget, name, mode, normal(dtype, n, d, c))
    projection = ((n, d), (d, c), (n, c))
    expected = [*3 * [projection], ((n, c), (c, n), (n, n)), ((n, n), (n, c), (n, c))]
    assert [(x.left, x.right, x.out) for x in budget.contractions] == expected
    assert budget.transpositions == 1


def _evidence(name: str, mode: str) -> Any:
    return adapter(name, mode).evidence()


@EVERY_MODE
def test_the_mode_is_proved(name: str, mode: str) -> None:
    needs(name, mode)
    inside(name, attention, name, mode, normal("float32"))
    before = inside(name, _evidence, name, mode)
    inside(name, attention, name, mode, normal("float32"))
    evidence = inside(name, _evidence, name, mode)
    assert evidence["calls"] == before["calls"] + 1
    compiled = {"compile": "graphs", "jit": "executables", "function": "graphs", "xla": "graphs"}
    if mode in compiled:
        assert evidence[compiled[mode]] == before[compiled[mode]] >= 1
    if mode == "loop":
        module = "loop"
        assert evidence["runs"].keys() <= {module, f"{module}_gradients"}
    if mode == "compile":
        assert evidence["runs"] == before["runs"] + 1
        assert evidence["graph_breaks"] == 0
    if mode == "jit":
        assert "HloModule jit_attention" in evidence["programs"]
    if mode == "xla":
        assert evidence["programs"] == before["programs"] >= 1


def _ask(name: str, question: str) -> Any:
    return getattr(importlib.import_module(f"qkvac.backends.{name}.adapter"), question)()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_adapter_describes_itself(name: str) -> None:
    needs(name)
    assert inside(name, _ask, name, "devices")[0] == "cpu"
    assert inside(name, _ask, name, "versions").keys() >= {"numpy", "ml_dtypes"}
    environment = inside(name, _ask, name, "environment")
    assert str(environment["threads"]) == "1" or name == "numpy"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_is_not_there_is_an_error(name: str) -> None:
    backend = importlib.import_module(f"qkvac.backends.{name}.adapter")
    with pytest.raises(ModeError, match="has eager"):
        backend.open("fast", "cpu")


def _open(name: str, device: str) -> None:
    importlib.import_module(f"qkvac.backends.{name}.adapter").open("eager", device)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_absent_device_is_an_error(name: str) -> None:
    needs(name)
    message = inside(name, refusal, DeviceError, _open, name, "cuda:77")
    assert "no device 'cuda:77'" in message
    assert "finds cpu" in message


# What the arithmetic tables declare -----------------------------------------------------------


def _small(name: str, mode: str, dtype: str) -> list[bool]:
    """Whether a subnormal input, a product and a weight that are subnormal survive."""
    model, flushed = FORMATS[dtype], []
    X, Wq, Wk, Wv = (np.zeros_like(x) for x in whole(dtype))
    for factor, value in ((1.0, 5 * model.smallest), (0.5, model.tiny)):
        X[:, 0], Wv[0] = factor, value
        flushed.append(not attention(name, mode, [X, Wq, Wk, Wv])["V"].all())
    X[:], X[0, 0] = 0, 1
    Wq[0, 0] = Wk[0, 0] = math.sqrt(math.sqrt(CHANNELS) * (1 - math.log(model.tiny)))
    flushed.append(not attention(name, mode, [X, Wq, Wk, Wv])["A"].all())
    return flushed


@EVERY_MODE
@pytest.mark.parametrize("dtype", DTYPES)
def test_flushing_is_declared(name: str, mode: str, dtype: str) -> None:
    needs(name, mode)
    declared = parse(DECLARATIONS[name]).arithmetic(dtype, mode, "cpu")["flushes"]
    assert declared or not any(inside(name, _small, name, mode, dtype))


@EVERY_MODE
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_accumulate_in_float32(name: str, mode: str, dtype: str) -> None:
    needs(name, mode)
    X, Wq, Wk, Wv = whole(dtype)
    X[:], Wq[:] = 1, 1
    X[:, 0] = 2.0 ** FORMATS[dtype].precision
    # An even sum has the same bits rounded and cut off.
    X[:, 1] = 0
    total = float(X[0, 0]) + WIDTH - 2
    outputs = inside(name, attention, name, mode, [X, Wq, 0 * Wk, Wv])
    assert_bits(outputs, {"Q": np.full((TOKENS, CHANNELS), total)}, dtype)


@EVERY_MODE
def test_products_are_cut_off_where_that_is_declared(name: str, mode: str) -> None:
    """1 + 1.5·2⁻⁸ lies between 1 and 1 + 2⁻⁷, nearer to the latter."""
    needs(name, mode)
    declared = parse(DECLARATIONS[name]).arithmetic("bfloat16", mode, "cpu").get("truncates", False)
    X, Wq, Wk, Wv = whole("bfloat16")
    X[:], Wq[:] = 0, 0
    X[:, :2], Wq[0], Wq[1] = 1, 1, 1.5 * 2.0**-8
    outputs = inside(name, attention, name, mode, [X, Wq, 0 * Wk, Wv])
    expected = 1.0 if declared else 1 + 2.0**-7
    assert_bits(outputs, {"Q": np.full((TOKENS, CHANNELS), expected)}, "bfloat16")


@pytest.mark.parametrize(
    ("machine", "features", "onednn", "cut"),
    [
        ("X86_64", {"AVX2"}, None, True),
        ("X86_64", {"AVX2", "AVX512F"}, None, False),
        ("X86_64", {"AVX2", "AVX512F"}, "0", True),
        ("AARCH64", {"NEON"}, None, False),
    ],
)
def test_the_processor_decides_whether_tensorflow_cuts_off(
    machine: str,
    features: set[str],
    onednn: str | None,
    cut: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorflow, "architecture", lambda: machine)
    monkeypatch.setattr(tensorflow, "cpu_features", lambda: frozenset(features))
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if onednn is not None:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    assert tensorflow.truncates() == cut


def forms(weights: Array, ties: int) -> set[str]:
    """Which forms of the softmax explain a row of `ties` equal weights and one smaller kind."""
    number, low = weights.dtype.type, weights.min()
    top, rest = weights[0], len(weights) - ties
    found = set()
    for power in near(number(low / top)):
        for total in near(number(ties + rest * float(power))):
            if number(1) / total == top:
                found |= {"shifted, divided"} if power / total == low else set()
                found |= {"reciprocal"} if power * (number(1) / total) == low else set()
    return found


def near(value: Any, steps: int = 4) -> list[Any]:
    above, below = [value], [value]
    for _ in range(steps):
        above.append(np.nextafter(above[-1], value.dtype.type(np.inf)))
        below.append(np.nextafter(below[-1], value.dtype.type(-np.inf)))
    return [*below[:0:-1], *above]


@EVERY_MODE
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_form_of_the_softmax_is_declared(name: str, mode: str, dtype: str) -> None:
    """XLA divides in some versions, so a declared reciprocal may be more than is needed."""
    needs(name, mode)
    declared = parse(DECLARATIONS[name]).arithmetic(dtype, mode, "cpu")["softmax"]
    for seed in range(12):
        ties = 1 + seed % 5
        X, Wq, Wk, Wv = (np.zeros_like(x) for x in whole(dtype))
        X[:, 0], X[ties:, 1], Wq[0, 0] = 1, 1, 1
        Wk[1, 0] = -np.random.default_rng(seed).uniform(0.5, 4)
        weights = inside(name, attention, name, mode, [X, Wq, Wk, Wv])["A"]
        explained = forms(weights[0], ties)
        assert declared in explained or (declared == "reciprocal" and explained)
