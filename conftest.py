"""Says what to do when pytest is run in a checkout that is not installed, and pins threads."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("qkvac") is None:
    raise pytest.UsageError("qkvac is not installed; run: pip install -e '.[dev]'")

# The judge computes in the process of pytest; beside another worker, a second thread only waits.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
