"""A profile: a function that ports offer, declared by its equations and its signature.

The text says what is computed; the declaration says how a port's function is called, what it
returns, and which part each input plays. All else about a profile is derived from these two. Our
own profiles stand in `qkvac.spec.attention`, those of others in files of their own, in the same
form.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from types import MappingProxyType
from typing import Final, TypeAlias

from qkvac.spec.grammar.adjoint import adjoint, cotangent
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.parsing import parse
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, SpecError, Tensor, walk

Words: TypeAlias = str | Sequence[str]
"""Names, in one string or in several."""

Text: TypeAlias = "str | Mapping[str, str] | Callable[..., str]"
"""One text, texts by variant, or a function that makes a text from flags."""

PLAIN: Final = "plain"
"""The variant in which no flag is chosen."""


@dataclass(frozen=True)
class Size:
    """A keyword whose value is the size of an axis that no input has: the number of heads."""

    axis: str


@dataclass(frozen=True)
class Flag:
    """A keyword that is True or False, False unless it is given; it chooses the text."""


@dataclass(frozen=True)
class Mask:
    """A keyword whose value is an array or None: an input of the text, of the scores' shape.

    It chooses the text: "boolean" if it keeps what is True, "additive" if it is added to scores.
    It broadcasts to the axes that the text declares for it, and to those of a batch.
    """

    input: str = "mask"


@dataclass(frozen=True)
class Parameter:
    """A keyword whose value is a number: a scalar parameter of the text.

    An `optional` one may be None, and chooses the text. `values` are numbers worth trying.
    """

    name: str
    optional: bool = False
    values: tuple[float, ...] = (-1.25, 0.375)


Binding: TypeAlias = Size | Flag | Mask | Parameter


@dataclass(frozen=True)
class Budget:
    """Operations that an implementation of a profile needs, for all tokens at once."""

    products: int
    transpositions: int


HEADS: Final = frozenset({"split", "merge", "repeat"})
"""Operations that move heads about."""


@dataclass(frozen=True, eq=False)
class Profile:
    """A function that ports offer. Names may be given as a list, or in one string.

    Where a text is made by a function, its parameters are the flags, in the order in which a
    variant names them: Flag, Mask and optional Parameter keywords, and groups of optional inputs.
    Each is handed over as the word that is chosen, "" if it is not: `causal="causal"`,
    `mask="additive"`.
    """

    name: str
    about: str
    text: Text
    takes: Words
    """Inputs of the text in the order of the function's positional arguments."""
    returns: Words
    """What the function returns, in order; the last one is what the profile is for."""
    reports: Words = ()
    """Intermediates that it may return besides, in a dict."""
    keywords: Mapping[str, Binding] = field(default_factory=dict)
    """Keyword arguments, and what each stands for in the text."""
    shared: Words = ()
    """Inputs without batch axes, which all samples share: weights, biases, tables."""
    transposed: Words = ()
    """Weights that the text itself has as they are stored, which no convention turns."""
    optional: Mapping[str, Words] = field(default_factory=dict)
    """Inputs that may be None, by the flag that says that they are given."""
    alternatives: tuple[Text, ...] = ()
    """Texts of the same exact values, any of which an implementation may evaluate."""
    samples: bool = False
    """Whether its inputs have leading axes anyway, as those of kernels have."""
    unequal: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What a port must support where two axes differ, by the word that declares it."""
    short: str = ""
    """What it is called where there is little room."""
    of: Profile | None = None
    """The profile whose gradients these are; None for a function that computes no gradients."""

    def __post_init__(self) -> None:
        for name in ("takes", "returns", "reports", "shared", "transposed"):
            object.__setattr__(self, name, words(getattr(self, name)))
        groups = {flag: words(inputs) for flag, inputs in self.optional.items()}
        object.__setattr__(self, "optional", MappingProxyType(groups))
        object.__setattr__(self, "keywords", MappingProxyType(dict(self.keywords)))
        object.__setattr__(self, "short", self.short or self.name[:8])

    # --- texts -------------------------------------------------------------------------------

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """Variant → text; the first is the one without flags. Raises SpecError."""
        return MappingProxyType(self.made(self.text))

    def made(self, text: Text) -> dict[str, str]:
        """Variant → text, of a text in any of its forms; raises what a function of it raises."""
        if isinstance(text, str):
            return {PLAIN: text}
        if isinstance(text, Mapping):
            return dict(text)
        flags = list(inspect.signature(text).parameters)
        for flag in flags:
            if flag not in self.choices:
                known = ", ".join(self.choices) or "none"
                raise SpecError(
                    f"{self.name}: the text asks for {flag}, which is no flag ({known})"
                )
        with redirect_stdout(sys.stderr):
            return {
                "-".join(filter(None, words)) or PLAIN: text(**dict(zip(flags, words, strict=True)))
                for words in product(*map(self.choices.__getitem__, flags))
            }

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """What each flag may be, as words; the first, "", is without it."""
        found: dict[str, tuple[str, ...]] = {flag: ("", flag) for flag in self.optional}
        for keyword, bound in self.keywords.items():
            if isinstance(bound, Mask):
                found[keyword] = ("", "boolean", "additive")
            elif isinstance(bound, Flag) or (isinstance(bound, Parameter) and bound.optional):
                found[keyword] = ("", keyword)
        return MappingProxyType(found)

    def variant_of(self, variant: str | None) -> str:
        """The name of a variant, by default of the first; raises SpecError for an unknown one."""
        if not variant:
            return next(iter(self.texts))
        if variant not in self.texts:
            known = ", ".join(self.texts)
            raise SpecError(f"{self.name} has no variant {variant!r}; it has {known}")
        return variant

    def program(self, variant: str | None = None) -> Program:
        """The equations of a variant, by default the first; of gradients they are derived."""
        return self.equivalents(variant)[0]

    def equivalents(self, variant: str | None = None) -> tuple[Program, ...]:
        """Programs of the same exact values, any of which an implementation may evaluate.

        The first is the declared one. Their bounds differ, and the larger one is asked.
        """
        return self._equivalents[self.variant_of(variant)]

    @cached_property
    def _equivalents(self) -> Mapping[str, tuple[Program, ...]]:
        others = [self.made(text) for text in self.alternatives]
        return {
            variant: (_parsed(text), *(_parsed(other[variant]) for other in others))
            for variant, text in self.texts.items()
        }

    # --- quantities --------------------------------------------------------------------------

    @property
    def last(self) -> str:
        """What the profile is for."""
        return self.quantities[-1]

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """All that may be reported, in the order of the text; the profile's result comes last."""
        told = {*self.returns, *self.reports}
        order = dict.fromkeys(e.target.name for p in self.programs for e in p.equations)
        return (*(n for n in order if n in told and n != self.returns[-1]), self.returns[-1])

    @property
    def intermediates(self) -> frozenset[str]:
        """Quantities that only a dict can hold, and that need not be returned."""
        return frozenset(self.reports)

    def reported(self, variant: str | None = None) -> tuple[str, ...]:
        """Those of the quantities that a variant has."""
        tensors = self.program(variant).tensors
        return tuple(name for name in self.quantities if name in tensors)

    def results(self, variant: str | None = None) -> tuple[str, ...]:
        """What a variant is for: the last quantity, or every gradient."""
        return (self.last,)

    # --- inputs ------------------------------------------------------------------------------

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The declared equations of all variants."""
        return tuple(map(self.program, self.texts))

    @cached_property
    def inputs(self) -> Mapping[str, Tensor]:
        """The inputs of all variants by name."""
        return {tensor.name: tensor for program in self.programs for tensor in program.inputs}

    @cached_property
    def masks(self) -> frozenset[str]:
        """Inputs that keywords give, and that broadcast."""
        bound = self.keywords.values()
        return frozenset(one.input for one in bound if isinstance(one, Mask))

    @cached_property
    def optional_numbers(self) -> frozenset[str]:
        """Keywords that may have a number for their value, or None."""
        found = self.keywords.items()
        return frozenset(k for k, one in found if isinstance(one, Parameter) and one.optional)

    @cached_property
    def without_batch(self) -> frozenset[str]:
        """Inputs that have no batch axes of their own, or broadcast along some."""
        return self.masks | frozenset(self.shared)

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Weight matrices, as a convention may store them turned: shared factors of products."""
        factors = {
            node.name
            for program in self.programs
            for equation in program.equations
            for product in walk(equation.expression)
            if isinstance(product, Op) and product.name == "matmul"
            for node in map(_moved, product.args)
            if isinstance(node, Ref)
        }
        tensors = self.inputs
        return tuple(
            name
            for name in self.takes
            if name in self.shared
            and name in factors
            and name not in self.transposed
            and tensors[name].rank == 2
        )

    @cached_property
    def index_limits(self) -> Mapping[str, Expr]:
        """For each input of whole numbers, the axis that it counts: take(E, tokens) → t."""
        return {
            node.args[1].name: tensor.axes[0]
            for program in self.programs
            for equation in program.equations
            for node in walk(equation.expression)
            if isinstance(node, Op) and node.name == "take"
            if isinstance(node.args[0], Ref) and isinstance(node.args[1], Ref)
            for tensor in [program.tensors[node.args[0].name]]
        }

    @cached_property
    def shapes(self) -> frozenset[str]:
        """What a port may declare to support of leading axes and unequal sizes."""
        return frozenset(self.unequal) | {"batches"}

    @cached_property
    def budget(self) -> Budget | None:
        """The operations of the text; None where an implementation has to move heads about.

        Gradients and weights that are stored turned have none either.
        """
        nodes = [n for e in self.program().equations for n in walk(e.expression)]
        names = [node.name for node in nodes if isinstance(node, Op)]
        if self.of is not None or self.transposed or HEADS.intersection(names):
            return None
        return Budget(names.count("matmul"), names.count("transpose"))

    @property
    def base(self) -> str:
        """The name of the profile whose gradients these are; "" if it computes none."""
        return self.of.name if self.of is not None else ""

    @cached_property
    def gradients(self) -> Profile:
        """The gradients of its inputs, given the cotangent of its last quantity."""
        return Gradients(
            f"{self.name}_gradients",
            f"gradients of {self.name}, by the cotangent of {self.last}",
            self.text,
            takes=(*self.takes, cotangent(self.last)),
            returns=[cotangent(n) for n in self.takes if self.inputs[n].kind == "real"],
            reports=tuple(_steps(self)),
            keywords=self.keywords,
            shared=self.shared,
            transposed=self.transposed,
            optional=self.optional,
            samples=self.samples,
            unequal=self.unequal,
            short=self.short,
            of=self,
        )


@dataclass(frozen=True, eq=False)
class Gradients(Profile):
    """The gradients of a profile. Their equations are derived from its own."""

    @cached_property
    def forward(self) -> Profile:
        assert self.of is not None
        return self.of

    @cached_property
    def _equivalents(self) -> Mapping[str, tuple[Program, ...]]:
        # Kernels sum along the width of the values instead of along the keys.
        shared, last = self.forward.without_batch, self.forward.last
        return {
            variant: tuple(
                adjoint(program, last, contracted, shared)
                for program in self.forward.equivalents(variant)
                for contracted in (False, True)
            )
            for variant in self.texts
        }

    @cached_property
    def texts(self) -> Mapping[str, str]:
        return self.forward.texts

    @cached_property
    def weights(self) -> tuple[str, ...]:
        return self.forward.weights

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """Steps on the way, then the gradients; those of masks come last."""
        own = dict.fromkeys(map(cotangent, (*self.forward.takes, *sorted(self.forward.masks))))
        tensors = {name for program in self.programs for name in program.tensors}
        real = {cotangent(n) for n, tensor in self.forward.inputs.items() if tensor.kind == "real"}
        return (*self.reports, *(name for name in own if name in tensors & real))

    def results(self, variant: str | None = None) -> tuple[str, ...]:
        return tuple(n for n in self.reported(variant) if n not in self.intermediates)


def _moved(expression: Expr) -> Expr:
    """What an expression only moves about."""
    while isinstance(expression, Op) and expression.name in ("transpose", "split"):
        expression = expression.args[0]
    return expression


def words(names: Words) -> tuple[str, ...]:
    """Names as a tuple, whether they come in one string or in several."""
    return tuple(names.replace(",", " ").split()) if isinstance(names, str) else tuple(names)


def _steps(forward: Profile) -> Iterator[str]:
    """What gradients pass through: weights, then cotangents, of what is projected last."""
    nonlinear = {
        equation.target.name
        for program in forward.programs
        for equation in program.equations
        if isinstance(equation.expression, Op) and operation(equation.expression.name).is_nonlinear
    }
    yield from (name for name in forward.quantities if name in nonlinear)
    given = forward.inputs.keys()
    own = {
        equation.target.name
        for program in forward.programs
        for equation in program.equations
        if given >= {name for name in equation.operands if name in program.tensors}
    }
    inner = [name for name in forward.quantities if name != forward.last]
    taken = {cotangent(name) for name in given}
    for name in (*(n for n in reversed(inner) if n not in own), *(n for n in inner if n in own)):
        if cotangent(name) not in taken:
            yield cotangent(name)


@cache
def _parsed(text: str) -> Program:
    return parse(text)
