"""The matrix: backend × mode × device × dtype × case × quantity.

Every test is a cell of the engine. It passes when the backend's output is identical to the spec
in the sense of the clauses E, L, B and M; see `qkvac.spec.verdicts.verdict`. A backend whose
framework is not installed has no cells.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qkvac import plugin
from qkvac.cells import Cell
from qkvac.pytest_matrix.matrix import PROPERTY, Matrix, label, to_property


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cells = plugin.register(metafunc.config).cells
    metafunc.parametrize("cell", [pytest.param(cell, id=label(cell)) for cell in cells])


def test_identical(
    cell: Cell, matrix: Matrix, record_property: Callable[[str, object], None]
) -> None:
    result = matrix.result(cell)
    record_property(PROPERTY, to_property(result))
    matrix.settle(result)
