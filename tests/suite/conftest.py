"""Leaves out the tests whose libraries are not installed, and says so.

The suite's own tests compare with independent libraries and generate inputs; those come with
`pip install 'qkvac[dev]'`. An installed qkvac without them still has tests to run.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

LIBRARIES = [name for name in ("hypothesis", "mpmath", "gmpy2") if find_spec(name) is None]
"""Libraries of the extra `dev` that are missing."""

if find_spec("hypothesis"):
    from hypothesis import settings

    # The same inputs in every run; --hypothesis-profile default draws new ones.
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.load_profile("repeatable")

HELPERS = re.compile(r"^from qkvac\.tests\.suite(?:\.(\w+))? import (\([^)]*\)|.+)$", re.MULTILINE)
"""What a test takes from its neighbours: from a module, or modules themselves."""


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all tests and what they start, in all processes of pytest; it starts empty."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKVAC_CACHE", str(folder / "qkvac-cache"))
        yield


@pytest.fixture(autouse=True)
def _no_mistake_is_hidden(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What costs users a line of the log, a diagnosis that goes wrong, costs us the test."""
    yield
    found = [r for r in caplog.get_records("call") if r.name.startswith("qkvac")]
    assert not [r.getMessage() for r in found if r.levelno >= logging.ERROR]


def pytest_report_header() -> list[str]:
    if not LIBRARIES:
        return []
    return [f"qkvac: tests left out for want of {', '.join(LIBRARIES)} (pip install 'qkvac[dev]')"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not LIBRARIES or collection_path.suffix != ".py":
        return None
    return True if needs(collection_path, tuple(LIBRARIES)) else None


@cache
def needs(module: Path, libraries: tuple[str, ...]) -> bool:
    """Whether a test, or a helper that it imports, imports one of some libraries."""
    text = module.read_text(encoding="utf-8")
    if re.search(rf"^(?:import|from) (?:{'|'.join(libraries)})\b", text, re.MULTILINE):
        return True
    names = {
        name for one, several in HELPERS.findall(text) for name in NAME.findall(one or several)
    }
    helpers = (module.parent / f"{name}.py" for name in names if name != module.stem)
    return any(needs(helper, libraries) for helper in helpers if helper.is_file())


NAME = re.compile(r"\w+")
