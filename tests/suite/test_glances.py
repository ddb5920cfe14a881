"""Glances: wrong answers that say by themselves what is wrong are told at once, and others not."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

import pytest

from qkvac.api import check
from qkvac.diagnosis import search
from qkvac.tests.suite.profile_ports import write
from qkvac.tests.suite.test_declared_conventions import PORTS

FEW: Final = ("attention/normal/6x3x2", "attention/normal/33x20x7", "attention/hot/33x20x7")

HEAD: Final = """
import numpy as np

def parts(X, Wq, Wk, Wv, scale=lambda c: 1 / np.sqrt(c)):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    S = Q @ K.T
    Z = S * X.dtype.type(scale(Q.shape[1]))
    E = np.exp(Z - Z.max(axis=1, keepdims=True))
    A = E / E.sum(axis=1, keepdims=True)
    return Q, K, V, S, A, A @ V

def attention(X, Wq, Wk, Wv):
    Q, K, V, S, A, C = parts(X, Wq, Wk, Wv)
    c = np.sqrt(Q.shape[1])
"""

SLIPS: Final = {
    "    return np.zeros_like(C)": "every entry of C is 0, whatever the inputs",
    "    return {'A': A * np.nan, 'C': C * np.nan}": "every entry of A and C is NaN",
    "    return {'A': A, 'C': np.full_like(C, 0.5)}": "every entry of C is 0.5",
    "    return Q, K, V, C, A": "what comes back as A is C and what comes back as C is A",
    "    return {'Q': K, 'K': Q, 'V': V, 'C': C}": "what comes back as Q is K and what comes back",
    "    return {'Q': V, 'C': C}": "what comes back as Q is V",
    "    return {'Q': Q / X.dtype.type(c), 'K': K, 'C': C}": "Q comes back as Q / sqrt(c)",
    "    return {'scores': S / X.dtype.type(c), 'A': A, 'C': C}": "Ω comes back as Ω / sqrt(c)",
    "    return {'A': A.astype(float), 'C': C}": "A is float64 where the inputs are float32: ",
    "    return {'A': A, 'C': C.astype(np.float16)}": "C is float16 where the inputs are float32",
}

FAULTS: Final = {
    "    return {'V': X @ Wk, 'C': A @ (X @ Wk)}": "values from the key weights",
    "    Q, K, V, S, A, C = parts(X, Wk, Wq, Wv)\n    return Q, K, V, A, C": "swapped",
    "    return 2 * Q, K, V, A, C": "Q",
}
"""What is no slip of reporting, or none that is known."""


def said(folder: Path, body: str, dtype: str = "float32") -> str:
    """All diagnoses of a port of attention."""
    path = folder / "port.py"
    path.write_text(textwrap.dedent(HEAD) + body + "\n", encoding="utf-8")
    report = check(path, dtypes=[dtype], cases=FEW, workers=1)
    assert report.exit_status == 1
    return "\n".join(dict.fromkeys(r.diagnosis or "" for r in report.failures))


@pytest.mark.parametrize("body", SLIPS)
def test_a_slip_is_told_before_any_fault_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the catalogue was asked")

    monkeypatch.setattr(search, "diagnose", never)
    text = said(tmp_path, body)
    assert SLIPS[body] in text
    assert "there is no diagnosis" not in text


@pytest.mark.parametrize("body", FAULTS)
def test_what_is_no_slip_is_left_to_the_catalogue(tmp_path: Path, body: str) -> None:
    text = said(tmp_path, body)
    assert "under another's name" not in text
    assert "comes back as" not in text
    assert "whatever the inputs" not in text


def test_promotion_does_not_hide_a_wrong_formula(tmp_path: Path) -> None:
    body = """
    Q, K, V, S, A, C = parts(X, Wq, Wk, Wv, lambda c: 1 / c)
    return {"A": A.astype(float), "C": C.astype(float)}
    """
    text = said(tmp_path, body)
    assert "A and C are float64 where the inputs are float32" in text
    assert "the scale 1/c instead of 1/√c" in text
    assert "the values are right" not in text


def test_what_numpy_2_promotes_is_mended_as_it_is_said(tmp_path: Path) -> None:
    port = """
        import numpy as np
        def attention(X, Wq, Wk, Wv):
            Q, K, V = X @ Wq, X @ Wk, X @ Wv
            Z = Q @ K.T / SCALE
            E = np.exp(Z - Z.max(axis=1, keepdims=True))
            A = E / E.sum(axis=1, keepdims=True)
            return Q, K, V, A, A @ V
        """
    path = tmp_path / "port.py"
    path.write_text(textwrap.dedent(port).replace("SCALE", "np.sqrt(Q.shape[1])"))
    report = check(path, dtypes=["float32"], cases=FEW, workers=1)
    assert "X.dtype.type(…)" in str(report)
    assert "the values are right" in str(report)
    path.write_text(textwrap.dedent(port).replace("SCALE", "X.dtype.type(np.sqrt(Q.shape[1]))"))
    assert check(path, dtypes=["float32"], cases=FEW, workers=1).exit_status == 0


@pytest.mark.parametrize(("convention", "choice"), PORTS)
def test_another_convention_is_offered(tmp_path: Path, convention: str, choice: str) -> None:
    profile, text = PORTS[convention, choice]
    port = write(tmp_path, text)
    declared = f'conventions.{convention} = "{choice}"'
    report = check(port, tier="quick", profiles=[profile], dtypes=["float32"], workers=1)
    told = [r.diagnosis or "" for r in report.failures if r.last and r.status == "failed"]
    assert told
    assert all(t.startswith("the results are those of another convention") for t in told)
    assert all(f"declare {declared} if that is meant" in t for t in told)


def test_no_convention_is_offered_for_what_none_explains(tmp_path: Path) -> None:
    port = write(tmp_path, "triangle = lambda L, S: np.tri(L, S, -1, dtype=bool)")
    profile = "scaled_dot_product_attention"
    report = check(port, tier="quick", profiles=[profile], dtypes=["float32"], workers=1)
    assert report.exit_status == 1
    assert "another convention" not in str(report)
