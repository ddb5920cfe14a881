"""Reproductions: a failing entry as a few lines that need NumPy alone.

An entry of a quantity depends, by its equation, on a row of one operand and a column or row of
the other. These are short, whatever the size of the case, and are written as hexadecimal floats,
so that nothing is lost. The lines print what the entry should be, what the port returned, and
what rounding allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from qkvac.samples import Sample
from qkvac.spec.visibility import visible

Array = np.ndarray[Any, Any]

READ: Final = "read = lambda text: np.array([float.fromhex(x) for x in text.split()])"
MOST: Final = 160
"""Numbers that a snippet may hold."""
SOFTMAX: Final = "z = {z}\ne = np.exp(z - z.max())"
WITH_WEIGHTS: Final = ("attention", "causal_attention")
"""Profiles whose entries are also reproduced from X and the weights."""


def snippet(
    sample: Sample, quantity: str, worst: Mapping[str, Any], whole: bool = False
) -> str | None:
    """Lines that reproduce the worst entry; None where its operands were not reported, or are long.

    `whole` starts from the inputs: of a value that is wrong although its own equation holds. The
    parts of attention are known here, and where heads, samples and masks have their places.
    """
    index = tuple(int(i) for i in worst["index"])
    entry = _Entry(sample, quantity, index)
    try:
        found = entry.from_inputs() if whole else None
        parts, lines = found or entry.from_operands()
    except LookupError:
        return None
    if sum(part.size for part in parts.values()) > MOST:
        return None
    return "\n".join(_lines(parts, lines, entry, float(worst["bound"])))


def _lines(
    parts: Mapping[str, Array], equations: str, entry: _Entry, bound: float
) -> Iterator[str]:
    yield "import numpy as np"
    if parts:
        yield READ
    for name, part in parts.items():
        numbers = " ".join(float(x).hex() for x in part.ravel())
        shape = f".reshape({part.shape[0]}, {part.shape[1]})" if part.ndim == 2 else ""
        yield f'{_spelt(name)} = read("{numbers}"){shape}'
    yield from equations.split("\n")
    returned = float(np.asarray(entry.sample.outputs[entry.quantity])[entry.index]).hex()
    place = ", ".join(map(str, entry.index))
    yield f'print("{entry.quantity}[{place}] should be", value, "within {bound:.2g}; the port",'
    yield f'    "returned", float.fromhex("{returned}"))'


def _spelt(name: str) -> str:
    return {"Ω": "scores"}.get(name, name)


Found = tuple[dict[str, Array], str]
"""Operands of an entry, and the lines that compute it."""


@dataclass(frozen=True)
class _Entry:
    """An entry of a quantity; raises LookupError where what it depends on is not known."""

    sample: Sample
    quantity: str
    index: tuple[int, ...]

    def from_operands(self) -> Found:
        """By its own equation, from what was reported."""
        if self.quantity in ("Q", "K", "V"):
            return self._projected()
        return {
            "Ω": self._score,
            "A": self._weight,
            "C": self._context,
            "Y": self._result,
            "X": self._embedded,
        }[self.quantity]()

    def from_inputs(self) -> Found | None:
        """From the inputs, where that says more than its own equation; None where it does not."""
        if self.quantity not in ("Ω", "A", "C"):
            return None
        if self._profile == "scaled_dot_product_attention":
            return self._whole_kernel()
        if self._profile in WITH_WEIGHTS:
            return self._whole()
        raise LookupError(self._profile)

    # --- one equation ------------------------------------------------------------------------

    def _projected(self) -> Found:
        *batch, i, j = self.index
        name = self.quantity.lower()
        weights = self._known(f"W{name}")
        linear = self._profile == "attention_linear_layers"
        parts = {
            "X": self._known("X")[(*batch, i)],
            f"W{name}": weights[j] if linear else weights[:, j],
        }
        bias = f"b{name}" in self._inputs
        if bias:
            parts[f"b{name}"] = self._known(f"b{name}")[j : j + 1]
        return parts, f"value = X @ W{name}{f' + b{name}[0]' if bias else ''}"

    def _score(self) -> Found:
        *lead, i, j = self.index
        if self._profile == "dot_product_attention":
            X = self._known("X")
            return {"x": X[(*lead, i)], "y": X[(*lead, j)]}, "value = x @ y"
        batch, queries, keys = self._heads(lead)
        q, k = self._known("Q")[(*batch, *queries[0], i)], self._known("K")[(*batch, *keys[0], j)]
        return {"Q": q[queries[1]], "K": k[keys[1]]}, "value = Q @ K"

    def _weight(self) -> Found:
        *lead, i, j = self.index
        kept = self._kept(lead, i)
        if not kept[j]:
            return {}, "value = 0.0  # the query does not see this key"
        parts, z = {"Ω": self._known("Ω")[(*lead, i)][kept]}, f"scores{self._scale}"
        if (bias := self._bias(lead, i)) is not None:
            parts["mask"], z = bias[kept], f"{z} + mask"
        place = int(np.sum(kept[:j]))
        return parts, f"{SOFTMAX.format(z=z)}\nvalue = (e / e.sum())[{place}]"

    def _context(self) -> Found:
        *lead, i, j = self.index
        if self._profile == "multi_head_attention":
            width = self._sizes["c"] // self._sizes["h"]
            weights = self._known("A")[(*lead, j // width, i)]
            values = self._known("V")[tuple(lead)][:, j]
        elif self._profile == "dot_product_attention":
            weights = self._known("A")[(*lead, i)]
            values = self._known("X")[tuple(lead)][:, j]
            return {"A": weights, "X": values}, "value = A @ X"
        else:
            batch, _, keys = self._heads(lead)
            weights = self._known("A")[(*lead, i)]
            values = self._known("V")[(*batch, *keys[0])][:, j]
        return {"A": weights, "V": values}, "value = A @ V"

    def _result(self) -> Found:
        *batch, i, j = self.index
        return {
            "C": self._known("C")[(*batch, i)],
            "Wo": self._known("Wo")[:, j],
        }, "value = C @ Wo"

    def _embedded(self) -> Found:
        *batch, i, j = self.index
        token = int(self._known("tokens")[(*batch, i)])
        parts = {"E": self._known("E")[token, j : j + 1], "P": self._known("P")[i, j : j + 1]}
        return parts, "value = (E + P)[0]"

    # --- from the inputs ---------------------------------------------------------------------

    def _whole_kernel(self) -> Found | None:
        *lead, i, j = self.index
        if self.quantity == "Ω":
            return None
        batch, _, keys = self._heads(lead)
        kept = self._kept(lead, i)
        if not kept.any() or (self.quantity == "A" and not kept[j]):
            return None
        parts = {
            "Q": self._known("Q")[(*lead, i)],
            "K": self._known("K")[(*batch, *keys[0])][kept],
        }
        z = f"K @ Q{self._scale}"
        if (bias := self._bias(lead, i)) is not None:
            parts["mask"], z = bias[kept], f"{z} + mask"
        value = f"value = (e / e.sum())[{int(np.sum(kept[:j]))}]"
        if self.quantity == "C":
            parts["V"] = self._known("V")[(*batch, *keys[0])][kept, j]
            value = "value = e / e.sum() @ V"
        return parts, f"{SOFTMAX.format(z=z)}\n{value}"

    def _whole(self) -> Found:
        *batch, i, j = self.index
        kept = self._kept(batch, i)
        X = self._known("X")[tuple(batch)]
        names = ["X", "Wq", "Wk", *(["Wv"] if self.quantity == "C" else [])]
        parts = {name: self._known(name) for name in names}
        if self.quantity == "Ω":
            parts["X"] = X
            return parts, f"value = (X[{i}] @ Wq) @ (X[{j}] @ Wk)"
        if self.quantity == "A" and not kept[j]:
            return {}, "value = 0.0  # the query does not see this key"
        parts["X"] = X[kept]
        z = f"(X @ Wk) @ (X[{int(np.sum(kept[:i]))}] @ Wq){self._scale}"
        value = f"value = (e / e.sum())[{int(np.sum(kept[:j]))}]"
        if self.quantity == "C":
            parts["Wv"] = parts["Wv"][:, j]
            value = "value = e / e.sum() @ (X @ Wv)"
        return parts, f"{SOFTMAX.format(z=z)}\n{value}"

    # --- where things are --------------------------------------------------------------------

    @property
    def _profile(self) -> str:
        return self.sample.case.profile

    @property
    def _sizes(self) -> Mapping[str, int]:
        return self.sample.case.sizes

    @cached_property
    def _inputs(self) -> Mapping[str, Array]:
        return self.sample.case.inputs(self.sample.dtype)

    def _known(self, name: str) -> Array:
        """An input, or a reported quantity, as float64."""
        found = self._inputs[name] if name in self._inputs else self.sample.outputs[name]
        return np.asarray(found).astype(np.float64)

    def _heads(
        self, lead: list[int]
    ) -> tuple[list[int], tuple[tuple[int, ...], slice], tuple[tuple[int, ...], slice]]:
        """The sample, then where a head's queries and keys lie: on an axis, or in columns."""
        everything = slice(None)
        if "L" in self._sizes:
            *batch, head = lead
            group = head * self._sizes["g"] // self._sizes["h"]
            return batch, ((head,), everything), ((group,), everything)
        if "h" in self._sizes:
            *batch, head = lead
            width = self._sizes["c"] // self._sizes["h"]
            own = slice(head * width, (head + 1) * width)
            return batch, ((), own), ((), own)
        return lead, ((), everything), ((), everything)

    @property
    def _scale(self) -> str:
        """What the scores are multiplied by, to be added to their name."""
        if "scale" in self.sample.case.attributes:
            return f" * {self.sample.case.attributes['scale']!r}"
        if self._profile == "dot_product_attention":
            return ""
        width = self._sizes["d" if "L" in self._sizes else "c"] // (
            self._sizes["h"] if self._profile == "multi_head_attention" else 1
        )
        return f" / np.sqrt({width})"

    def _kept(self, lead: list[int], i: int) -> Array:
        """Which keys the query sees; raises LookupError where it sees none."""
        case = self.sample.case
        keys = case.sizes.get("S", case.sizes.get("n", 0))
        seen = visible(case, self._inputs, self.sample.conventions).values()
        kept: Array = next((masks for masks, _ in seen), np.ones((*self._grid, keys), bool))[
            (*lead, i)
        ]
        if not kept.any():
            raise LookupError("a query without keys")
        return kept

    @property
    def _grid(self) -> tuple[int, ...]:
        """Samples, heads and queries."""
        sizes = self._sizes
        heads = (sizes["h"],) if "h" in sizes else ()
        return (*self.sample.case.batch, *heads, sizes.get("L", sizes.get("n", 0)))

    def _bias(self, lead: list[int], i: int) -> Array | None:
        """The row of a mask that is added to the scores."""
        mask = self._inputs.get("mask")
        if mask is None or mask.dtype == bool:
            return None
        sizes = self._sizes
        whole = (*self.sample.case.batch, sizes["h"], sizes["L"], sizes["S"])
        row: Array = np.broadcast_to(mask, whole)[(*lead, i)].astype(np.float64)
        return row
