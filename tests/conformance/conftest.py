"""Gives the matrix to its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qkvac import plugin

if TYPE_CHECKING:
    from qkvac.pytest_matrix.matrix import Matrix


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix:
    """The matrix of this run, which owns the processes of what is tested."""
    return plugin.register(pytestconfig)
