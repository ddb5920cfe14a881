"""The pytest plugin: options, and the hooks of a run that includes the matrix.

An installed plugin is loaded into every pytest run of its environment. So this module imports
nothing but pytest, and registers its hooks only where the tests of this suite are asked for: in
a checkout of it, or through the installed package `qkvac.tests`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qkvac.pytest_matrix import ROSTER

if TYPE_CHECKING:
    from qkvac.pytest_matrix.matrix import Matrix

NAME = "qkvac-matrix"
"""The name under which the hooks of the matrix are registered."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qkvac", "attention conformance (pytest --pyargs qkvac.tests)")

    def option(name: str, text: str, **settings: Any) -> None:
        dest = f"qkvac_{name.replace('-', '_')}"
        group.addoption(f"--qkvac-{name}", dest=dest, help=text, **settings)

    several: dict[str, Any] = {"action": "append", "default": []}
    option("backend", "run this backend, or one mode of it: torch, torch/compile", **several)
    option("dtype", "run this dtype: float64, float32, bfloat16, float16", **several)
    option("device", "run on this device: cpu, cuda, cuda:1, or all that there are: all", **several)
    option("profile", "run this profile: attention", **several)
    option("case", "run the cases whose id matches GLOB", metavar="GLOB", **several)
    option("port", "test this port (file.py, package.module, model.onnx), not the backends")
    option("spec", "a Python file that declares profiles of your own", metavar="FILE", **several)
    option("declare", "declare KEY=VALUE of the port, in dotted TOML", **several)
    option("tier", "which cases to run", choices=("quick", "default", "full"), default="default")
    option("seeds", "further draws of every random case", type=int, default=0, metavar="N")
    option("secret", "draw from fresh entropy", action="store_true", default=False)
    option("entropy", "draw from this: the same again", default="", metavar="SEED")
    option("strict", "fail on suspicious results too", action="store_true", default=False)
    option("record", "write a record of the run to FILE (JSON Lines)", metavar="FILE")
    option("known-deviations", "add the known deviations in FILE", metavar="FILE")
    option("timeout", "seconds a case may take", type=float, metavar="SECONDS", default=60.0)
    option("threads", "threads of a tested process", type=int, metavar="N", default=1)
    option("shard", "run only part I of K, alike in size: 2/4", metavar="I/K")
    option("memory", "memory a tested process may use: 4G", metavar="SIZE")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if _own(config) if worker is None else ROSTER in worker:
        register(config)
        return
    given = [word for word in config.invocation_params.args if word.startswith("--qkvac-")]
    if given:
        raise pytest.UsageError(
            f"{given[0].partition('=')[0]} has no effect here: no test of qkvac is asked for; "
            "add --pyargs qkvac.tests.conformance"
        )


def register(config: pytest.Config) -> Matrix:
    """The hooks of the matrix, registered on first use."""
    found: Matrix | None = config.pluginmanager.get_plugin(NAME)
    if found is None:
        from qkvac.pytest_matrix.matrix import Matrix

        found = Matrix(config)
        config.pluginmanager.register(found, NAME)
    return found


def _own(config: pytest.Config) -> bool:
    """Whether the run asks for tests of this suite."""
    root = config.rootpath
    if (root / "spec" / "attention.py").exists() and (root / "tests" / "conformance").exists():
        return True
    spec = importlib.util.find_spec("qkvac.tests")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for argument in config.args:
        name = argument.partition("::")[0].partition("[")[0]
        if config.option.pyargs and name.partition(".")[0] == "qkvac":
            return True
        path = (config.invocation_params.dir / name).resolve()
        if any(path.is_relative_to(Path(folder).resolve()) for folder in folders):
            return True
    return False
