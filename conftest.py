"""Says what to do when pytest is run in a checkout that is not installed."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("qkvac") is None:
    raise pytest.UsageError("qkvac is not installed; run: pip install -e '.[dev]'")
