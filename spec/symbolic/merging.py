"""All variants of a profile in one sequence of steps, some of which are for some variants alone.

What variants have in common is said once. Where they differ in a term of a sum, in a part of a
mask or in an operand, that stands in a step of its own, beside which stand the variants that it is
for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from qkvac.spec.grammar.axes import axes_of
from qkvac.spec.grammar.normal_form import fresh
from qkvac.spec.grammar.operations import operation
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, Tensor
from qkvac.spec.profile import PLAIN, Profile

KEEP_ALL: Final = Ref("True")
"""The mask of a softmax without one."""

Variants = frozenset[str]


@dataclass(frozen=True)
class Step:
    """An assignment that is made in some variants; to what has been assigned before, a change."""

    target: Tensor
    expression: Expr
    having: Variants


def words(profile: Profile, variant: str) -> Mapping[str, str]:
    """The word of each flag in a variant; "" where it is not chosen."""
    chosen = set() if variant == PLAIN else set(variant.split("-"))
    return {
        flag: next((word for word in choices if word and word in chosen), "")
        for flag, choices in profile.choices.items()
    }


class Merging:
    """The steps of a profile, and all tensors that they assign or read."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.programs: Mapping[str, Program] = {v: profile.program(v) for v in profile.texts}
        self.tensors = {n: t for p in self.programs.values() for n, t in p.tensors.items()}
        self.words = {variant: words(profile, variant) for variant in self.programs}
        self.taken = {n for p in self.programs.values() for n in (*p.axis_names, *p.parameters)}
        self.taken |= {*self.tensors, *profile.keywords}
        self.steps: list[Step] = []
        for name in self._order():
            found = {
                variant: program.equation(name).expression
                for variant, program in self.programs.items()
                if name in program.tensors
            }
            whole = self._merged(found, name)
            if whole != Ref(name):
                self._step(name, whole, found)

    def _order(self) -> Iterator[str]:
        """The quantities of all variants, each after those that it is computed from."""
        order = list[str]()
        for program in sorted(self.programs.values(), key=lambda p: -len(p.equations)):
            at = 0
            for name in (equation.target.name for equation in program.equations):
                if name not in order:
                    order.insert(at, name)
                at = order.index(name) + 1
        yield from order

    def _step(self, name: str, value: Expr, found: Iterable[str]) -> None:
        if name not in self.tensors:
            self.tensors[name] = Tensor(name, axes_of(value, self.tensors))
        target = self.tensors[name]
        self.steps.append(Step(target, value, frozenset(found)))

    def _merged(self, found: Mapping[str, Expr], name: str) -> Expr:
        """One expression for all variants, after steps that assign to `name` where they differ."""
        expressions = tuple(dict.fromkeys(found.values()))
        first = expressions[0]
        if len(expressions) == 1:
            return first
        if any(isinstance(e, Op) and e.name == "add" for e in expressions):
            return self._joined("add", {v: list(_terms(e, "add")) for v, e in found.items()}, name)
        operations = {(e.name, e.axis) if isinstance(e, Op) else None for e in expressions}
        if isinstance(first, Op) and len(operations) == 1:
            return self._op(first, {v: e.args for v, e in found.items() if isinstance(e, Op)})
        return self._chosen(found, name)

    def _op(self, node: Op, found: Mapping[str, tuple[Expr, ...]]) -> Expr:
        parts = []
        for place in range(max(map(len, found.values()))):
            below = {v: a[place] if place < len(a) else KEEP_ALL for v, a in found.items()}
            if len(set(below.values())) == 1:
                parts.append(next(iter(below.values())))
            elif operation(node.name).operands[place].kind == "mask":
                parts.append(self._masked(below, axes_of(node.args[0], self.tensors)))
            else:
                parts.append(self._merged(below, self._fresh("part")))
        return Op(node.name, tuple(parts), node.axis)

    def _masked(self, found: Mapping[str, Expr], axes: tuple[Expr, ...]) -> Expr:
        """A mask that keeps all, and drops what each of the masks drops that are given."""
        name = self._fresh("kept")
        self.tensors[name] = Tensor(name, axes, "mask")
        terms = {v: [KEEP_ALL, *_terms(e, "conjunction")] for v, e in found.items()}
        return self._joined("conjunction", terms, name)

    def _joined(self, joint: str, terms: Mapping[str, list[Expr]], name: str) -> Expr:
        """A sum or a mask with terms that are for some variants alone."""
        start = self._merged({v: ts[0] for v, ts in terms.items()}, name)
        if start != Ref(name):
            self._step(name, start, terms)
        for term in dict.fromkeys(t for ts in terms.values() for t in ts[1:] if t != KEEP_ALL):
            having = {v: term for v, ts in terms.items() if term in ts[1:]}
            self._step(name, Op(joint, (Ref(name), term)), having)
        return Ref(name)

    def _chosen(self, found: Mapping[str, Expr], name: str) -> Expr:
        """By the flag that leaves the fewest differences."""
        flags = {
            flag: self._by(flag, found)
            for flag in self.profile.choices
            if len({self.words[variant][flag] for variant in found}) > 1
        }
        flag = min(flags, key=lambda f: max(len(set(g.values())) for g in flags[f]))
        for group in flags[flag]:
            whole = self._merged(group, name)
            if whole != Ref(name):
                self._step(name, whole, group)
        return Ref(name)

    def _by(self, flag: str, found: Mapping[str, Expr]) -> list[dict[str, Expr]]:
        groups: dict[str, dict[str, Expr]] = {}
        for variant, expression in found.items():
            groups.setdefault(self.words[variant][flag], {})[variant] = expression
        return list(groups.values())

    def _fresh(self, name: str) -> str:
        self.taken.add(found := fresh(name, self.taken))
        return found


def _terms(node: Expr, joint: str) -> Iterator[Expr]:
    if isinstance(node, Op) and node.name == joint:
        yield from _terms(node.args[0], joint)
        yield node.args[1]
    else:
        yield node
