"""A case: inputs with a stable name, and the reason why it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from numpy.typing import NDArray

from qkvac.spec.formats import DTYPES, FORMATS
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.grammar.syntax import Program
from qkvac.spec.inputs import draws
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.profile import Parameter, Profile
from qkvac.spec.registry import known_profiles

Recipe = Callable[[Frame], Inputs]
Tier = Literal["default", "full"]


@dataclass(frozen=True)
class Case:
    """Inputs for one call of a profile's function. Two cases are the same if their ids are."""

    id: str
    profile: str = field(compare=False)
    family: str = field(compare=False)
    sizes: Mapping[str, int] = field(compare=False)
    why: str = field(compare=False)
    """What a failure of this case means, in one line."""
    recipe: Recipe = field(compare=False, repr=False)
    seed: str = field(compare=False, repr=False)
    dtypes: tuple[str, ...] = field(default=DTYPES, compare=False)
    compiled: bool = field(default=False, compare=False)
    """Whether compiled modes run it in the default tier."""
    tier: Tier = field(default="default", compare=False)
    crossed: bool = field(default=False, compare=False)
    """Whether it is a row of a covering array, which one dtype of its own is enough for."""
    core: bool = field(default=False, compare=False)
    """Whether it is among the few rows that have every value of every dimension."""
    generic: bool = field(default=False, compare=False)
    """Whether rounding errors are expected to look random, so that a z-score means something."""
    exact: tuple[str, ...] = field(default=(), compare=False)
    """Quantities that every declared dtype makes exact."""
    layouts: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Memory layout of inputs that are not plain C-contiguous arrays; the caller applies it."""
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Keyword arguments of the function that are no arrays: causal, scale, heads."""
    variant: str = field(default="", compare=False)
    """Which text of the profile it is about; "" is the first."""
    batch: tuple[int, ...] = field(default=(), compare=False)
    """Leading axes of the inputs that carry any."""
    masked: bool = field(default=False, compare=False)
    """Whether there is an input `mask`."""

    @property
    def needs(self) -> frozenset[str]:
        """What a port must support, beyond two-dimensional, non-empty, contiguous inputs.

        What kernels implement has leading axes anyway.
        """
        axes, declared = self.sizes, self.declared
        words = {
            "layouts": bool(self.layouts),
            "empty": 0 in (*axes.values(), *self.batch),
            "batches": bool(self.batch) and not declared.samples,
            "masks": self.masked,
            "scale": any(keyword in self.attributes for keyword in declared.optional_numbers),
        }
        words |= {word: axes[one] != axes[other] for word, (one, other) in declared.unequal.items()}
        return frozenset(word for word, needed in words.items() if needed)

    @property
    def declared(self) -> Profile:
        """The profile that it is a case of."""
        return known_profiles()[self.profile]

    @property
    def program(self) -> Program:
        """The equations that it is about."""
        return self.declared.program(self.variant or None)

    @property
    def quantities(self) -> tuple[str, ...]:
        """What may be reported about it, in order."""
        return self.declared.reported(self.variant or None)

    @property
    def results(self) -> tuple[str, ...]:
        """What has to be reported about it."""
        return self.declared.results(self.variant or None)

    @property
    def alternatives(self) -> tuple[Program, ...]:
        """The equations, and others of the same values that an implementation may evaluate."""
        return self.declared.equivalents(self.variant or None)

    @property
    def bindings(self) -> Mapping[str, int | Scalar]:
        """The numbers that the names in the equations stand for: axis sizes, and parameters."""
        given = {
            bound.name: Scalar.of(self.attributes[keyword])
            for keyword, bound in self.declared.keywords.items()
            if isinstance(bound, Parameter) and keyword in self.attributes
        }
        return {**self.sizes, **given} if given else self.sizes

    @property
    def random(self) -> bool:
        """Whether there are further draws of the inputs."""
        return self.family != "worked-example"

    def drawn(self, draw: int | str) -> Case:
        """The same case on fresh random data, with the id suffix /s`draw`; draw 0 is itself."""
        if draw == 0:
            return self
        if not self.random:
            raise ValueError(f"{self.id} has fixed inputs")
        return replace(self, id=f"{self.id}/s{draw}", seed=f"{self.seed}/s{draw}")

    def inputs(self, dtype: str, draw: int = 0) -> dict[str, NDArray[Any]]:
        """C-contiguous, writeable arrays, keyed by the names in the equations.

        Real ones are of the dtype, boolean masks and indices of their own; an optional input that
        is absent is left out. Raises ValueError for a dtype that the case is not for.
        """
        if dtype not in self.dtypes:
            raise ValueError(f"{self.id} is for {', '.join(self.dtypes)}, not for {dtype}")
        frame = Frame(self.drawn(draw).seed, FORMATS[dtype], self.sizes, self.batch)
        return {name: draws.stored(value, dtype) for name, value in self.recipe(frame).items()}


WIDE: Final = ("float64", "float32")
TALL: Final = ("float64", "float32", "bfloat16")
"""Dtypes whose exponent range is at least that of float32."""
HALF: Final = ("float16",)

LINEAR: Final = ("Q", "K", "V")
SUMS: Final = (*LINEAR, "Ω")
ALL: Final = (*SUMS, "A", "C")

Sizes = tuple[int, int, int]
MAIN: Final = (33, 20, 7)
"""Off every tile length; no two axes equal, c not a square."""
EQUAL: Final = (16, 16, 16)
"""Scale and its root are powers of two, and transposed operands still fit."""
BOOK: Final = (6, 3, 2)
ONE: Final = (1, 20, 7)
TILE: Final = (65, 24, 10)
TILES: Final = (129, 40, 12)
LONG: Final = (577, 24, 10)


def attention_case(
    family: str, sizes: Sizes, recipe: Recipe, why: str, *, seed: str | None = None, **fields: Any
) -> Case:
    """A case of the profile `attention`.

    `seed` names the family whose random numbers it shares at the same sizes, by default its own.
    """
    shape = "x".join(map(str, sizes))
    name = f"attention/{family}/{shape}"
    axes = dict(zip(("n", "d", "c"), sizes, strict=True))
    seed = name if seed is None else f"attention/{seed}/{shape}"
    return Case(name, "attention", family, axes, why, recipe, seed, **fields)
