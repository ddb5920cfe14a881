"""Vectors: files with the same bytes everywhere, and outputs that nobody vouches for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from qkvac.cells import Result
from qkvac.cli.exporting import export, exported
from qkvac.engine.cache import Certifier
from qkvac.engine.engine import Engine
from qkvac.execution.vectors import MANIFEST, expected, file_name, manifest, read_manifest
from qkvac.isolation import tensors
from qkvac.isolation.tensors import DTYPES, TensorFileError, decode, encode
from qkvac.spec.attention import SPEC_VERSION
from qkvac.subjects.selection import Options, Selection, find_case
from qkvac.tests.suite.engine_ports import MAIN, PLAIN, SMALL, statuses
from qkvac.tests.suite.test_cli import command
from qkvac.usage import UsageError

DIGEST = "8260bc27c69cf9c056b1d01e57879331d92f5e741087a9a18b4c350fbfe02c35"
"""SHA-256 of all exported inputs and their manifest. It changes with the cases, and with nothing
else: not with the platform, nor with the version of NumPy."""

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


# --- the format --------------------------------------------------------------------------------


def test_all_exported_bytes_are_pinned() -> None:
    state = hashlib.sha256()
    entries = []
    for vector in exported(Selection()):
        state.update(vector.data)
        entries.append(vector.to_json())
    state.update(manifest(entries))
    assert state.hexdigest() == DIGEST, "the cases changed: is SPEC_VERSION to be raised?"


def test_the_bytes_of_a_file() -> None:
    data = encode({"b": np.array([[1.5]], "f4"), "a": np.array([-2.0])}, {"y": "1", "x": "Ω"})
    header = (
        b'{"__metadata__":{"x":"\\u03a9","y":"1"},'
        b'"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},'
        b'"b":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}}'
    )
    padded = header + b" " * (-len(header) % 8)
    numbers = bytes.fromhex("00000000000000c00000c03f")
    assert data == len(padded).to_bytes(8, "little") + padded + numbers


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back(name: str) -> None:
    bits = np.arange(1, 25, dtype=np.uint8).reshape(3, 8)
    array = bits.view(DTYPES[name]) if name != "BOOL" else bits > 7
    assert_same(decode(encode({"x": array}, {}))["x"], array)


def test_every_bfloat16_comes_back() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    assert_same(decode(encode({"x": every}, {}))["x"], every)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[:, ::-2],
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x[:0],
        lambda x: x[0, 0],
        lambda x: x.astype(x.dtype.newbyteorder()),
    ],
)
def test_memory_layout_leaves_no_trace(view: Callable[[Array], Array]) -> None:
    array = view(np.arange(12.0, dtype="f4").reshape(3, 4))
    plain = np.array(array.tolist(), "f4")
    native = array if array.dtype.isnative else array.astype("f4")
    assert encode({"x": native}, {}) == encode({"x": plain.reshape(array.shape)}, {})


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    (vector,) = exported(Selection(cases=(f"attention/{SMALL}",), dtypes=("float32",)))
    (tmp_path / vector.file).write_bytes(vector.data)
    loaded = safetensors.numpy.load_file(tmp_path / vector.file)
    for name, array in find_case(f"attention/{SMALL}").inputs("float32").items():
        assert_same(loaded[name], array)
    with safetensors.safe_open(tmp_path / vector.file, "numpy") as file:
        metadata = file.metadata()
    assert metadata["case"] == f"attention/{SMALL}"
    assert metadata["spec"] == SPEC_VERSION
    assert json.loads(metadata["attributes"]) == {}


def assert_same(x: Array, y: Array) -> None:
    assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def file(text: bytes, numbers: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + numbers


def entry(dtype: str = "F32", shape: object = (1, 1), offsets: object = (0, 4)) -> bytes:
    """A file of one tensor of 4 bytes, or as many as the offsets say."""
    table = {"C": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    return file(json.dumps(table).encode(), b"\7" * min(offsets[1], 4))  # type: ignore[index]


CORRUPT = {
    "empty": b"",
    "short": b"\1\0\0",
    "text": b"not a safetensors file at all",
    "endless header": (1 << 62).to_bytes(8, "little"),
    "no JSON": file(b"{nonsense}"),
    "no table": file(b"[1, 2]"),
    "deep": file(b"[" * 100_000),
    "truncated": entry()[:-2],
    "left over": entry() + b"\0" * 64,
    "outside": entry(offsets=(4096, 4100)),
    "backwards": entry(offsets=(4, 0)),
    "too small for its shape": entry(shape=(9, 9)),
    "overflowing shape": entry(shape=(1 << 32, 1 << 32, 2)),
    "many axes": entry(shape=(1,) * 100),
    "odd dtype": entry("F8_E4M3", offsets=(0, 1)),
    "unknown dtype": entry("F31"),
    "no booleans": entry("BOOL", offsets=(0, 1)),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_files_are_one_line(name: str) -> None:
    with pytest.raises(TensorFileError) as caught:
        decode(CORRUPT[name])
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_only_plain_files_of_modest_size_are_read(tmp_path: Path) -> None:
    assert tensors.read(tmp_path, "absent", 10) is None
    (tmp_path / "big").write_bytes(b"x" * 11)
    (tmp_path / "link").symlink_to("big")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert tensors.read(tmp_path, "big", 11) == b"x" * 11
    for name, words in {
        "big": "11 bytes; at most 10",
        "link": "is a link",
        "folder": "not a plain file",
        "pipe": "not a plain file",
    }.items():
        with pytest.raises(TensorFileError, match=words):
            tensors.read(tmp_path, name, 10)


# --- export ------------------------------------------------------------------------------------


def test_export_writes_files_and_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "vectors"
    words = ("export", str(folder), "--case", f"{MAIN}*", "--dtype", "float32", "--seeds", "1")
    for _ in range(2):
        status, out, _ = command(capsys, *words)
        assert status == 0
    names = {path.name for path in folder.iterdir()}
    assert {file_name(f"attention/{MAIN}", "float32"), MANIFEST} <= names
    assert f"{len(names) - 1} files and manifest.json" in out
    table = json.loads((folder / MANIFEST).read_text())
    assert table["spec"] == SPEC_VERSION
    for entry in table["vectors"]:
        data = (folder / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert set(decode(data)) == set(entry["inputs"])
        assert entry["outputs"]["A"] == [33, 33]
        assert ("scores" in entry["outputs"]) == ("dC" not in entry["inputs"])
    ids = {entry["case"] for entry in table["vectors"]}
    relations = {f"attention/{MAIN}/{name}" for name in ("repeat-1", "scaling-2", "signs-1")}
    assert {f"attention/{MAIN}", f"attention/{MAIN}/s1", *relations} <= ids
    assert read_manifest(folder).draws == 1


def test_a_declaration_leaves_out_what_a_port_is_not_asked_for() -> None:
    selection = Selection(declare=('supports=["empty"]', 'dtypes=["float32"]'))
    found = [vector.case for vector in exported(selection)]
    assert {word for case in found for word in case.needs} == {"empty"}
    assert {vector.dtype for vector in exported(selection)} == {"float32"}
    only = Selection(declare=('profiles=["embedding"]',), dtypes=("float64",))
    assert {vector.case.profile for vector in exported(only)} == {"embedding"}
    with pytest.raises(UsageError, match="bathces"):
        list(exported(Selection(declare=('supports=["bathces"]',))))


def test_export_leaves_other_files_alone(tmp_path: Path) -> None:
    selection = Selection(cases=(f"attention/{SMALL}",))
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match=r"holds thesis.txt"):
        export(tmp_path, selection, False)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="not a folder"):
        export(tmp_path / "thesis.txt", selection, False)
    with pytest.raises(UsageError, match="unknown case"):
        export(tmp_path / "new", Selection(cases=("norml/*",)), False)


def test_layouts_are_named_in_the_metadata() -> None:
    (vector,) = exported(Selection(cases=("attention/layout-X-strided/*",), dtypes=("float32",)))
    assert b'"layouts":"{\\"X\\":\\"strided\\"}"' in vector.data
    assert vector.to_json()["layouts"] == {"X": "strided"}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_expected_values_hold_for_a_right_port(tmp_path: Path, dtype: str) -> None:
    case = find_case(f"attention/{SMALL}")
    known = decode(expected(case, dtype, Certifier(None)))
    for name, array in answers(case.inputs(dtype)).items():
        value = array.astype(np.longdouble)
        error = abs(value - known[f"{name}.hi"] - known[f"{name}.lo"])
        assert np.all(error <= known[f"{name}.bound"] + known[f"{name}.radius"])
        assert np.all(known[f"{name}.radius"] <= known[f"{name}.bound"])


def test_export_with_expected_adds_a_folder_only(tmp_path: Path) -> None:
    selection = Selection(cases=(f"attention/{SMALL}",), dtypes=("float64",))
    export(tmp_path / "plain", selection, False)
    export(tmp_path / "more", selection, True)
    plain = {path.name: path.read_bytes() for path in (tmp_path / "plain").iterdir()}
    more = {p.name: p.read_bytes() for p in (tmp_path / "more").iterdir() if p.is_file()}
    assert plain == more
    (path,) = (tmp_path / "more" / "expected").iterdir()
    assert path.name in plain
    with safetensors.safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["exact"]) == []
        assert json.loads(file.metadata()["arithmetic"])["storage"] == "float64"


# --- grade -------------------------------------------------------------------------------------

scope: dict[str, Any] = {}
exec(PLAIN, scope)


def answers(inputs: Arrays) -> Arrays:
    """What a right port returns, computed in float64 and stored in the inputs' dtype."""
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    Q, K, V, A, C = scope["plain"](*(wide[name] for name in ("X", "Wq", "Wk", "Wv")))
    found = {"Q": Q, "K": K, "V": V, "scores": Q @ K.T, "A": A, "C": C}
    return {name: array.astype(inputs["X"].dtype) for name, array in found.items()}


class Folders:
    """Exported vectors, and the outputs of a right port."""

    def __init__(self, place: Path, *cases: str, dtypes: tuple[str, ...] = ("float32",)) -> None:
        self.inputs, self.outputs = place / "inputs", place / "outputs"
        chosen = Selection(profiles=("attention",), cases=cases, dtypes=dtypes)
        export(self.inputs, chosen, False)
        self.outputs.mkdir()
        for path in self.inputs.glob("*.safetensors"):
            self.write(path.name, answers(decode(path.read_bytes())))

    def write(self, name: str, arrays: Arrays) -> None:
        (self.outputs / name).write_bytes(encode(arrays, {}))

    def change(self, name: str, changed: Callable[[Arrays], Any]) -> None:
        arrays = decode((self.outputs / name).read_bytes())
        changed(arrays)
        self.write(name, arrays)

    def grade(self, *dtypes: str, declare: tuple[str, ...] = ()) -> list[Result]:
        results = list[Result]()
        graded = (str(self.inputs), str(self.outputs))
        selection = Selection(
            profiles=("attention",), dtypes=dtypes, graded=graded, declare=declare, tier="full"
        )
        with Engine(selection, Options(workers=1)) as engine:
            engine.run(results.append)
        return results


FILE = file_name(f"attention/{SMALL}", "float32")


def test_right_outputs_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = Folders(tmp_path, MAIN, SMALL)
    record = tmp_path / "record.jsonl"
    words = ("grade", str(folders.inputs), str(folders.outputs), "--dtype", "float32")
    status, out, err = command(capsys, *words, "--record", str(record))
    assert (status, err) == (0, "")
    assert "CONFORMS: outputs@cpu computes" in out
    assert "unsupported (files)" in out
    found = statuses(folders.grade(), MAIN)
    assert {found[name] for name in ("Ω", "C", "repeat", "scaling", "signs")} == {"passed"}
    assert found["state"] == found["unchanged"] == "unsupported"
    kinds = [json.loads(line)["kind"] for line in record.read_text().splitlines()]
    assert kinds[0] == "header"
    assert kinds[-1] == "footer"


def test_wrong_outputs_fail_and_say_how_to_see_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = Folders(tmp_path, SMALL)
    folders.change(FILE, lambda arrays: arrays.update(C=arrays["C"] * np.float32(2)))
    words = ("grade", str(folders.inputs), str(folders.outputs))
    status, out, _ = command(capsys, *words)
    assert status == 1
    assert f"again: qkvac grade {folders.inputs} {folders.outputs} --case" in " ".join(out.split())


def test_missing_outputs_are_missing(tmp_path: Path) -> None:
    folders = Folders(tmp_path, SMALL, MAIN)
    (folders.outputs / FILE).unlink()
    folders.change(
        file_name(f"attention/{MAIN}", "float32"), lambda arrays: (arrays.pop("A"), arrays.pop("Q"))
    )
    (folders.outputs / file_name(f"attention/{MAIN}/signs-2", "float32")).unlink()
    results = folders.grade("float32")
    small = {r.cell.quantity: r for r in results if r.cell.case.endswith("6x3x2")}
    assert small["C"].status == "missing"
    assert small["C"].reason == f"no file {FILE}"
    assert {r.status for name, r in small.items() if name != "C"} == {"not reported"}
    main = statuses(results, MAIN)
    assert (main["A"], main["Q"], main["C"]) == ("not reported", "not reported", "passed")
    assert main["signs"] == "missing"
    assert main["repeat"] == "failed"  # the second call reports A and Q


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "kept")
    path.symlink_to("../kept")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-8]), "error", "no safetensors file"),
    "no safetensors": (lambda p: p.write_bytes(b"P6 4 4"), "error", "no safetensors file"),
    "too big": (lambda p: p.write_bytes(b"0" * (2 << 20)), "error", "at most"),
    "a link": (linked, "error", "is a link"),
    "a folder": (folder_instead, "error", "not a plain file"),
    "a pipe": (pipe_instead, "error", "not a plain file"),
    "odd dtype": (
        lambda p: p.write_bytes(CORRUPT["odd dtype"]),
        "error",
        "holds C in the dtype F8_E4M3",
    ),
    "unknown quantity": (
        lambda p: p.write_bytes(encode({"context": np.zeros((6, 2), "f4")}, {})),
        "error",
        "unknown quantity 'context'",
    ),
    "integers": (
        lambda p: p.write_bytes(encode({"C": np.zeros((6, 2), "i4")}, {})),
        "failed",
        "int32",
    ),
    "another shape": (
        lambda p: p.write_bytes(encode({"C": np.zeros((2, 6), "f4")}, {})),
        "failed",
        "C",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_a_status_of_their_case(tmp_path: Path, name: str) -> None:
    spoil, status, reason = HOSTILE[name]
    folders = Folders(tmp_path, SMALL, "worked-example/6x3x2")
    spoil(folders.outputs / FILE)
    results = folders.grade("float32")
    (context,) = (r for r in results if r.cell.case.endswith(SMALL) and r.cell.quantity == "C")
    assert (context.status, reason in (context.reason or "")) == (status, True), context.line
    assert len((context.reason or "").splitlines()) == 1
    other = {r.status for r in results if not r.cell.case.endswith(SMALL)}
    assert "passed" in other
    assert "error" not in other


def test_dtypes_are_found_out_where_none_is_declared(tmp_path: Path) -> None:
    folders = Folders(tmp_path, SMALL, dtypes=("float64", "float32", "bfloat16"))
    found = {(r.cell.dtype, r.status) for r in folders.grade() if r.cell.quantity == "C"}
    assert found == {("float64", "passed"), ("float32", "passed")}
    declared = folders.grade(declare=("dtypes = ['bfloat16']",))
    assert {r.cell.dtype for r in declared} == {"bfloat16"}
    assert {r.status for r in declared if r.cell.quantity == "C"} == {"passed"}
    wide = file_name(f"attention/{SMALL}", "float64")
    folders.write(wide, answers(decode((folders.inputs / FILE).read_bytes())))
    (refused,) = (r for r in folders.grade() if r.cell.dtype == "float64")
    assert (refused.status, refused.reason) == ("unsupported", "float64 in, float32 out")
    (folders.outputs / wide).unlink()
    (refused,) = (r for r in folders.grade() if r.cell.dtype == "float64")
    assert (refused.status, refused.reason) == ("unsupported", "float64 in, nothing out")


def test_what_is_not_graded_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = Folders(tmp_path, SMALL, dtypes=("float32", "float16"))
    _, out, _ = command(capsys, "grade", str(folders.inputs), str(folders.outputs))
    assert "outputs in float16 are not graded" in " ".join(out.split())


def test_a_declaration_lies_beside_the_outputs(tmp_path: Path) -> None:
    folders = Folders(tmp_path, SMALL, dtypes=("float32", "float64"))
    declaration = folders.outputs / "port.toml"
    declaration.write_text('dtypes = ["float32"]\nname = "kernel"\n')
    assert {r.cell.dtype for r in folders.grade()} == {"float32"}
    declaration.write_text("dtypes = [\n")
    with pytest.raises(UsageError, match=r"port\.toml"):
        folders.grade()
    declaration.unlink()
    declaration.symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="not a plain file"):
        folders.grade()


def test_other_inputs_than_the_specs_are_noticed(tmp_path: Path) -> None:
    folders = Folders(tmp_path, SMALL)
    path = folders.inputs / MANIFEST
    table = json.loads(path.read_text())
    table["vectors"][0]["sha256"] = "0" * 64
    table["vectors"][0]["file"] = "../../etc/passwd"
    path.write_text(json.dumps(table))
    results = folders.grade("float32")
    assert {r.status for r in results} == {"error"}
    assert "export again" in (results[0].reason or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no manifest"),
        ("[]", "no manifest"),
        ("[" * 100_000, "no manifest"),
        ('{"spec": "1.0", "vectors": [{"case": 1}]}', "no manifest"),
        ('{"spec": "0.1", "vectors": []}', "export again"),
        (
            f'{{"spec": "{SPEC_VERSION}", "vectors": '
            '[{"case": "../x", "dtype": "float32", "sha256": ""}]}',
            "no case",
        ),
    ],
)
def test_a_manifest_that_is_none_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / MANIFEST).write_text(text)
    status, _, err = command(capsys, "grade", str(tmp_path), str(tmp_path))
    assert status == 2
    assert words in err
    assert len(err.splitlines()) == 1


def test_folders_that_do_not_exist_are_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = Folders(tmp_path, SMALL)
    for words in ((str(tmp_path / "no"), str(tmp_path)), (str(folders.inputs), "nowhere")):
        status, _, err = command(capsys, "grade", *words)
        assert status == 2
        assert "no such f" in err
