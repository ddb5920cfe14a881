"""The diagnosis: faults are recognised, in any framework, and two of them told apart."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from qkvac.diagnosis import search
from qkvac.diagnosis.search import diagnose
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.faults.evaluator import compute
from qkvac.spec.faults.rewriting import rewritten
from qkvac.spec.grammar.syntax import Program
from qkvac.tests.suite.bench import fault_bench, sizes_in
from qkvac.tests.suite.diagnosing import ATTENTION, UNSEEN, Array, named, samples
from qkvac.tests.suite.kill_matrix import demonstrable
from qkvac.tests.suite.laboratory import inside, needs

REPRODUCIBLE = [fault for fault in demonstrable() if fault.rules]


@pytest.mark.parametrize("fault", REPRODUCIBLE[::2], ids=lambda fault: fault.name)
def test_a_fault_is_diagnosed_as_itself(fault: Fault) -> None:
    """Or as one that the same answers cannot tell from it: it is named beside it then."""
    function = fault_bench(fault).function
    found = samples(function, fault.dtype, fits=lambda case: fault.fits(ATTENTION, case.sizes))
    assert {fault.name} in named(diagnose(found))


@pytest.mark.parametrize(
    "name", ["no-scale", "softmax-over-queries", "value-of-key-weights", "context-residual"]
)
def test_the_result_alone_is_enough(name: str) -> None:
    fault = FAULTS[name]
    found = samples(
        fault_bench(fault).function,
        reported=["C"],
        fits=lambda case: fault.fits(ATTENTION, case.sizes),
    )
    assert {name} in named(diagnose(found))


@pytest.mark.parametrize("name", ["query-key-swapped", "query-value-swapped", "key-value-swapped"])
def test_swapped_weights_are_recognised_without_scores(name: str) -> None:
    """A is right about a Q and a K that are wrong; that must not count against the fault."""
    found = samples(
        fault_bench(FAULTS[name]).function,
        reported=["Q", "K", "V", "A", "C"],
        fits=lambda case: FAULTS[name].fits(ATTENTION, case.sizes),
    )
    assert {name} in named(diagnose(found))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("scale-1/d", "value-of-key-weights"),
            "the scale 1/d instead of 1/√c and the key weights",
        ),
        (("softmax-over-queries", "no-scale"), "scores that are not scaled and a softmax over"),
    ],
)
def test_two_faults_at_once_are_told_apart(names: tuple[str, str], words: str) -> None:
    first = FAULTS[names[0]].program(ATTENTION)
    assert first is not None
    both = rewritten(first, FAULTS[names[1]].rules)
    assert both is not None

    def function(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return compute(both, inputs, sizes_in(both)(inputs), "float32")

    found = diagnose(samples(function))
    assert named(found)[:1] == [set(names)]
    assert words in str(found)


def test_the_sentence_says_what_the_result_equals() -> None:
    function = fault_bench(FAULTS["scale-1/√d"]).function
    found = diagnose(samples(function))
    assert str(found) == "C equals the result with the scale 1/√d instead of 1/√c"


# --- candidates that cannot be evaluated -----------------------------------------------------


def _broken(error: type[Exception]) -> Fault:
    """A fault of which no equations can be made."""

    class Broken(Fault):
        def program(self, declared: Program) -> Program | None:
            # The catalogue is asked first whether it has a place; that is not what breaks.
            if inspect.stack()[1].function == "_of":
                raise error("no such row")
            return declared

    return Broken("broken", "formula", "nothing at all", FAULTS["no-scale"].rules)


def test_a_candidate_that_cannot_be_evaluated_explains_nothing_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = samples(fault_bench(FAULTS["scale-1/√d"]).function)
    monkeypatch.setattr(search, "FAULTS", {**FAULTS, "broken": _broken(IndexError)})
    with caplog.at_level(logging.DEBUG, "qkvac.diagnosis.search"):
        assert named(diagnose(found))[:1] == [{"scale-1/√d"}]
    assert "IndexError: no such row" in caplog.text


def test_a_mistake_in_a_rule_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    found = samples(fault_bench(FAULTS["scale-1/√d"]).function)
    monkeypatch.setattr(search, "FAULTS", {**FAULTS, "broken": _broken(TypeError)})
    with pytest.raises(TypeError, match="no such row"):
        diagnose(found)


# --- ports by hand, in another framework -----------------------------------------------------


def _torch_scale(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], V[None], scale=1 / X.shape[1])[0]


def _torch_rows(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch

    return torch.softmax(torch.einsum("ie,je->ij", Q, K) * Q.shape[1] ** -0.5, dim=0) @ V


def _torch_causal(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], V[None], is_causal=True)[0]


def _torch_keys(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], K[None])[0]


def _torch_transposed(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch

    A = torch.softmax(torch.einsum("ie,je->ij", Q, K) / Q.shape[1] ** 0.5, dim=-1)
    return torch.einsum("ij,ie->je", A, V)


def _torch_residual(Q: Any, K: Any, V: Any, X: Any) -> Any:
    import torch.nn.functional as nn

    return nn.scaled_dot_product_attention(Q[None], K[None], V[None])[0] + X[:, : V.shape[1]]


TORCH = {
    "scale-1/d": _torch_scale,
    "softmax-over-queries": _torch_rows,
    "causal-unasked": _torch_causal,
    "context-of-keys": _torch_keys,
    "context-of-transposed-weights": _torch_transposed,
    "context-residual": _torch_residual,
}


def _in_torch(function: Callable[..., Any], inputs: dict[str, Array]) -> dict[str, Array]:
    import torch

    X, Wq, Wk, Wv = (torch.from_numpy(array) for array in inputs.values())
    Q, K, V = (torch.einsum("nd,dc->nc", X, W) for W in (Wq, Wk, Wv))
    C = function(Q, K, V, X)
    return {"Q": Q.numpy(), "K": K.numpy(), "V": V.numpy(), "C": C.numpy()}


def test_ports_in_another_framework_are_diagnosed() -> None:
    needs("torch")
    for name, port in TORCH.items():

        def function(inputs: Mapping[str, Array], port: Any = port) -> Mapping[str, Array]:
            result: dict[str, Array] = inside("torch", _in_torch, port, dict(inputs))
            return result

        assert {name} in named(diagnose(samples(function, cases=UNSEEN)))[:2], name
