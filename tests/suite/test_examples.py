"""The example ports in other languages: each is built, and passes a check."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvac.cells import Result
from qkvac.cli.exporting import export
from qkvac.engine.engine import Engine
from qkvac.isolation.commands import text_of
from qkvac.spec.cases.catalogue import cases
from qkvac.subjects.selection import Options, Selection

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COMPILER = shutil.which("gcc") or shutil.which("cc")
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror")

pytestmark = pytest.mark.skipif(
    not EXAMPLES.exists(), reason="needs a checkout, not an installed package"
)


def c_port(folder: Path, *options: str) -> list[str]:
    """Builds the port in C; the words of its command."""
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    program = folder / "attention"
    source = EXAMPLES / "c" / "attention.c"
    built = subprocess.run(
        [COMPILER, "-O2", *WARNINGS, *options, "-o", program, source, "-lm"],
        capture_output=True,
        text=True,
    )
    if options and built.returncode:
        pytest.skip(f"the compiler lacks {' '.join(options)}")
    assert built.returncode == 0, built.stderr
    shutil.copy(EXAMPLES / "c" / "port.toml", folder)
    return [str(program)]


def javascript_port(folder: Path) -> list[str]:
    """The words of the command of the port in JavaScript."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    return [node, str(EXAMPLES / "javascript" / "attention.mjs")]


PORTS: dict[str, Callable[[Path], list[str]]] = {"c": c_port, "javascript": javascript_port}


@pytest.mark.parametrize("language", PORTS)
def test_a_port_passes(tmp_path: Path, language: str) -> None:
    results = list[Result]()
    words = PORTS[language](tmp_path)
    with Engine(Selection(port=text_of(words)), Options()) as engine:
        engine.run(results.append)
    assert [r.line for r in results if not r.ok] == []
    passed = {(r.cell.dtype, r.cell.case) for r in results if r.status == "passed"}
    for case in cases():
        if case.tier == "default" and case.needs <= {"empty"}:
            for dtype in ("float64", "float32"):
                assert dtype not in case.dtypes or (dtype, case.id) in passed
    assert {r.status for r in results} <= {"passed", "unsupported", "indecisive"}
    assert sum(engine.starts.values()) == 2


@pytest.mark.parametrize("language", PORTS)
def test_what_a_port_cannot_read_is_one_line(tmp_path: Path, language: str) -> None:
    words = PORTS[language](tmp_path)
    inputs, outputs = tmp_path / "inputs", tmp_path / "outputs"
    export(inputs, Selection(cases=("attention/normal/6x3x2",), dtypes=("float16",)), False)
    outputs.mkdir()
    done = subprocess.run([*words, inputs, outputs], capture_output=True, text=True)
    assert done.returncode == 1
    assert "neither F32 nor F64" in done.stderr
    assert list(outputs.iterdir()) == []


def test_the_port_in_c_stays_within_its_memory(tmp_path: Path) -> None:
    words = c_port(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover")
    inputs, outputs = tmp_path / "inputs", tmp_path / "outputs"
    declared = ('supports=["empty"]', 'dtypes=["float32", "float64"]')
    export(inputs, Selection(profiles=("attention",), declare=declared), False)
    outputs.mkdir()
    subprocess.run([*words, inputs, outputs], check=True)
    names = {path.name for path in inputs.glob("*.safetensors")}
    assert {path.name for path in outputs.iterdir()} == names
    for name in sorted(names)[:3]:
        path = inputs / name
        path.write_bytes(path.read_bytes()[:-8])
        done = subprocess.run([*words, inputs, outputs], capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert "Sanitizer" not in done.stderr
        path.unlink()
