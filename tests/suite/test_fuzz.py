"""Readers of what strangers wrote: each returns a value, or raises the error that it declares."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkvac import jsons, toml
from qkvac.cells import Status
from qkvac.cli.exporting import exported
from qkvac.cli.main import cli
from qkvac.cli.settings import defaults
from qkvac.engine.cache import Certifier, _decoded, _encoded
from qkvac.execution import vectors
from qkvac.isolation import tensors
from qkvac.isolation.process import greeting
from qkvac.isolation.protocol import Message, ProtocolError, frames, read
from qkvac.isolation.tensors import TensorFileError
from qkvac.publication import archive, badge, html, markdown
from qkvac.publication.merging import written
from qkvac.records import deviations
from qkvac.spec.registry import forward_profiles
from qkvac.subjects.selection import Selection, find_case
from qkvac.targets import declaration
from qkvac.targets.declaration import DeclarationError
from qkvac.tests.suite import records
from qkvac.tests.suite.engine_ports import SMALL
from qkvac.tests.suite.mutants import NASTY, VALUES, changed_bytes, changed_value, dumped
from qkvac.texts import visible
from qkvac.toml import TOMLDecodeError
from qkvac.usage import UsageError

FEW, MANY = 60, 3000

RECORD = [
    json.loads(json.dumps(line))
    for line in records.lines(
        [
            records.result(),
            records.result("A", status=Status.FAILED),
            records.result("K", status=Status.ERROR, reason="why", detail="a\nb"),
        ],
        notes=["a note"],
    )
]

PORT = b"""
name = "mine"
dtypes = ["float32", "float16"]
supports = ["batches", "masks"]
conventions.empty_row = "NaN"
[arithmetic]
accumulation = "float32"
float16 = { accumulation = "float16", blocks = 16 }
"""

KNOWN = b"""
[[deviation]]
backend = "torch/*"
clause = "error"
reason = "so it is"
link = "https://example.org/1"
versions = ">=2,<3"
cases = ["attention/*"]
reason_matches = "a.*b"
"""

PROJECT = b"""
[tool.qkvac]
dtype = ["float32"]
timeout = 5
strict = true
case = "attention/*"
"""


def fuzzed(strategy: st.SearchStrategy[Any]) -> Callable[[Callable[[Any], None]], Any]:
    """A test of a reader over a strategy; with `-m long` over many more examples."""

    def decorate(check: Callable[[Any], None]) -> Any:
        def run(count: int) -> None:
            @settings(
                max_examples=count,
                deadline=None,
                database=None,
                derandomize=count == FEW,
                suppress_health_check=list(HealthCheck),
            )
            @given(strategy)
            def every(value: Any) -> None:
                check(value)

            every()

        counts = [FEW, pytest.param(MANY, marks=pytest.mark.long)]
        run.__name__ = check.__name__
        return pytest.mark.parametrize("count", counts)(run)

    return decorate


def told(error: Exception) -> None:
    """An error is one line, short, of what can be seen."""
    text = str(error)
    assert text
    assert visible(text) == text, ascii(text)
    assert "\n" not in text
    assert len(text) < 2000


def in_folder(name: str, data: bytes, act: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        act(path)


def lined(lines: Iterable[Any]) -> bytes:
    return b"".join(dumped(line) + b"\n" for line in lines)


# --- JSON and TOML ------------------------------------------------------------------------------


@fuzzed(st.one_of(changed_bytes(lined(RECORD[:1])), st.binary(), VALUES.map(dumped)))
def test_json(data: bytes) -> None:
    try:
        value = jsons.loads(data)
    except ValueError:
        return
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@fuzzed(st.one_of(changed_bytes(PORT), st.text(max_size=200).map(lambda t: t.encode())))
def test_toml(data: bytes) -> None:
    try:
        table = toml.loads(data.decode(errors="replace"))
    except TOMLDecodeError:
        return
    assert not jsons.nested(table)


@pytest.mark.parametrize(
    "data",
    [
        *(b'{"a": 1e999}', b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": ' + b"9" * 5000 + b"}"),
        *(b'{"a": ' + b"9" * 400 + b"}", b'"\xed\xa0\x80"', b'"\\ud800"', b"[" * 970 + b"]" * 970),
        *(b"[" * 65 + b"]" * 65, b"[" * 10**6, b'{"a":' * 970 + b"1" + b"}" * 970, b"\xff"),
    ],
)
def test_no_json(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        jsons.loads(data)


@pytest.mark.parametrize(
    "text",
    [
        *("a = " + "[" * 970 + "]" * 970, "a = " + "[" * 10**5, "a" + ".a" * 970 + " = 1"),
        *("a" + ".a" * 400_000 + " = 1", "a = " + "9" * 5000, "a = " + "9" * 100),
    ],
)
def test_no_toml(text: str) -> None:
    with pytest.raises(TOMLDecodeError):
        toml.loads(text)


# --- records ------------------------------------------------------------------------------------


def published(data: bytes) -> None:
    """A record, read and published in every form; or refused."""

    def act(path: Path) -> None:
        try:
            found = archive.read(path, allow_truncated=True)
        except UsageError as error:
            told(error)
            return
        html.render(found)
        markdown.render(found)
        badge.svg(badge.badge(found))
        "".join(written(found)).encode()

    in_folder("run.jsonl", data, act)


@fuzzed(changed_bytes(lined(RECORD)))
def test_bytes_of_records(data: bytes) -> None:
    published(data)


@fuzzed(changed_value(RECORD).filter(lambda v: isinstance(v, list)).map(lined))
def test_values_of_records(data: bytes) -> None:
    published(data)


# --- manifests, vectors -------------------------------------------------------------------------


def manifest() -> dict[str, Any]:
    found = [v.to_json() for v in exported(Selection(cases=(f"attention/{SMALL}",)))]
    table: dict[str, Any] = jsons.loads(vectors.manifest(found))
    return table


MANIFEST = manifest()


def read_manifest(data: bytes) -> None:
    def act(path: Path) -> None:
        try:
            assert vectors.read_manifest(path.parent).draws <= 1000
        except UsageError as error:
            told(error)

    in_folder(vectors.MANIFEST, data, act)


@fuzzed(st.one_of(changed_bytes(dumped(MANIFEST)), changed_value(MANIFEST).map(dumped)))
def test_manifests(data: bytes) -> None:
    read_manifest(data)


@pytest.mark.parametrize("draw", ["10000000", "9" * 5000, "1001", "٣", "-1", "1_0"])
def test_draws_beyond_all_that_are_exported(draw: str, tmp_path: Path) -> None:
    (entry, *_) = MANIFEST["vectors"]
    table = {**MANIFEST, "vectors": [{**entry, "case": f"{entry['case']}/s{draw}"}]}
    (tmp_path / vectors.MANIFEST).write_bytes(dumped(table))
    with pytest.raises(UsageError, match="which is no case") as caught:
        vectors.read_manifest(tmp_path)
    told(caught.value)


FILE = tensors.encode({"C": np.ones((2, 3), "f4"), "A": np.ones((2, 2))}, {"case": "x"})
HEADER = json.loads(FILE[8 : 8 + int.from_bytes(FILE[:8], "little")])


def lying(header: Any) -> bytes:
    text = dumped(header)
    return len(text).to_bytes(8, "little") + text + bytes(56)


@fuzzed(st.one_of(changed_bytes(FILE), st.binary(), changed_value(HEADER).map(lying)))
def test_safetensors(data: bytes) -> None:
    try:
        arrays = tensors.decode(data)
    except TensorFileError as error:
        told(error)
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(data)


# --- declarations, known deviations, settings ---------------------------------------------------


DECLARED = toml.loads(PORT.decode())


@fuzzed(st.one_of(changed_bytes(PORT), changed_bytes(b'supports = "batches"\n')))
def test_port_toml(data: bytes) -> None:
    def act(path: Path) -> None:
        try:
            declaration.parse(declaration.load(file=path))
        except DeclarationError as error:
            told(error)

    in_folder(declaration.FILE, data, act)


@fuzzed(changed_value(DECLARED).filter(lambda v: isinstance(v, dict)))
def test_declarations(table: dict[str, Any]) -> None:
    try:
        found = declaration.parse(table)
        for dtype in found.dtypes:
            found.arithmetic(dtype, "default", "cpu")
    except DeclarationError as error:
        told(error)


@fuzzed(
    st.one_of(
        changed_bytes(b'arithmetic.float32.storage = "float16"').map(lambda b: b.decode("latin-1")),
        st.text(),
        st.sampled_from(NASTY).map(lambda b: f"name={b.decode('latin-1')}"),
    )
)
def test_assignments(text: str) -> None:
    try:
        declaration.parse(declaration.load(assignments=[text]))
    except DeclarationError as error:
        told(error)


@fuzzed(changed_bytes(KNOWN))
def test_known_deviations(data: bytes) -> None:
    def act(path: Path) -> None:
        try:
            deviations.Deviations.load(path)
        except UsageError as error:
            told(error)

    in_folder("known.toml", data, act)


@fuzzed(changed_bytes(PROJECT))
def test_settings(data: bytes) -> None:
    def act(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(path.parent)
            try:
                defaults(cli.commands)
            except UsageError as error:
                told(error)

    in_folder("pyproject.toml", data, act)


# --- cache entries and frames -------------------------------------------------------------------


CASE = find_case(f"attention/{SMALL}")
PROGRAM = forward_profiles()["attention"].program()
VALUES_OF_CASE = Certifier(None)(PROGRAM, CASE.inputs("float64"), CASE.sizes, "float64")
ENTRY = _encoded("k", "l", VALUES_OF_CASE)


@fuzzed(changed_bytes(ENTRY))
def test_cache_entries(data: bytes) -> None:
    sealed = hashlib.sha256(data[32:]).digest() + data[32:]
    for entry in (data, sealed):
        try:
            _decoded(entry, "k")
        except (ProtocolError, EOFError, KeyError, TypeError, ValueError):
            continue


FRAME = b"".join(
    frames(
        Message(
            {
                **{"ok": True, "declaration": {}, "functions": ["attention"], "notes": []},
                **{"versions": {"mine": "1"}, "devices": ["cpu"], "environment": {}},
            },
            {"C": np.ones((2, 3)), "b": np.array([True])},
        )
    )
)


@fuzzed(st.one_of(changed_bytes(FRAME), st.binary()))
def test_frames(data: bytes) -> None:
    try:
        message = read(io.BufferedReader(io.BytesIO(data)))
    except EOFError:
        return
    except ProtocolError as error:
        told(error)
        return
    try:
        greeting(message.header, 0.0)
    except (KeyError, TypeError, ValueError):
        return
