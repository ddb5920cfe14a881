"""The adapters of Keras: paths are told apart by counting, weights stored as the layer has them.

A process has Keras on one backend, so these run on PyTorch, unless it is already on another.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError

pytest.importorskip("torch")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("Keras is on another backend here", allow_module_level=True)

from qkvac.backends import keras_attention  # noqa: E402
from qkvac.backends.libraries import keras_torch  # noqa: E402

SDPA, MULTI_HEAD = keras_attention.PROFILES


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_the_layer_hands_on_what_the_function_computes() -> None:
    given = arrays((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 3))
    found = {mode: keras_torch.open(mode).answer(SDPA, *given) for mode in keras_attention.MODES}
    for outputs in found.values():
        np.testing.assert_allclose(outputs["C"], found["ops"]["C"], atol=1e-6)
    np.testing.assert_allclose(found["scores"]["A"].sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("mode", ["layer", "scores"])
def test_the_other_path_is_an_error(mode: str) -> None:
    adapter = keras_torch.open(mode)
    adapter.mode = {"layer": "scores", "scores": "layer"}[mode]
    with pytest.raises(ModeError, match="calls of dot_product_attention"):
        adapter.answer(SDPA, *arrays(*3 * [(1, 2, 3, 4)]))


@pytest.mark.parametrize("mode", ["layer", "scores"])
def test_the_layer_holds_the_weights_as_given(mode: str) -> None:
    X, Wq, Wk, Wv, Wo = arrays((5, 3), (3, 4), (3, 4), (3, 4), (4, 2))
    Y = keras_torch.open(mode).answer(MULTI_HEAD, X, Wq, Wk, Wv, Wo, heads=2)["Y"]
    Q, K, V = (np.moveaxis((X @ W).reshape(5, 2, 2), 1, 0) for W in (Wq, Wk, Wv))
    powers = np.exp(Q @ K.swapaxes(-1, -2) / np.sqrt(2))
    C = powers / powers.sum(-1, keepdims=True) @ V
    np.testing.assert_allclose(Y, np.moveaxis(C, 0, 1).reshape(5, 4) @ Wo, atol=1e-5)


def test_what_the_layer_has_no_argument_for_is_unsupported() -> None:
    given = arrays(*3 * [(1, 2, 3, 4)])
    with pytest.raises(NotImplementedError, match="own scale"):
        keras_torch.open("layer").answer(SDPA, *given, scale=0.5)
    with pytest.raises(NotImplementedError, match="boolean masks"):
        keras_torch.open("layer").answer(SDPA, *given, mask=np.zeros((3, 3), np.float32))


def test_keras_on_another_backend_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ModeError, match="not on jax"):
        keras_attention.select("jax")
