"""The guide to porting: its files are written, its commands run, its outputs looked for.

A block of Python that begins with `# name.py` is that file. A command exits with 0, or with the
status that a comment behind it names. Lines of a block of text are lines of the output of the
command before it, as they are. What the README shows of a port is the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "porting.md"
README = ROOT / "README.md"

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"# exit status (\d)$")

pytestmark = pytest.mark.skipif(
    not GUIDE.exists(), reason="needs a checkout, not an installed package"
)

NEEDS = {"cc ": shutil.which("cc"), "my_model": find_spec("onnx")}
"""What a command needs, by what it contains."""


def blocks(file: Path = GUIDE) -> Iterator[tuple[str, str]]:
    """Language and text of a file's blocks, in order."""
    return ((found[1], found[2]) for found in BLOCK.finditer(file.read_text(encoding="utf-8")))


def missing() -> str:
    """What the guide needs and this machine lacks."""
    text = GUIDE.read_text(encoding="utf-8") if GUIDE.exists() else ""
    return ", ".join(name.strip() for name, here in NEEDS.items() if name in text and not here)


def execute(line: str, folder: Path) -> str:
    """What a command prints; its exit status has to be the one that is named."""
    expected = int(found[1]) if (found := STATUS.search(line)) else 0
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": tools},
        capture_output=True,
        text=True,
    )
    assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(bool(missing()), reason=f"the guide needs {missing()}")
def test_the_guide_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "qkvac").symlink_to(ROOT)
    folder = tmp_path / "work"
    folder.mkdir()
    output, outputs = "", list[str]()
    counts = dict.fromkeys(("sh", "python", "text"), 0)
    for language, text in blocks():
        counts[language] += 1
        if language == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "sh":
            for line in text.splitlines():
                output = execute(line, folder)
        else:
            printed = [line.rstrip() for line in output.splitlines()]
            for line in text.splitlines():
                assert line in printed, f"{line}\n{output}"
                outputs.append(output)
    assert min(counts.values()) > 3
    shown = [text for language, text in blocks(README) if language == "text"]
    assert shown
    for text in shown:
        assert any(text in output for output in outputs)


def test_the_port_of_the_readme_is_the_first_of_the_guide() -> None:
    (port,) = (text for _, text in blocks(README) if "def attention(X" in text)
    first = next(text for language, text in blocks() if language == "python")
    assert f"# my_port.py\n{port}" == first


def test_the_guide_names_every_status_and_grade() -> None:
    from qkvac.cells import Status

    text = GUIDE.read_text(encoding="utf-8")
    for word in (*Status.ALL, "exact", "faithful", "conforming", "suspicious"):
        assert f"| {word} |" in text


def test_the_guide_names_every_function_word_and_convention() -> None:
    from qkvac.spec.attention import CONVENTIONS
    from qkvac.targets.declaration import SUPPORTS
    from qkvac.targets.ports import known_functions

    text = GUIDE.read_text(encoding="utf-8")
    for name, function in known_functions().items():
        keywords = ["*", *function.keywords] if function.keywords else []
        call = f"{name}({', '.join([*function.positional, *keywords])})"
        assert f"| `{call}` | {', '.join(function.returns)} |" in text
    for word in SUPPORTS:
        assert f"| {word} |" in text
    for convention in CONVENTIONS.values():
        assert f"| {convention.name} | {' · '.join(convention.options)}" in text


def test_the_guide_names_every_key_of_a_declaration() -> None:
    file = resources.files("qkvac.targets") / "declaration.schema.json"
    text = GUIDE.read_text(encoding="utf-8")
    for key in json.loads(file.read_text(encoding="utf-8"))["properties"]:
        assert re.search(rf"`{key}\b", text), key


def test_links_of_the_guide_lead_somewhere() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    titles = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in titles, target
        else:
            assert (GUIDE.parent / target).exists(), target
