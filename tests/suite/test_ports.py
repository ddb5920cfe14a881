"""Loading ports, and reading whatever they return."""

from __future__ import annotations

import array
import importlib.util
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkvac.spec.registry import forward_profiles
from qkvac.targets.arrays import ResultError, by_quantity, first_line, to_numpy
from qkvac.targets.forms import label
from qkvac.targets.ports import PortError, known_functions, load

RETURNS, OPTIONAL = known_functions()["attention"].returns, known_functions()["attention"].optional
GOOD = "def attention(X, Wq, Wk, Wv):\n    return X\n"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def port(folder: Path, source: str, name: str = "my_port.py") -> str:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_the_functions_are_those_of_the_spec() -> None:
    for name, profile in forward_profiles().items():
        function = known_functions()[name]
        assert function.returns == tuple(
            q for q in profile.quantities if q not in profile.intermediates
        )
        assert set(function.optional) == set(profile.intermediates)
        inputs = {tensor.name for tensor in profile.program().inputs}
        assert inputs <= {*function.positional, *function.keywords}


def test_gradients_follow_the_signature() -> None:
    gradients = known_functions()["multi_head_attention_gradients"]
    assert gradients.positional == ("X", "Wq", "Wk", "Wv", "Wo", "dY")
    assert gradients.returns == ("dX", "dWq", "dWk", "dWv", "dWo")
    assert known_functions()["embedding_gradients"].returns == ("dE", "dP")
    sdpa = known_functions()["scaled_dot_product_attention_gradients"]
    assert sdpa.returns == ("dQ", "dK", "dV")
    assert "dmask" in sdpa.optional
    assert sdpa.returned({"mask": np.zeros(2)}) == ("dQ", "dK", "dV", "dmask")
    for arguments in ({"mask": np.zeros(2, bool)}, {"mask": None}, {}):
        assert sdpa.returned(arguments) == sdpa.returns


def test_what_is_no_python_file_may_be_a_program(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n", encoding="utf-8")
    with pytest.raises(PortError, match=r"is not a Python file; .*: qkvac check -- .*/program"):
        load(str(tmp_path / "program"))


def test_a_file_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "helper_of_port.py").write_text("WIDTH = 3\n")
    source = (
        "import sys, helper_of_port\nARGV = sys.argv\nQKVAC = {'dtypes': ('float32',)}\n" + GOOD
    )
    loaded = load(port(tmp_path, source))
    assert list(loaded.functions) == ["attention"]
    assert loaded.declaration == {"dtypes": ["float32"]}
    assert sys.path[0] == str(tmp_path)
    assert sys.argv == [str(tmp_path / "my_port.py")]
    assert not list(tmp_path.glob("__pycache__/my_port*"))


def test_a_module_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_ports"
    package.mkdir()
    (package / "__init__.py").touch()
    port(package, GOOD)
    monkeypatch.chdir(tmp_path)
    assert list(load("package_of_ports.my_port").functions) == ["attention"]


OBJECTS = """
QKVAC = {'dtypes': ['float64']}
class Plain:
    QKVAC = {'dtypes': ['float32']}
    def attention(self, X, Wq, Wk, Wv): return X
class Scaled:
    def __init__(self, scale): self.scale = scale
    def attention(self, X, Wq, Wk, Wv): return X
class Layer:
    def __call__(self, X, Wq, Wk, Wv): return X
class layers:
    flash = Scaled(2)
    attention = Layer()
scaled = Scaled(2)
def attention(X, Wq, Wk, Wv): return X
kernel = attention
def other(X): return X
number = 3
"""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("scaled", "float64"),
        ("Plain", "float32"),
        ("kernel", "float64"),
        ("attention", "float64"),
        ("layers", "float64"),
        ("layers.flash", "float64"),
        ("layers.attention", "float64"),
        ("scaled.attention", "float64"),
    ],
)
@pytest.mark.parametrize("module", [False, True], ids=["file", "module"])
def test_a_part_of_a_module_can_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: bool, name: str, dtype: str
) -> None:
    path = port(tmp_path, OBJECTS, "objects_of_port.py")
    monkeypatch.chdir(tmp_path)
    loaded = load(f"{'objects_of_port' if module else path}:{name}")
    assert list(loaded.functions) == ["attention"]
    assert loaded.functions["attention"](1, 2, 3, 4) == 1
    assert loaded.declaration == {"dtypes": [dtype]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scald", r"objects_of_port.py has no 'scald'; did you mean 'scaled'\?"),
        ("layers.flush", "layers has no 'flush'; did you mean 'flash'"),
        ("Scaled", r"Scaled\(\) cannot be made: TypeError.*scale"),
        ("other", "other is a function of no known name; call it attention, or one of"),
        ("number", "number offers no function of a known name"),
    ],
)
def test_why_a_part_of_a_module_is_no_port(tmp_path: Path, name: str, words: str) -> None:
    path = port(tmp_path, OBJECTS, "objects_of_port.py")
    with pytest.raises(PortError, match=words) as caught:
        load(f"{path}:{name}")
    assert len(str(caught.value).splitlines()) == 1


def test_a_colon_may_stand_in_a_files_name(tmp_path: Path) -> None:
    assert list(load(port(tmp_path, GOOD, "a:b.py")).functions) == ["attention"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("folder/my_port.py", "my_port"),
        ("my_port.py:kernel", "my_port.kernel"),
        ("package.module", "module"),
        ("package.module:layers.flash", "module.layers.flash"),
        ("folder/model.onnx", "model"),
    ],
)
def test_a_port_has_a_short_name(text: str, expected: str) -> None:
    assert label(text) == expected


def test_an_edit_is_seen_at_once(tmp_path: Path) -> None:
    path = port(tmp_path, GOOD)
    load(path)
    port(tmp_path, GOOD.replace("return X", "return 7"))
    assert load(path).functions["attention"](1, 2, 3, 4) == 7


@pytest.mark.parametrize("name", ["numpy.py", "json.py", "random.py", "my-port.py", "ports.py"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert list(load(port(tmp_path, GOOD, name)).functions) == ["attention"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("def attention(X, Wq:\n", r"line 1: .*: def attention\(X, Wq:", id="syntax"),
        pytest.param("x = 1\0", "cannot be imported", id="nul"),
        pytest.param(
            "import torhc\n", r"No module named 'torhc' \(my_port.py, line 1\)", id="import"
        ),
        pytest.param("a = 1\nb = 1 / 0\n", r"ZeroDivisionError.*\(my_p.*line 2\)", id="raise"),
        pytest.param("import sys\nsys.exit(3)\n", r"calls sys.exit\(3\)", id="exit"),
        pytest.param("raise KeyboardInterrupt\n", "KeyboardInterrupt", id="interrupt"),
        pytest.param("def atention(): pass\n", "`atention`, did you mean `attention`", id="near"),
        pytest.param("class Attention: pass\n", "found `Attention`, did you mean", id="class"),
        pytest.param("def self_attention(): pass\n", "`self_att.*mean `attention`", id="words"),
        pytest.param("def mha(): pass\n", "`mha`, did you mean `multi_head_attention`", id="mha"),
        pytest.param(
            "class Layer:\n    def attention(self): pass\n",
            r"class `Layer` has `attention`, check .*my_port\.py:Layer",
            id="method",
        ),
        pytest.param("attention = 3\n", "`attention` is of type int, not a function", id="number"),
        pytest.param("def f(): pass\n", "looked for attention, dot_product_attention", id="none"),
        pytest.param(GOOD + "QKVAC = ['float32']\n", "QKVAC is of type list", id="list"),
        pytest.param(GOOD + "QKVAC = {'dtypes': [float]}\n", "QKVAC may hold", id="class-in"),
        pytest.param("def __getattr__(n): raise OSError('no')\n", "reading .*: no", id="getattr"),
    ],
)
def test_why_a_port_cannot_be_loaded(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(PortError, match=words) as caught:
        load(port(tmp_path, source))
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    port(tmp_path, GOOD)
    with pytest.raises(PortError, match=r"no such file; did you mean .*my_port\.py"):
        load(str(tmp_path / "my_prot.py"))
    with pytest.raises(PortError, match=r"no such file$"):
        load(str(tmp_path / "nowhere" / "a.py"))
    with pytest.raises(PortError, match="is a folder"):
        load(f"{tmp_path}/")
    with pytest.raises(PortError, match="neither a file nor the name of a module"):
        load("my port")
    with pytest.raises(PortError, match="No module named 'no_such_module'"):
        load("no_such_module.at_all")


def test_a_function_that_a_framework_wrote_is_no_offer(tmp_path: Path) -> None:
    source = (
        "def scaled_dot_product_attention(Q, K, V): pass\n"
        "scaled_dot_product_attention.__module__ = 'torch.nn.functional'\n"
    )
    assert list(load(port(tmp_path, source + GOOD)).functions) == ["attention"]


def test_a_callable_object_is_an_offer(tmp_path: Path) -> None:
    source = (
        "class Layer:\n    def __call__(self, X, Wq, Wk, Wv): return X\n"
        "Layer.__module__ = 'tensorflow.python.eager'\nattention = Layer()\n"
    )
    assert list(load(port(tmp_path, source)).functions) == ["attention"]


def test_a_result_is_a_dict_a_tuple_or_the_last_quantity() -> None:
    five = dict(zip(RETURNS, "QKVAC", strict=True))
    named = namedtuple("named", ("Q", "K", "V", "A", "C"))
    assert by_quantity(five, RETURNS, OPTIONAL) == five
    assert by_quantity(OrderedDict(five), RETURNS, OPTIONAL) == five
    assert by_quantity(tuple("QKVAC"), RETURNS, OPTIONAL) == five
    assert by_quantity(named(*"QKVAC"), RETURNS, OPTIONAL) == five
    assert by_quantity("C", RETURNS, OPTIONAL) == {"C": "C"}
    assert by_quantity({"C": 1, "scores": 2, "A": None}, RETURNS, OPTIONAL) == {"C": 1, "Ω": 2}
    assert by_quantity({"C": 1, "Ω": 2}, RETURNS, OPTIONAL) == {"C": 1, "Ω": 2}


@pytest.mark.parametrize(
    ("result", "words"),
    [
        pytest.param((1, 2), "a tuple of 2; expected 5: Q, K, V, A, C", id="short"),
        pytest.param((1,) * 6, "a tuple of 6", id="long"),
        pytest.param({"q": 1}, "unknown quantity 'q'; did you mean 'Q'", id="case"),
        pytest.param({"score": 1}, "unknown quantity 'score'", id="near"),
        pytest.param({3: 1}, "unknown quantity '3'", id="number"),
        pytest.param({"Ω": 1, "scores": 1}, "both", id="twice"),
        pytest.param(None, "returned None", id="none"),
    ],
)
def test_a_result_of_another_form_is_explained(result: object, words: str) -> None:
    with pytest.raises(ResultError, match=words):
        by_quantity(result, RETURNS, OPTIONAL)


def test_one_array_is_not_five_gradients() -> None:
    gradients = known_functions()["attention_gradients"]
    with pytest.raises(ResultError, match="expected 4 gradients"):
        by_quantity(np.ones(2), gradients.returns, gradients.optional)
    listed = by_quantity([1, 2, 3, None], gradients.returns, gradients.optional)
    assert listed == {"dX": 1, "dWq": 2, "dWk": 3}
    with pytest.raises(ResultError, match="a list of 2; expected 4"):
        by_quantity([1, 2], gradients.returns, gradients.optional)
    single = known_functions()["dot_product_attention_gradients"]
    assert list(by_quantity(np.ones(2), single.returns, single.optional)) == ["dX"]


class Offers:
    """An object with the given attributes only."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class HasArray:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class HasDLPack:
    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


VALUES = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(VALUES, id="ndarray"),
        pytest.param(VALUES.T.copy().T, id="fortran"),
        pytest.param(VALUES.astype(">f4"), id="byte-order"),
        pytest.param(VALUES.view(np.recarray), id="subclass"),
        pytest.param(np.ma.array(VALUES), id="masked-without-masks"),
        pytest.param(HasArray(VALUES), id="__array__"),
        pytest.param(HasDLPack(VALUES), id="dlpack"),
        pytest.param(Offers(numpy=lambda: VALUES), id="numpy()"),
        pytest.param(VALUES.data, id="buffer"),
    ],
)
def test_what_numpy_can_read_is_read(value: object) -> None:
    read = to_numpy(value)
    assert type(read) is np.ndarray
    assert read.dtype == np.dtype("f4")
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, VALUES, strict=True)


def test_a_list_of_all_quantities_is_told_to_be_a_tuple() -> None:
    with pytest.raises(ResultError, match="a list of 2, not an array; a tuple of them is A, C"):
        by_quantity([VALUES, VALUES], ("A", "C"), ())
    assert by_quantity((VALUES, VALUES), ("A", "C"), ()).keys() == {"A", "C"}


def test_scalars_have_no_axes() -> None:
    assert to_numpy(2.5).shape == to_numpy(np.float32(2.5)).shape == ()
    assert to_numpy(np.float32(2.5)).dtype == np.dtype("f4")
    assert to_numpy(array.array("d", [1.0, 2.0])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param([[1.0, 2.0]], "a list, not an array; np.asarray", id="list"),
        pytest.param("text", "a str, not an array", id="text"),
        pytest.param(object(), "an object, not an array", id="object"),
        pytest.param((i for i in [1]), "a generator, not an array", id="generator"),
        pytest.param(np.array([None]), "of dtype object", id="object-array"),
        pytest.param(np.array(["a"]), "of dtype <U1", id="text-array"),
        pytest.param(np.zeros(2, "i4,i4"), "of dtype", id="structured"),
        pytest.param(np.zeros(2, "M8[s]"), "of dtype", id="dates"),
        pytest.param(np.ma.array([1.0, 2.0], mask=[False, True]), "masked entries", id="masked"),
        pytest.param(HasArray(RuntimeError("on another device")), "on another device", id="raises"),
        pytest.param(HasArray("no array"), "cannot be read", id="lies"),
        pytest.param(Offers(numpy=lambda: 1 / 0), "ZeroDivisionError", id="numpy-raises"),
    ],
)
def test_what_is_no_array_is_explained(value: object, words: str) -> None:
    with pytest.raises(ResultError, match=words) as caught:
        to_numpy(value)
    assert len(str(caught.value).splitlines()) == 1


class FakeTensor:
    """Behaves as a torch tensor does: no NumPy before it is detached and on the CPU."""

    def __init__(self, bits: np.ndarray[Any, Any], dtype: str, steps: tuple[str, ...] = ()) -> None:
        self.bits, self.dtype, self.steps = bits, dtype, steps

    def detach(self) -> FakeTensor:
        return FakeTensor(self.bits, self.dtype, (*self.steps, "detach"))

    def cpu(self) -> FakeTensor:
        return FakeTensor(self.bits, self.dtype, (*self.steps, "cpu"))

    def view(self, dtype: str) -> FakeTensor:
        return FakeTensor(self.bits.view(dtype), dtype, self.steps)

    def numpy(self) -> np.ndarray[Any, Any]:
        if self.steps != ("detach", "cpu") or self.dtype.endswith("bfloat16"):
            raise TypeError("can't convert")
        return self.bits


def test_a_bfloat16_tensor_is_read_through_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Offers(int16="i2"))
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    read = to_numpy(FakeTensor(values, "torch.bfloat16"))
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()
    assert to_numpy(FakeTensor(VALUES, "torch.float32")).tobytes() == VALUES.tobytes()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_tensors_of_torch_are_read() -> None:
    import torch

    x = torch.arange(6, dtype=torch.float32, requires_grad=True).reshape(2, 3) / 4
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        read = to_numpy(x.to(dtype).T)
        assert read.dtype.name == str(dtype).removeprefix("torch.")
        np.testing.assert_array_equal(read.astype("f8"), x.detach().double().T.numpy())
    with pytest.raises(ResultError, match="cannot be read as an array"):
        to_numpy(torch.eye(2).to_sparse())


def test_an_exception_is_one_line_whatever_it_does() -> None:
    class RudeError(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    assert first_line(RudeError()) == "RudeError"
    assert first_line(ValueError("first\nsecond")) == "ValueError: first"
    assert first_line(ValueError("\x1b[31mred\x07")) == r"ValueError: \u001b[31mred\u0007"
    assert first_line(KeyError()) == "KeyError"
