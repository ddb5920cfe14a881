"""The distribution: what is in it, how it is run, and that its files agree with each other.

The wheel is built from a copy of the checkout, without a network, with the installed setuptools.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import qkvac
from qkvac.tests.suite.conftest import needs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDERS = {"tool": "qkvac", "spec": "qkvac/spec", "backends": "qkvac/backends"}
FRAMEWORKS = ("torch", "jax", "tensorflow")
FILES = ("pyproject.toml", "README.md", "LICENSE")
BESIDES = ("CHANGELOG.md", "MANIFEST.in", "action.yml", "conftest.py", "constraints.txt", "tox.ini")
"""Files of the checkout that its tests need, and a distribution of the sources has, too."""

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="needs a checkout, not an installed package"
)

BLOCKER = f"""
import importlib.machinery

_find = importlib.machinery.PathFinder.find_spec


def _without_frameworks(cls, name, path=None, target=None):
    return None if name in {FRAMEWORKS!r} else _find(name, path, target)


importlib.machinery.PathFinder.find_spec = classmethod(_without_frameworks)
"""


def test_what_a_helper_imports_is_needed_by_its_tests() -> None:
    """Without the extra `dev` those tests are left out, and collecting goes on."""
    folder = ROOT / "tests" / "suite"
    users = [
        path
        for path in folder.glob("test_*.py")
        if "\nfrom qkvac.tests.suite.multiprecision import" in path.read_text(encoding="utf-8")
    ]
    assert users
    assert all(needs(path, ("mpmath",)) for path in users)
    assert not needs(folder / "test_package.py", ("mpmath",))


def run(
    words: Sequence[str], folder: Path, *paths: Path, status: int = 0, **environment: str
) -> str:
    """What a command prints, run in `folder` with `paths` in front of Python's own."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = subprocess.run(
        words, cwd=folder, env=inherited | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, "\n".join((done.stdout + done.stderr).splitlines()[-40:])
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once."""
    pytest.importorskip("setuptools", minversion="77")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in (*FOLDERS, "tests"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in FILES:
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    run([*pip, "--no-index", "--wheel-dir", str(built), str(source)], built)
    (found,) = built.glob("qkvac-*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the unpacked wheel, as an installation would."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def alone(installed: Path, tmp_path: Path) -> tuple[Path, ...]:
    """Paths with the wheel's code and without any framework."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    return (tmp_path, installed)


# --- the wheel ----------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_code_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {
        f"qkvac/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "tests").rglob("*.py")
        if "benchmarks" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {"qkvac/py.typed", "qkvac/records/known-deviations.toml"} <= found
    assert any(name.endswith(".schema.json") for name in found)


def test_the_sources_are_distributed_with_what_their_tests_need(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.html", "*.gz")
    for folder in (*FOLDERS, "tests", "docs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in (*FILES, *BESIDES):
        shutil.copy(ROOT / file, source)
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    run([sys.executable, "-c", build], source)
    (found,) = tmp_path.glob("qkvac-*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*FILES, *BESIDES} <= names
    for folder in (*FOLDERS, "tests", "docs"):
        files = (path for path in (source / folder).rglob("*") if path.is_file())
        left_out = {path.relative_to(source).as_posix() for path in files} - names
        assert not [name for name in left_out if "egg-info" not in name]


def test_the_metadata_names_extras_and_entry_points(installed: Path) -> None:
    (info,) = installed.glob("qkvac-*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    assert f"Version: {qkvac.__version__}" in metadata
    for extra in (*FRAMEWORKS, "all", "dev"):
        assert f"Provides-Extra: {extra}" in metadata
    core = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    core = [line for line in core if "extra ==" not in line]
    assert core
    assert not [line for line in core for framework in FRAMEWORKS if framework in line]
    entries = (info / "entry_points.txt").read_text()
    assert "[pytest11]\nqkvac = qkvac.plugin" in entries
    assert "qkvac = qkvac.__main__:main" in entries
    assert (info / "licenses" / "LICENSE").exists()


def test_the_wheel_runs_on_numpy_alone(alone: tuple[Path, ...], tmp_path: Path) -> None:
    where = run([sys.executable, "-c", "import qkvac; print(qkvac.__file__)"], tmp_path, *alone)
    assert where.startswith(str(alone[1]))
    command = [sys.executable, "-m", "qkvac", "run", "--case", "attention/worked-example/*"]
    printed = run(command, tmp_path, *alone)
    assert "numpy/eager" in printed
    assert "CONFORMS" in printed
    for framework in FRAMEWORKS:
        assert f"{framework}/" not in printed


def test_the_wheels_own_tests_run_from_anywhere(alone: tuple[Path, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--qkvac-dtype", "float32", "--pyargs"]
    listed = run([*command, "qkvac.tests", "--collect-only"], tmp_path, *alone)
    assert "suite/test_equations.py::" in listed
    assert "conformance/test_matrix.py::test_identical[numpy/eager@cpu-" in listed
    assert "test_identical[torch/" not in listed
    chosen = ["qkvac.tests.suite.test_scalar", "qkvac.tests.conformance"]
    cases = ["--qkvac-backend", "numpy", "--qkvac-case", "worked-example/*"]
    assert " passed" in run([*command, *chosen, *cases], tmp_path, *alone)


# --- the checkout -------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [False, True], ids=["pytest", "python -m pytest"])
def test_the_checkout_runs_its_tests(module: bool) -> None:
    command = Path(sys.executable).parent / "pytest"
    if not module and not command.exists():
        pytest.skip("pytest is not installed as a command beside this Python")
    words = [sys.executable, "-m", "pytest"] if module else [str(command)]
    # All of the tests once, and of the matrix a part, are enough.
    part = ["tests/suite/test_package.py", "tests/conformance"] if module else []
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "--qkvac-backend", "numpy"]
    options += ["--qkvac-dtype", "float32"]
    listed = run([*words, *options, *part], ROOT)
    assert "tests/suite/test_package.py::" in listed
    assert "tests/conformance/test_matrix.py::test_identical[numpy/eager@cpu-" in listed
    assert "tests/benchmarks" not in listed


def test_benchmarks_run_when_they_are_asked_for() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    assert "tests/benchmarks/" in run([*words, "tests/benchmarks"], ROOT)


def test_the_package_imports_nothing_until_it_is_used() -> None:
    code = (
        "import sys; before = set(sys.modules); import qkvac; "
        "print([n for n in set(sys.modules) - before if 'editable' not in n])"
    )
    printed = run([sys.executable, "-c", code], ROOT)
    loaded = {name.partition(".")[0] for name in re.findall(r"'([^']+)'", printed)}
    assert loaded - sys.stdlib_module_names == {"qkvac"}


# --- files that must agree ----------------------------------------------------------------------


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(text("pyproject.toml"))["project"]
    return found


def test_the_version_is_the_same_everywhere() -> None:
    assert project()["version"] == qkvac.__version__
    assert f"## [{qkvac.__version__}]" in text("CHANGELOG.md")


def test_constraints_pin_every_direct_dependency_within_its_range() -> None:
    lines = [line for line in text("constraints.txt").splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert all(name == canonicalize_name(name) for name in pins)
    assert list(pins) == sorted(pins)
    declared = project()
    extras = declared["optional-dependencies"]
    assert isinstance(extras, dict)
    core = declared["dependencies"]
    assert isinstance(core, list)
    for line in [*core, *(line for extra in extras.values() for line in extra)]:
        requirement = Requirement(line)
        if requirement.name == "qkvac" or (
            requirement.marker and not requirement.marker.evaluate()
        ):
            continue
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, line


def test_the_automation_runs_the_readmes_own_command() -> None:
    script = text(".ci/run")
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script
    assert os.access(ROOT / ".ci/run", os.X_OK)
    tests = [line for line in script.splitlines() if line.startswith(".venv/bin/pytest")]
    assert script.rstrip().endswith(tests[-1])
    install = ".venv/bin/pip install --quiet -c constraints.txt -e '.[libraries,dev]'"
    assert install in script
    commands = [install.replace("--quiet ", ""), *tests]
    assert f"python3.11 -m venv .venv && {' && '.join(commands)}\n" in text("README.md")


def test_tox_has_an_environment_for_every_purpose() -> None:
    if find_spec("tox") is None:
        pytest.skip("tox is not installed")
    listed = run([sys.executable, "-m", "tox", "list", "--no-desc"], ROOT).split()
    assert {"numpy", *FRAMEWORKS, "all", "suite", "lint", "bench"} - {"numpy"} <= set(listed)


def test_every_schema_and_data_file_is_well_formed() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).glob("*.json"):
            json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / folder).glob("*.toml"):
            tomllib.loads(path.read_text(encoding="utf-8"))


def lowest(pins: Iterable[str], requirement: Requirement) -> bool:
    """Whether some pin is the lower bound of a requirement, and none lies below it."""
    bound = next(s.version for s in requirement.specifier if s.operator == ">=")
    versions = [
        Version(pin.version)
        for other in map(Requirement, pins)
        if canonicalize_name(other.name) == canonicalize_name(requirement.name)
        for pin in other.specifier
    ]
    exact = [version for version in versions if version in SpecifierSet(f"=={bound}.*")]
    return bool(exact) and min(versions) >= Version(bound)


def test_lower_bounds_are_those_of_the_matrix() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounded = [*table["dependencies"]]
    bounded += [line for name in FRAMEWORKS for line in table["optional-dependencies"][name]]
    pins = re.findall(
        r"^ +[\w.]+: ([\w.-]+==[\d.]+)$", (ROOT / "tox.ini").read_text(), re.MULTILINE
    )
    assert [line for line in bounded if not lowest(pins, Requirement(line))] == []


@pytest.mark.parametrize("line", ["numpy>=1.25", "numpy>=1.27", "ml_dtypes>=0.4", "absent>=1"])
def test_a_bound_that_no_environment_has_is_found(line: str) -> None:
    assert lowest(["numpy==1.26.0", "ml_dtypes==0.3.1"], Requirement("numpy>=1.26"))
    assert not lowest(["numpy==1.26.0", "ml_dtypes==0.3.1"], Requirement(line))
