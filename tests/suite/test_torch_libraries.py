"""The adapters of attention in PyTorch: modes are proved, the layer holds the given weights."""

from __future__ import annotations

import numpy as np
import pytest

from qkvac.backends.adapter import ModeError

torch = pytest.importorskip("torch")

from qkvac.backends.libraries import torch_flex, torch_multihead, torch_sdpa  # noqa: E402

SDPA = "scaled_dot_product_attention"


def heads(width: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, 5, w)) for w in (4, 4, width)]


def test_modes_agree_and_show_their_kernels() -> None:
    found = {}
    for mode in ("default", "math", "flash"):
        adapter = torch_sdpa.open(mode)
        found[mode] = adapter.answer(SDPA, *heads())["C"]
        (kernel,) = adapter.evidence()["kernels"]
        assert (kernel == "_safe_softmax") == (mode == "math")
    np.testing.assert_allclose(found["math"], found["flash"], rtol=1e-12)


def test_a_kernel_that_was_not_asked_for_is_an_error() -> None:
    adapter = torch_sdpa.open("flash")
    adapter.mode = "default"
    with pytest.raises(ModeError, match="_safe_softmax ran"):
        adapter.answer(SDPA, *heads(width=3))


def test_what_the_fused_kernel_refuses_is_unsupported() -> None:
    with pytest.raises(NotImplementedError, match="same last dimension"):
        torch_sdpa.open("flash").answer(SDPA, *heads(width=3))


@pytest.mark.parametrize("mode", ["weights", "fused", "fast"])
def test_the_layer_holds_the_weights_as_given(mode: str) -> None:
    rng = np.random.default_rng(0)
    X, Wq, Wk, Wv, Wo = (rng.standard_normal(s) for s in ((5, 4), *4 * [(4, 4)]))
    adapter = torch_multihead.open(mode)
    Y = adapter.answer("multi_head_attention", X, Wq, Wk, Wv, Wo, heads=2)["Y"]
    Q, K, V = (np.moveaxis((X @ W).reshape(5, 2, 2), 1, 0) for W in (Wq, Wk, Wv))
    powers = np.exp(Q @ K.swapaxes(-1, -2) / np.sqrt(2))
    C = powers / powers.sum(-1, keepdims=True) @ V
    np.testing.assert_allclose(Y, np.moveaxis(C, 0, 1).reshape(5, 4) @ Wo, rtol=1e-11)
    with pytest.raises(NotImplementedError, match="embed_dim"):
        adapter.answer("multi_head_attention", X, Wq, Wk, Wv, Wo[:, :3], heads=2)


def test_flex_attention_takes_masks_by_position() -> None:
    mask = np.tri(5, dtype=bool)
    masked = torch_flex.open("eager").answer(SDPA, *heads(), mask=mask)["C"]
    causal = torch_sdpa.open("math").answer(SDPA, *heads(), causal=True)["C"]
    np.testing.assert_allclose(masked, causal, rtol=1e-12)
