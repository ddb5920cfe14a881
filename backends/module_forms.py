"""Modules as functions: profiles answered by a module that is loaded with the given weights.

A framework's module file says how its modules are made, loaded, called, differentiated and
trained. All else is alike for all of them and stands here: which weights go where, in which
layout, and which module is used again. As in training, a module is kept and loaded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from qkvac.backends.adapter import Adapter, Array, Budget, Functions

Weights: TypeAlias = "Mapping[str, Any]"
"""A checkpoint: Wq, Wk, Wv [d, c], and the biases [c] that there are, as tensors."""


@dataclass(frozen=True)
class Form:
    """One way in which a framework's module holds its weights."""

    name: str
    """The module's class or function."""
    make: Callable[..., Any]
    """make(d, c, biases=, causal=, like=): a new module with the dtype and device of `like`."""
    load: Callable[[Any, Weights], Any]
    """The module with the weights of a checkpoint."""
    call: Callable[[Any, Any], Mapping[str, Any]]
    """Q, K, V, Ω, A, C of X."""
    gradients: Callable[[Any, Any, Any], Mapping[str, Any]]
    """dX and those of the checkpoint's entries, of X and dC."""
    descend: Callable[[Any, Any, Any, float], tuple[Any, Mapping[str, Any]]]
    """The module after a step towards T, of X, T and the rate; the loss, and its gradients."""
    checkpoint: Callable[[Any], Weights]
    turned: Callable[[Any], Any] = lambda matrix: matrix.swapaxes(-1, -2)
    """The transpose of a matrix."""


@dataclass
class Modules:
    """The profiles' functions in one form, and the modules that they use."""

    form: Form
    kept: dict[Any, Any] = field(default_factory=dict)

    def loaded(self, X: Any, weights: Weights, causal: bool = False) -> Any:
        """A module with these weights."""
        d, c = weights["Wq"].shape
        biases = "".join(name[1] for name in weights if name[0] == "b")
        key = (d, c, biases, causal, str(X.dtype))
        if key not in self.kept:
            self.kept[key] = self.form.make(d, c, biases=biases, causal=causal, like=X)
        self.kept[key] = self.form.load(self.kept[key], weights)
        return self.kept[key]

    def attention(self, X: Any, Wq: Any, Wk: Any, Wv: Any) -> Mapping[str, Any]:
        return self.form.call(self.loaded(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv}), X)

    def causal_attention(self, X: Any, Wq: Any, Wk: Any, Wv: Any) -> Mapping[str, Any]:
        return self.form.call(self.loaded(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv}, causal=True), X)

    def attention_linear_layers(
        self, X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any = None, bk: Any = None, bv: Any = None
    ) -> Mapping[str, Any]:
        """The matrices are given as (c, d)."""
        return self.form.call(self.loaded(X, self.given(Wq, Wk, Wv, bq, bk, bv)), X)

    def attention_gradients(self, X: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any) -> Mapping[str, Any]:
        module = self.loaded(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv})
        return self.form.gradients(module, X, dC)

    def causal_attention_gradients(
        self, X: Any, Wq: Any, Wk: Any, Wv: Any, dC: Any
    ) -> Mapping[str, Any]:
        module = self.loaded(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv}, causal=True)
        return self.form.gradients(module, X, dC)

    def attention_linear_layers_gradients(
        self, X: Any, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any, dC: Any
    ) -> Mapping[str, Any]:
        """Gradients of the matrices are (c, d), as those are."""
        found = self.form.gradients(self.loaded(X, self.given(Wq, Wk, Wv, bq, bk, bv)), X, dC)
        return {
            name: self.form.turned(tensor) if name.startswith("dW") else tensor
            for name, tensor in found.items()
        }

    def given(self, Wq: Any, Wk: Any, Wv: Any, bq: Any, bk: Any, bv: Any) -> Weights:
        """The checkpoint of linear layers' weights."""
        matrices = {"Wq": Wq, "Wk": Wk, "Wv": Wv}
        biases = {"bq": bq, "bk": bk, "bv": bv}
        return {
            **{name: self.form.turned(W) for name, W in matrices.items()},
            **{name: b for name, b in biases.items() if b is not None},
        }

    def training_step(
        self, X: Any, Wq: Any, Wk: Any, Wv: Any, T: Any, *, rate: float
    ) -> Mapping[str, Any]:
        """The loss, its gradients, and the weights after a step: Wq1, Wk1, Wv1."""
        module = self.loaded(X, {"Wq": Wq, "Wk": Wk, "Wv": Wv})
        module, found = self.form.descend(module, X, T, rate)
        after = self.form.checkpoint(module)
        return {**found, **{f"{name}1": tensor for name, tensor in after.items()}}

    @property
    def functions(self) -> Functions:
        """By profile; a step of training is none, and is asked for by `qkvac.training`."""
        return {name: getattr(self, name) for name in (*PROFILES, "training_step")}


PROFILES: Final = (
    "attention",
    "causal_attention",
    "attention_linear_layers",
    "attention_gradients",
    "causal_attention_gradients",
    "attention_linear_layers_gradients",
)


class Trained(Adapter):
    """An adapter that answers with modules. A module takes its weights: it is not recorded."""

    def __init__(self, mode: str, device: str, form: Form) -> None:
        self.modules = Modules(form)
        super().__init__(mode, device, self.modules.functions)

    def evidence(self) -> dict[str, Any]:
        shown = {"class": self.modules.form.name, "modules": len(self.modules.kept)}
        return super().evidence() | shown  # type: ignore[safe-super]

    def budget(self, profile: str, *arrays: Array | None, **keywords: Any) -> Budget:
        raise NotImplementedError("operations of modules are not recorded")


def no_biases(biases: str) -> None:
    """Raises NotImplementedError where biases are asked of plain parameters."""
    if biases:
        raise NotImplementedError("plain parameters have no biases")
