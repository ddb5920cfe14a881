"""ONNX models as ports: what is matched, what runs them, and what they cannot take."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qkvac.cli.main import main
from qkvac.engine.engine import Engine
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.models import load
from qkvac.targets.ports import PortError
from qkvac.tests.suite.engine_ports import MAIN, SMALL, run, statuses

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

INPUTS = ("X", "Wq", "Wk", "Wv")
OUTPUTS = ("Q", "K", "V", "scores", "A", "C")
NUMBERS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def model(
    folder: Path,
    dtype: str = "float32",
    *,
    inputs: Sequence[str] = INPUTS,
    outputs: Sequence[str] = OUTPUTS,
    sizes: tuple[int | str, int | str, int | str] = ("n", "d", "c"),
    softmax_of: str = "scaled",
    name: str = "model",
) -> str:
    """Writes attention as a graph, under the names given to its inputs; returns the path."""
    kind = NUMBERS[dtype]
    n, d, c = sizes
    X, Wq, Wk, Wv = inputs
    node = helper.make_node
    nodes = [
        node("MatMul", [X, Wq], ["Q"]),
        node("MatMul", [X, Wk], ["K"]),
        node("MatMul", [X, Wv], ["V"]),
        node("Transpose", ["K"], ["K.T"], perm=[1, 0]),
        node("MatMul", ["Q", "K.T"], ["scores"]),
        node("Shape", [Wq], ["size"], start=1, end=2),
        node("Cast", ["size"], ["width"], to=kind),
        node("Sqrt", ["width"], ["root"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Softmax", [softmax_of], ["A"], axis=1),
        node("MatMul", ["A", "V"], ["C"]),
    ]
    shapes: tuple[list[int | str | None], ...] = ([n, d], [d, c], [d, c], [d, c])
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "attention",
        [info(name, kind, shape) for name, shape in zip(inputs, shapes, strict=True)],
        [info(name, kind, [None, None]) for name in outputs],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path = folder / f"{name}.onnx"
    onnx.save(made, path)
    return str(path)


def absent(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes packages look as if they were not installed, in this process and those it starts."""
    for name in names:
        text = f"raise ModuleNotFoundError('not installed', name={name!r})"
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize("dtype", sorted(NUMBERS))
@pytest.mark.parametrize("runner", ["onnxruntime", "reference"])
def test_a_right_model_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, runner: str
) -> None:
    if runner == "reference":
        absent(tmp_path, monkeypatch, "onnxruntime")
    found = statuses(run(model(tmp_path, dtype), SMALL, dtypes=(dtype,)), SMALL)
    assert found == dict.fromkeys(("Q", "K", "V", "Ω", "A", "C"), "passed")


def test_a_wrong_model_fails_where_it_is_wrong(tmp_path: Path) -> None:
    found = statuses(run(model(tmp_path, softmax_of="scores"), SMALL), SMALL)
    assert {name for name, status in found.items() if status == "failed"} == {"A", "C"}


def test_the_type_of_the_inputs_is_the_dtype(tmp_path: Path) -> None:
    (entry,) = [load(model(tmp_path, "float64"))]
    assert entry.declaration == {"profiles": ["attention"], "dtypes": ["float64"]}
    assert {"attention", "causal_attention"} <= set(entry.functions)
    assert entry.versions.keys() == {"onnxruntime"}


def test_what_is_not_an_output_is_not_reported(tmp_path: Path) -> None:
    found = statuses(run(model(tmp_path, outputs=("C",)), SMALL), SMALL)
    assert found["C"] == "passed"
    assert {found[name] for name in "QKVA"} == {"not reported"}
    found = statuses(run(model(tmp_path, outputs=("Q", "A")), SMALL), SMALL)
    assert (found["Q"], found["C"]) == ("passed", "missing")


def test_shapes_that_a_model_does_not_take_are_unsupported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = model(tmp_path, sizes=(33, 20, 7))
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "check",
                port,
                "--profile",
                "attention",
                "--case",
                SMALL,
                "--case",
                MAIN,
                "--format",
                "json",
            ]
        )
    assert ended.value.code == 0
    results = json.loads(capsys.readouterr().out)["results"]
    small = [result for result in results if SMALL in result["cell"]]
    assert {(r["status"], r["reason"]) for r in small} == {("unsupported", "shape")}
    assert "passed" in {result["status"] for result in results}


def test_a_model_says_what_it_is_made_for(tmp_path: Path) -> None:
    port = model(tmp_path, sizes=(33, 20, 7))
    with Engine(Selection(port=port, cases=(MAIN,)), Options()) as engine:
        notes = engine.roster.notes
    assert any(
        "it takes X[33, 20], Wq[20, 7], Wk[20, 7], Wv[20, 7] alone; export it with dynamic" in note
        for note in notes
    )
    with Engine(Selection(port=model(tmp_path), cases=(MAIN,)), Options()) as engine:
        assert not any("dynamic axes" in note for note in engine.roster.notes)


def test_a_symbol_stands_for_one_size(tmp_path: Path) -> None:
    found = run(model(tmp_path, sizes=("n", "n", "c")), MAIN)
    assert {result.reason for result in found} == {"shape"}
    assert {result.status for result in found} == {"unsupported"}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"inputs": ("x", "Wq", "Wk", "Wv")}, "are x, Wq, Wk, Wv; attention takes X, Wq, Wk, Wv"),
        ({"outputs": ("root",)}, "are root; attention returns Q, K, V, A, C, and scores for Ω"),
    ],
)
def test_other_names_are_one_clear_line(
    tmp_path: Path, names: dict[str, tuple[str, ...]], words: str
) -> None:
    path = model(tmp_path, inputs=names.get("inputs", INPUTS), outputs=names.get("outputs", ("C",)))
    with pytest.raises(PortError, match=re.escape(words)) as caught:
        load(path)
    assert str(caught.value).startswith(path)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(PortError, match="no such file"):
        load(str(path))
    path.write_bytes(b"quack")
    with pytest.raises(PortError, match="cannot be loaded") as caught:
        load(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_without_onnx_it_is_bad_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = model(tmp_path)
    absent(tmp_path, monkeypatch, "onnx", "onnxruntime")
    with pytest.raises(SystemExit) as ended:
        main(["check", port])
    assert ended.value.code == 2
    message = "needs onnxruntime or onnx; pip install 'qkvac[onnx]' installs both"
    assert message in capsys.readouterr().err


def test_a_declaration_lies_beside_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = model(tmp_path)
    declaration = tmp_path / "port.toml"
    declaration.write_text('[arithmetic]\nsoftmax = "fused"\nblocks = 16\n', encoding="utf-8")
    words = ["check", port, "--case", SMALL, "--declare", "arithmetic.blocks=0"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "softmax fused" in out
    assert "blocks" not in out
    declaration.write_text("blocks = 16\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "port.toml: 'blocks' is not a key" in capsys.readouterr().err


@pytest.mark.parametrize("runner", ["onnxruntime", "reference"])
def test_a_model_may_leave_the_rank_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    path = tmp_path / "model.onnx"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["X", "Wv"], ["V"])],
        "attention",
        [info(name, TensorProto.FLOAT, None) for name in INPUTS],
        [info("V", TensorProto.FLOAT, [None, None])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(made, path)
    if runner == "reference":
        absent(tmp_path, monkeypatch, "onnxruntime")
    port = load(str(path))
    X, W = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)
    assert port.functions["attention"](X, W, W, W)["V"].tolist() == [[2.0] * 4] * 3


def test_bfloat16_goes_through_onnxruntime(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    kind = TensorProto.BFLOAT16
    graph = helper.make_graph(
        [helper.make_node("Identity", ["Wv"], ["C"])],
        "attention",
        [info(name, kind, [None, None]) for name in INPUTS],
        [info("C", kind, [None, None])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(made, tmp_path / "model.onnx")
    port = load(str(tmp_path / "model.onnx"))
    assert port.declaration["dtypes"] == ["bfloat16"]
    given = np.arange(6.0).reshape(2, 3).astype(ml_dtypes.bfloat16)
    returned = port.functions["attention"](given, given, given, given)["C"]
    assert returned.dtype == ml_dtypes.bfloat16
    assert returned.tobytes() == given.tobytes()
