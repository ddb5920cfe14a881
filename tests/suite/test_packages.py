"""Backends that other packages register: listed, run like ours, and harmless when broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from qkvac.tests.suite.engine_ports import MAIN, SMALL

ADAPTER = """
import numpy as np

QKVAC = {
    "name": "mine",
    "modes": ["eager", "fast"],
    "dtypes": ["float64", "float32"],
    "arithmetic": {"softmax": "shifted, divided"},
    "supports": "all",
}

def unavailable(mode):
    return "needs a faster machine" if mode == "fast" else None

class Adapter:
    def attention(self, X, Wq, Wk, Wv):
        Q, K, V = X @ Wq, X @ Wk, X @ Wv
        S = Q @ K.T / np.sqrt(Q.shape[1]).astype(X.dtype)
        E = np.exp(S - S.max(axis=1, keepdims=True))
        A = E / E.sum(axis=1, keepdims=True)
        return {"Q": Q, "K": K, "V": V, "A": A, "C": A @ V}

    def evidence(self):
        return {"library": "NumPy"}

def open(mode, device):
    return Adapter()
"""


class Site:
    """A folder of installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, entries: Mapping[str, str], **modules: str) -> None:
        """A package with modules, by name, and entry points of the group."""
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        info = self.folder / f"{distribution}-1.5.dist-info"
        info.mkdir()
        header = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        (info / "METADATA").write_text(header, encoding="utf-8")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        text = "\n".join(["[qkvac.backends]", *lines, ""])
        (info / "entry_points.txt").write_text(text, encoding="utf-8")

    def command(self, *words: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a command where the packages are installed."""
        paths = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")]).strip(":")
        done = subprocess.run(
            [sys.executable, "-m", "qkvac", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)


BROKEN = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "exits": ("import os; os._exit(3)", "exit status 3"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "declares-nothing": ("x = 1", "no attribute 'QKVAC'"),
    "declares-badly": ("QKVAC = {'dtype': []}\ndef open(m, d): pass", "did you mean 'dtypes'"),
    "opens-nothing": ("QKVAC = {}", "no function `open`"),
}


def test_a_package_is_listed_and_run(site: Site) -> None:
    site.install("mine-for-qkvac", {"mine": "mine_adapter"}, mine_adapter=ADAPTER)
    status, out, err = site.command("backends")
    assert (status, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("mine/")}
    assert rows["mine/eager"].split()[1:] == ["1.5", "float64", "float32", "cpu", "runs"]
    assert "needs a faster machine" in rows["mine/fast"]

    words = ("run", "-b", "mine", "-b", "numpy", "--case", f"attention/{MAIN}", "--format", "json")
    status, out, err = site.command(*words)
    assert (status, err) == (0, "")
    results = json.loads(out)["results"]
    assert {r["status"] for r in results if r["cell"].startswith("mine/fast")} == {"skipped"}
    mine = [r for r in results if r["cell"].startswith("mine/eager")]
    assert {r["status"] for r in mine} - {"not reported"} == {"passed"}


def test_broken_packages_leave_the_rest_alone(site: Site) -> None:
    site.install("mine-for-qkvac", {"mine": "mine_adapter"}, mine_adapter=ADAPTER)
    modules = {f"broken_{i}": text for i, (text, _) in enumerate(BROKEN.values())}
    names = {name: f"broken_{i}" for i, name in enumerate(BROKEN)}
    site.install("broken", names, **modules)
    more = {"numpy": "broken_0", "absent": "no_such_module", "a/b": "broken_0", "value": "a:b:c"}
    site.install("more", more)
    site.install("same", {"mine": "broken_0"})
    status, out, _ = site.command(
        "run", "--case", f"attention/{SMALL}", "-b", "mine/eager", "--dtype", "float32"
    )
    assert status == 0
    assert "mine/eager@cpu computes the same attention" in out
    status, out, _ = site.command("backends", "--format", "json")
    assert status == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["numpy"]["installed"]
    assert rows["mine"]["installed"]
    expected = {name: words for name, (_, words) in BROKEN.items()} | {
        "numpy (more)": "is that of a backend of qkvac",
        "absent": "No module named 'no_such_module'",
        "a/b (more)": "may hold letters",
        "value (more)": "is not the name of a module",
        "mine (same)": "taken by mine-for-qkvac",
    }
    assert rows.keys() >= expected.keys()
    for name, words in expected.items():
        assert not rows[name]["installed"]
        (reason,) = rows[name]["modes"].values()
        assert words in reason
        assert len(reason.splitlines()) == 1


def test_a_broken_package_is_a_line_of_the_run(site: Site) -> None:
    site.install("broken", {"broken": "broken_module"}, broken_module="1 / 0")
    status, _, err = site.command("run", "-b", "broken")
    assert status == 2
    line = "qkvac: broken of broken cannot be used: ZeroDivisionError: division by zero\n"
    assert err == line
    status, _, err = site.command("run", "-b", "brken")
    assert "did you mean broken?" in err


def test_an_adapter_that_breaks_later_is_an_error_of_its_own_cells(site: Site) -> None:
    opening = ADAPTER.replace("return Adapter()", "raise OSError('no licence')")
    counting = ADAPTER.replace("def evidence", "def budget(self, *a): return {}\n    def evidence")
    site.install(
        "two",
        {"opening": "opening_adapter", "counting": "counting_adapter"},
        opening_adapter=opening,
        counting_adapter=counting,
    )
    words = ("run", "-b", "opening/eager", "-b", "counting/eager", "--dtype", "float32")
    status, out, err = site.command(*words, "--case", f"attention/{MAIN}", "--format", "json")
    assert (status, err) == (1, "")
    results = json.loads(out)["results"]
    found = {r["reason"] for r in results if r["cell"].startswith("opening")}
    assert found == {"OSError: no licence"}
    bad = [r for r in results if r["cell"].startswith("counting") and r["status"] == "error"]
    assert [r["cell"].rpartition("-")[2] for r in bad] == ["budget"]


def test_one_that_needs_something_else_says_what(site: Site) -> None:
    text = ADAPTER.replace('"name"', '"requires": "no-such-distribution", "name"')
    site.install("mine-for-qkvac", {"mine": "mine_adapter"}, mine_adapter=text)
    status, _, err = site.command("run", "-b", "mine")
    assert (status, err) == (2, "qkvac: no-such-distribution is not installed\n")
