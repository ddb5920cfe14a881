"""A NumPy function that computes a profile: its parameters and its body, whatever the flags."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import groupby
from types import MappingProxyType
from typing import Final

from qkvac.spec.grammar.syntax import Op, Ref, SpecError, walk
from qkvac.spec.profile import Flag, Mask, Parameter, Profile, Size
from qkvac.spec.symbolic import numpy_code
from qkvac.spec.symbolic.merging import Merging, Step, Variants

TAB: Final = "    "
SPELT: Final[Mapping[str, str]] = MappingProxyType({"Ω": "scores"})
"""Names that are easier to type."""


def spelt(name: str) -> str:
    """A name as code has it."""
    return SPELT.get(name, name)


def signature(profile: Profile) -> str:
    """The parameters of a profile's function: `X, Wq, *, heads, causal=False`."""
    defaults = {Flag: "=False", Mask: "=None", Size: "", Parameter: ""}
    keywords = [
        f"{keyword}{'=None' if keyword in profile.optional_numbers else defaults[type(bound)]}"
        for keyword, bound in profile.keywords.items()
    ]
    return ", ".join([*profile.takes, *(["*", *keywords] if keywords else [])])


def body(profile: Profile, width: int = 90) -> str:
    """Statements that compute what a profile does, for batches and without tokens as well.

    Lines are no longer than `width`, if the names are not. Raises SpecError where the size of an
    axis cannot be read off any array.
    """
    return "\n".join(_Function(profile, width).lines())


class _Function:
    def __init__(self, profile: Profile, width: int) -> None:
        self.profile = profile
        self.width = width
        self.merging = Merging(profile)
        self.steps = _needed(self.merging.steps, {*profile.returns, *profile.quantities})
        self.every: Variants = frozenset(self.merging.programs)
        self.axes = {name for p in self.merging.programs.values() for name in p.axis_names}
        names = {name: spelt for name, spelt in SPELT.items() if spelt not in self.merging.taken}
        for keyword, bound in profile.keywords.items():
            names |= dict.fromkeys(_bound(bound), keyword)
        self.page = numpy_code.Page(self.merging.tensors, names, profile.shared)
        self.known = {bound.axis for bound in profile.keywords.values() if isinstance(bound, Size)}

    def lines(self) -> Iterator[str]:
        nodes = [node for step in self.steps for node in walk(step.expression)]
        if any(isinstance(node, Op) and node.name == "sqrt" for node in nodes):
            yield from ("import math", "")
        for helper in numpy_code.helpers_of(nodes):
            yield from (*helper.strip().split("\n"), "")
        optional = {name for group in self.profile.optional.values() for name in group}
        given = [name for name in self.profile.takes if name not in optional]
        yield from self.sizes(self.steps, given)
        before: Variants = self.every
        for having, group in groupby(self.steps, key=lambda step: step.having):
            steps = list(group)
            yield from self.sizes(steps, given)
            yield from self.under(having, before, [self.statement(step) for step in steps])
            given += [step.target.name for step in steps if having == self.every]
            before = having
        if missing := {n.name for n in nodes if isinstance(n, Ref)} & self.axes - self.known:
            raise SpecError(f"{self.profile.name}: no array shows the size of {min(missing)}")
        yield from self.returned()

    def sizes(self, steps: Sequence[Step], given: Sequence[str]) -> Iterator[str]:
        """Sizes that steps name first, as far as they can be read off what is there in any case."""
        used = {n.name for step in steps for n in walk(step.expression) if isinstance(n, Ref)}
        for name in given:
            for axis, read in numpy_code.readings(self.merging.tensors[name], self.page):
                if axis in used & self.axes - self.known:
                    self.known.add(axis)
                    yield f"{axis} = {read}"

    def statement(self, step: Step) -> str:
        value = self.page.of(step.expression)
        line = f"{self.page.name(step.target.name)} = {value}"
        indent = len(TAB) if step.having != self.every else 0
        if len(line) + indent <= self.width:
            return line
        broken = textwrap.wrap(value, self.width - indent - len(TAB), break_long_words=False)
        return "\n".join([line[: -len(value)] + "(", *(TAB + part for part in broken), ")"])

    # --- conditions --------------------------------------------------------------------------

    def under(self, having: Variants, before: Variants, lines: Sequence[str]) -> Iterator[str]:
        """Lines that are for some variants; "else" where they are for all but those before."""
        if having == self.every:
            yield from lines
            return
        yield "else:" if having == self.every - before else f"if {self.test(having)}:"
        yield from (textwrap.indent(line, TAB) for line in lines)

    def test(self, having: Variants) -> str:
        words, tests, met = self.merging.words, [], set(self.every)
        for flag in self.profile.choices:
            allowed = {words[variant][flag] for variant in having}
            fitting = {variant for variant in self.every if words[variant][flag] in allowed}
            if fitting != self.every:
                tests.append(self.of_flag(flag, allowed))
                met &= fitting
        if met != having:
            return " or ".join(f"({self.test(frozenset([v]))})" for v in sorted(having))
        return " and ".join(tests)

    def of_flag(self, flag: str, allowed: set[str]) -> str:
        bound, without = self.profile.keywords.get(flag), "" in allowed
        if isinstance(bound, Flag):
            return f"not {flag}" if without else flag
        if isinstance(bound, Mask) and len(allowed - {""}) == 1:
            kind = f"{flag}.dtype {'==' if 'boolean' in allowed else '!='} bool"
            return f"({flag} is None or {kind})" if without else f"{flag} is not None and {kind}"
        name = self.profile.optional[flag][0] if flag in self.profile.optional else flag
        return f"{name} is None" if without else f"{name} is not None"

    # --- the end -----------------------------------------------------------------------------

    def returned(self) -> Iterator[str]:
        profile, programs = self.profile, self.merging.programs
        if not profile.base:
            yield f"return {', '.join(map(self.page.name, profile.returns))}"
            return
        results = dict.fromkeys(name for v in programs for name in profile.results(v))
        names = dict.fromkeys((*results, *profile.quantities))
        having = {n: frozenset(v for v, p in programs.items() if n in p.tensors) for n in names}
        yield from self.table([name for name in names if having[name] == self.every])
        before = self.every
        for some, group in groupby(names, key=having.__getitem__):
            if some != self.every:
                lines = [f'found["{name}"] = {self.page.name(name)}' for name in group]
                yield from self.under(some, before, lines)
                before = some
        yield "return found"

    def table(self, names: Sequence[str]) -> Iterator[str]:
        line = "found = {"
        for entry in (f'"{name}": {self.page.name(name)}, ' for name in names):
            if len(line) + len(entry) > self.width:
                yield line.rstrip()
                line = " " * len("found = {")
            line += entry
        yield line.removesuffix(", ") + "}"


def _needed(steps: Sequence[Step], results: Set[str]) -> tuple[Step, ...]:
    """The steps that results are computed from."""
    wanted, found = set(results), list[Step]()
    for step in reversed(steps):
        if step.target.name in wanted:
            wanted |= {node.name for node in walk(step.expression) if isinstance(node, Ref)}
            found.append(step)
    return tuple(reversed(found))


def _bound(bound: Flag | Mask | Parameter | Size) -> tuple[str, ...]:
    """What a keyword stands for in the text."""
    if isinstance(bound, Size):
        return (bound.axis,)
    if isinstance(bound, Mask):
        return (bound.input,)
    return (bound.name,) if isinstance(bound, Parameter) else ()
