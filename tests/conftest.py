"""Benchmarks run when they are asked for by name, since they need a quiet machine."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = any("benchmarks" in argument for argument in config.args)
    return True if collection_path.name == "benchmarks" and not asked else None
