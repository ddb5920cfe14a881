"""The diagnosis of ports of somebody's own equations: named by the equation that they compute."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import qkvac
from qkvac.diagnosis import evidence
from qkvac.spec.registry import choose
from qkvac.spec.verdicts import clauses

VARIANTS: Final = Path(__file__).parents[2] / "docs" / "examples" / "variants"
CROSS: Final = "weighted_cross_attention"
TWO: Final = "differential_attention"
SIGMOID: Final = "sigmoid_attention"
FOLDERS: Final = {CROSS: "cross", TWO: "differential", SIGMOID: "sigmoid"}
ONE: Final = "softmax(Q1 @ K1.T / sqrt(c), axis=1)"


@dataclass(frozen=True)
class Slip:
    """A line of a right port, what is written instead, and what has to be said about it."""

    profile: str
    right: str
    wrong: str
    words: str
    """"" for what no single change of an equation explains."""


SLIPS: Final = (
    Slip(CROSS, "Z @ Wk, Z @ Wv", "Z @ Wk, Z @ Wk", "the key weights for the value"),
    Slip(CROSS, "Q.shape[-1])))", "K.shape[-2])))", "1/√m instead of 1/√c"),
    Slip(CROSS, "A @ V\n", "A @ K\n", "A K for C"),
    Slip(
        f"{CROSS}_gradients",
        "(A * dA).sum(axis=-1, keepdims=True))\n    dS = dS",
        "(A * dA).mean(axis=-1, keepdims=True))\n    dS = dS",
        "the gradient with dS = A * (dA - sum(A * dA, axis=1) / m)",
    ),
    Slip(f"{CROSS}_gradients", "A * (dA - (A", "dA * (dA - (A", "dS = dA * (dA - sum("),
    Slip(f"{CROSS}_gradients", "(Z, dV)", "(Z, dK)", "dWv = sum_to(Z.T @ dK, Wv)"),
    Slip(
        f"{CROSS}_gradients",
        "dK @ Wk.T + dV @ Wv.T",
        "dV @ Wv.T - dK @ Wk.T",
        "dZ = dV @ Wv.T - dK @ Wk.T",
    ),
    Slip(
        f"{CROSS}_gradients",
        "dK @ Wk.T + dV @ Wv.T",
        "dV @ Wv.T",
        "the path through the key left out of dZ",
    ),
    Slip(TWO, "A1 - lam * A2\n    return", "A1 + lam * A2\n    return", f"A = {ONE} + lam * "),
    Slip(TWO, "A1 - lam * A2\n    return", "A1 - A2\n    return", f"A = {ONE} - softmax("),
    Slip(TWO, "X @ W2, X @ U2\n", "X @ W1, X @ U2\n", "Q2 = X @ W1"),
    Slip(TWO, "X @ W2, X @ U2\n", "X @ W2, X @ U1\n", "K2 = X @ U1"),
    Slip(f"{TWO}_gradients", "dlam = -(A2", "dlam = (A2", "dlam = "),
    Slip(f"{TWO}_gradients", "(A2, -lam * dA)", "(A2, lam * dA)", "dA2 = "),
    Slip(
        SIGMOID, "turned(K) / root + X", "turned(K) / root - X", "A = sigmoid(Ω / sqrt(c) - bias)"
    ),
    Slip(f"{SIGMOID}_gradients", "dA * A * (1 - A)", "dA * A", "the gradient with dS = dA * A"),
    Slip(SIGMOID, "return Q, K, V, A, A @ V", "return Q, K, V, A, np.abs(A @ V)", ""),
    Slip(TWO, "return A, A @ V", "return A, np.clip(A, 0, 1) @ V", ""),
    Slip(CROSS, "return Q, K, V, A, A @ V", "return Q, K, V, A, A @ np.clip(V, -1, 1)", ""),
)


@pytest.fixture(autouse=True)
def own_profiles_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(evidence, "SECONDS", 120.0)  # however busy the machine is
    yield
    choose()


def diagnoses(slip: Slip, folder: Path) -> set[str]:
    """What is said of a port with a slip; it must fail."""
    source = VARIANTS / FOLDERS[slip.profile.removesuffix("_gradients")]
    text = (source / "port.py").read_text(encoding="utf-8")
    assert text.count(slip.right) == 1
    port = folder / "port.py"
    port.write_text(text.replace(slip.right, slip.wrong), encoding="utf-8")
    spec = shutil.copy(source / "equations.py", folder)
    report = qkvac.check(port, spec=[spec], profiles=[slip.profile], dtypes=["float32"], workers=1)
    assert report.exit_status == 1
    broken = [(r, clauses.find(r.clause or "")) for r in report.results if r.status == "failed"]
    failed = [result for result, clause in broken if clause is not None and clause.about_values]
    assert failed
    return {result.diagnosis or "" for result in failed}


@pytest.mark.parametrize(
    "slip",
    [
        pytest.param(slip, id=slip.wrong.strip(), marks=pytest.mark.long if place % 2 else ())
        for place, slip in enumerate(SLIPS)
    ],
)
def test_a_slip_is_caught_and_named(slip: Slip, tmp_path: Path) -> None:
    said = diagnoses(slip, tmp_path)
    if slip.words:
        assert all(slip.words in text for text in said), said
    else:
        assert not any(" equals " in text for text in said), said
        assert slip.profile == CROSS or not any("A sum to 1" in text for text in said), said
