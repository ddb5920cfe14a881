"""Where processes import from: whatever lies beside a port, what judges it is what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from qkvac.isolation.origins import NEEDED
from qkvac.targets.ports import FRAMEWORKS
from qkvac.tests.suite.engine_ports import PLAIN, SMALL

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")

WORDS = ("--profile", "attention", "--case", SMALL, "--dtype", "float32", "-n", "1")

SCRIPT = "import sys\nfrom qkvac.__main__ import main\nmain()\n"
"""What an installed command `qkvac` consists of."""

SHADOW = """
import os, sys
with open({log!r}, "a") as file:
    file.write({name!r} + " " + " ".join(sys.orig_argv) + "\\n")
raise ImportError("shadowed")
"""

ZEROS = """
import numpy as np

def attention(X, Wq, Wk, Wv):
    shapes = {"Q": Wq, "K": Wk, "V": Wv, "C": Wv}
    found = {name: np.zeros((len(X), W.shape[1]), X.dtype) for name, W in shapes.items()}
    return {**found, "A": np.zeros((len(X), len(X)), X.dtype)}
"""

PATCH = """
import sys, threading

def patch():
    while True:
        judging = sys.modules.get("qkvac.engine.judging")
        if hasattr(judging, "main"):
            break
    real = judging.judge
    def kind(question, outputs):
        values = {name: e.hi.astype(question.dtype) for name, e in question.certified.items()}
        return real(question, {name: values[name] for name in outputs})
    judging.judge = kind

threading.Thread(target=patch, daemon=True).start()
"""
"""A module that has its process judge the true values instead of what a port returned."""

HARMLESS = ("string", "random", "token", "copy", "select")


def run(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Exit status and text of a Python process that is started in a folder."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "QKVAC_CACHE": str(folder.parent / "cache"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def started_with(folder: Path, *flags: str, **environment: str) -> set[str]:
    """Modules that Python imports by itself before a module is run, or a script."""
    probe = folder / "empty"
    probe.mkdir()
    for name in ("__init__", "__main__"):
        (probe / f"{name}.py").write_text("import sys; print(*sys.modules)", encoding="utf-8")
    status, text = run(folder, *(flags or (str(probe),)), **environment)
    assert status == 0, text
    return {name.partition(".")[0] for name in text.split()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder that is the only one in its own."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def shadow(folder: Path, names: Sequence[str]) -> Path:
    """Writes a file for each name, whose import is noted and fails; the notes' file."""
    log = folder.parent / "imported"
    for name in names:
        text = SHADOW.format(name=name, log=str(log))
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return log


def test_a_port_beside_every_name_of_the_standard_library_passes(place: Path) -> None:
    log = shadow(place, sorted(sys.stdlib_module_names))
    (place / "port.py").write_text(PLAIN, encoding="utf-8")
    (place.parent / "qkvac").write_text(SCRIPT, encoding="utf-8")
    status, text = run(place, "../qkvac", "check", "port.py", *WORDS)
    assert status == 0, text
    assert "CONFORMS" in text
    assert not log.exists(), log.read_text()


@pytest.mark.parametrize("port", ["port.py", "port"])
def test_the_same_where_python_is_started_with_the_current_folder_in_its_path(
    place: Path, port: str
) -> None:
    inevitable = started_with(place.parent, "-m", "empty")
    log = shadow(place, sorted(sys.stdlib_module_names - inevitable))
    (place / "port.py").write_text(PLAIN, encoding="utf-8")
    status, text = run(place, "-m", "qkvac", "check", port, *WORDS)
    assert status == 0, text
    assert not log.exists(), log.read_text()


def test_the_same_with_the_folder_in_pythonpath(place: Path) -> None:
    (place.parent / "nowhere").mkdir()
    inevitable = started_with(place.parent, "-m", "empty", PYTHONPATH=str(place.parent / "nowhere"))
    log = shadow(place, sorted(sys.stdlib_module_names - inevitable))
    (place / "port.py").write_text(PLAIN, encoding="utf-8")
    environment = {"PYTHONPATH": str(place)}
    assert run(place.parent, "-m", "empty", **environment)[0] == 0
    unasked = {line.split()[0] for line in log.read_text().splitlines()} if log.exists() else set()
    log.unlink(missing_ok=True)
    status, text = run(place.parent, "-m", "qkvac", "check", "place/port.py", *WORDS, **environment)
    assert status == 0, text
    asked = {line.split()[0] for line in log.read_text().splitlines()} if log.exists() else set()
    assert asked <= unasked, "of other systems, which Python asks for as it starts"


def test_an_error_is_told_beside_every_name_of_the_standard_library(place: Path) -> None:
    log = shadow(place, sorted(sys.stdlib_module_names))
    text = PLAIN + "def attention(*arrays): raise ValueError('no such luck')\n"
    (place / "port.py").write_text(text, encoding="utf-8")
    (place.parent / "qkvac").write_text(SCRIPT, encoding="utf-8")
    status, text = run(place, "../qkvac", "check", "port.py", *WORDS)
    assert status == 1, text
    assert "no such luck" in text
    assert not log.exists(), log.read_text()


def test_outputs_are_graded_beside_shadows(place: Path) -> None:
    inevitable = started_with(place.parent, "-m", "empty")
    folders = [str(place.parent / name) for name in ("inputs", "outputs")]
    status, text = run(place, "-m", "qkvac", "export", folders[0], *WORDS[:6])
    assert status == 0, text
    os.mkdir(folders[1])
    log = shadow(place, sorted(sys.stdlib_module_names - inevitable))
    status, text = run(place, "-m", "qkvac", "grade", *folders, *WORDS)
    assert status == 1, text
    assert "missing" in text
    assert not log.exists(), log.read_text()


def test_zeros_do_not_pass_beside_a_module_that_patches_the_judge(place: Path) -> None:
    (place / "port.py").write_text(ZEROS, encoding="utf-8")
    for name in HARMLESS:
        (place / f"{name}.py").write_text(PATCH, encoding="utf-8")
    for environment in ({}, {"PYTHONPATH": str(place)}):
        status, text = run(place, "-m", "qkvac", "check", "port.py", *WORDS, **environment)
        assert status == 1, text
        assert "deviates from the spec in Q" in text


def test_the_patch_would_have_zeros_pass_in_a_judge_that_imports_it(place: Path) -> None:
    (place / "port.py").write_text(ZEROS, encoding="utf-8")
    (place / "patch.py").write_text(PATCH, encoding="utf-8")
    program = (
        "import sys, patch, qkvac, qkvac.engine.engine\n"
        "from qkvac.engine.judging import Judge, Judges\n"
        "Judges.__init__ = lambda self, *given: setattr(self, 'one', Judge(None))\n"
        "Judges.start = Judges.close = lambda self: None\n"
        "Judges.submit = lambda self, task: self.one.submit(task)\n"
        f"report = qkvac.check('port.py', profiles=['attention'], cases=[{SMALL!r}],"
        " dtypes=['float32'])\n"
        "print({r.status for r in report.results if r.cell.quantity == 'C'})"
    )
    status, text = run(place, "-c", program)
    assert (status, text.strip()) == (0, "{'passed'}")


def test_what_a_judge_imports_can_be_found_where_nothing_is_installed(place: Path) -> None:
    from qkvac.engine.judging import JudgeProcess

    judge = JudgeProcess(None)
    try:
        others = set(judge.modules()) - sys.stdlib_module_names - started_with(place)
    finally:
        judge.close()
    packages = {name for name in others if getattr(__import__(name), "__path__", None)}
    assert {"qkvac", "numpy"} <= packages
    assert packages <= {*NEEDED} | FRAMEWORKS
