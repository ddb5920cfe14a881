"""The checks: what is asked of an implementation besides values, and of which cases it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from qkvac.checks import gradient_checks, metamorphic, protocol_checks
from qkvac.checks.findings import Finding, UnansweredError, Visit, failed
from qkvac.checks.normality import stays_normal
from qkvac.checks.relations import (
    copied,
    later_tokens,
    moves,
    own_rows,
    permutations,
    samples,
    shortest,
)
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.registry import known_profiles, remembered
from qkvac.subjects import breadth
from qkvac.subjects.roster import Entry
from qkvac.targets.only import Only, rank

Trait = Callable[[Case], bool]


@dataclass(frozen=True)
class Kind:
    """What makes a difference between subjects; those of one kind are put to the same checks."""

    supports: frozenset[str]
    only: Only
    shapes: str
    adapter: bool
    proved: bool
    """Whether the declaration says what shows that the mode ran."""
    on_cpu: bool

    @classmethod
    def of(cls, entry: Entry) -> Kind:
        subject = entry.subject
        return cls(
            entry.declaration.supports,
            entry.declaration.only,
            entry.shapes,
            subject.port is None,
            bool(entry.declaration.evidence.get(subject.mode)),
            subject.device.partition(":")[0] == "cpu",
        )

    @property
    def compiled(self) -> bool:
        return self.shapes == breadth.FEW

    def plainest(self, dtype: str, profile: str, trait: Trait, variant: str | None = None) -> str:
        """Id of the plainest case of a trait that is run; "" if there is none."""
        where = dtype if self.shapes != breadth.ALL else ""
        return _plainest(profile, self.supports, self.only, self.shapes, where, trait, variant)


Suits = Callable[[Kind, str, Case], bool]


@dataclass(frozen=True)
class Check:
    """A check, and the cases that it is made on."""

    run: Callable[[Visit], Finding]
    suits: Suits
    by_entry: bool = False
    """Whether entries are compared one by one, which takes quantities of the declared shapes."""


def names(entry: Entry, dtype: str, case: Case) -> tuple[str, ...]:
    """The checks that a subject's answer to a case is put to; few cases have any."""
    return _names(Kind.of(entry), dtype, case)


@remembered
def _names(kind: Kind, dtype: str, case: Case) -> tuple[str, ...]:
    gradient = known_profiles()[case.profile].base
    return tuple(
        name
        for name, check in CHECKS.items()
        if (not gradient or name in OF_GRADIENTS) and check.suits(kind, dtype, case)
    )


def finding(name: str, visit: Visit) -> Finding:
    """What a check makes of an answer; a further call without an answer decides it."""
    check = CHECKS[name]
    if check.by_entry and (quantity := visit.misshapen):
        return failed(f"{quantity} has another shape than declared")
    try:
        return check.run(visit)
    except UnansweredError as error:
        return error.finding


# --- which cases ---------------------------------------------------------------------------


@remembered
def _plainest(
    profile: str,
    supports: frozenset[str],
    only: Only,
    shapes: str,
    dtype: str,
    trait: Trait,
    variant: str | None,
) -> str:
    """Id of the plainest case of a trait that a subject can be given; "" if there is none.

    Generic data hide nothing, and those in shapes that are compiled are asked of every mode.
    """
    suited = [
        case
        for case in cases(profile)
        if (variant is None or case.variant == variant)
        and case.tier == "default"
        and breadth.includes(shapes, case, dtype)
        and trait(case)
        and _needs(case) <= supports
        and not only.excludes(case)
    ]
    suited.sort(key=lambda case: (not case.generic, not case.compiled, len(_needs(case))))
    return suited[0].id if suited else ""


@remembered
def _needs(case: Case) -> frozenset[str]:
    return case.needs


def _one(trait: Trait) -> Suits:
    """The plainest case of the trait in a profile."""

    def suits(kind: Kind, dtype: str, case: Case) -> bool:
        return case.id == kind.plainest(dtype, case.profile, trait)

    return suits


def _one_of_each_variant(trait: Trait) -> Suits:
    """The plainest case of the trait in every variant of a profile."""

    def suits(kind: Kind, dtype: str, case: Case) -> bool:
        return case.id == kind.plainest(dtype, case.profile, trait, case.variant)

    return suits


def _is_random(case: Case) -> bool:
    """Fresh data can be drawn, in plain arrays. What kernels take has leading axes anyway."""
    return case.random and not case.layouts and (not case.batch or case.declared.samples)


def _is_plain(case: Case) -> bool:
    """Random data of several tokens."""
    return _is_random(case) and shortest(case) > 1


_is_main: Final = _one(_is_plain)


def _on_adapter(kind: Kind, dtype: str, case: Case) -> bool:
    return kind.adapter and _is_main(kind, dtype, case)


def _in_proved_mode(kind: Kind, dtype: str, case: Case) -> bool:
    return kind.proved and _on_adapter(kind, dtype, case)


def _shows_the_future(case: Case) -> bool:
    """Causal, with tokens on both sides of the last one that is kept."""
    return _is_random(case) and bool(later_tokens(case))


def _shows_the_first(case: Case) -> bool:
    """Some query sees a single key, as it is causal: its values are known."""
    return _shows_the_future(case) and bool(copied(case))


def _has_queries(case: Case) -> bool:
    return not case.masked and _is_plain(case) and bool(own_rows(case))


def _is_batched(case: Case) -> bool:
    return case.random and not case.layouts and samples(case) > 1


def _is_unmasked_batch(case: Case) -> bool:
    return _is_batched(case) and not case.masked


def _feels_all_inputs(case: Case) -> bool:
    return not case.masked and _is_plain(case)


def _can_be_permuted(case: Case) -> bool:
    return _is_plain(case) and bool(permutations(case))


def _takes_masks(case: Case) -> bool:
    return bool(case.declared.masks) and _is_random(case)


def _uncompiled(suits: Suits) -> Suits:
    """Not where further shapes would be compiled."""
    return lambda kind, dtype, case: not kind.compiled and suits(kind, dtype, case)


def _alone(suits: Suits) -> Suits:
    """Only where a sample without its batch is an input, too."""

    def able(kind: Kind, dtype: str, case: Case) -> bool:
        return kind.only.takes(rank(case) - len(case.batch)) and suits(kind, dtype, case)

    return able


def _masked(suits: Suits) -> Suits:
    """Only where masks are supported, and not where another argument would be compiled for."""

    def able(kind: Kind, dtype: str, case: Case) -> bool:
        return "masks" in kind.supports and not kind.compiled and suits(kind, dtype, case)

    return able


def _unchanged_suits(kind: Kind, dtype: str, case: Case) -> bool:
    return bool(case.layouts) or _is_main(kind, dtype, case)


def _repeat_suits(kind: Kind, dtype: str, case: Case) -> bool:
    asked = case.compiled and (case.generic or case.family == "ternary")
    return asked or _is_main(kind, dtype, case)


def _environment_suits(kind: Kind, dtype: str, case: Case) -> bool:
    return (case.compiled and not case.exact) or _is_main(kind, dtype, case)


def _is_exact(case: Case) -> bool:
    return known_profiles()[case.profile].last in case.exact and _is_random(case)


_of_generic: Final = _one_of_each_variant(_is_plain)
_of_exact: Final = _one_of_each_variant(_is_exact)


def _subsets_suit(kind: Kind, dtype: str, case: Case) -> bool:
    """On adapters, and not where every choice would be compiled anew."""
    several = bool(known_profiles()[case.profile].base) and 1 < len(case.results) <= FEW
    return several and kind.adapter and not kind.compiled and _of_generic(kind, dtype, case)


def _scaling_suits(check: str) -> Suits:
    def suits(kind: Kind, dtype: str, case: Case) -> bool:
        if not moves(check, case):
            return False
        if case.profile == "attention":
            # The mission's own profile is asked about every family.
            last = known_profiles()[case.profile].last
            few = case.compiled and (case.generic or last in case.exact)
        else:
            few = _of_generic(kind, dtype, case) or _of_exact(kind, dtype, case)
        return few and (kind.on_cpu or check != "signs") and stays_normal(case, dtype)

    return suits


OF_GRADIENTS: Final = ("unchanged", "repeat", "state", "subsets", "environment", "mode")
"""Checks that are made of gradients; all but one say nothing of what is computed."""
FEW: Final = 4
"""Inputs of which every choice is tried; of more there are too many choices."""

CHECKS: Final[Mapping[str, Check]] = {
    "unchanged": Check(protocol_checks.unchanged, _unchanged_suits),
    "repeat": Check(protocol_checks.repeat, _repeat_suits),
    "state": Check(protocol_checks.state, _is_main),
    "scaling": Check(metamorphic.scaling, _scaling_suits("scaling"), by_entry=True),
    "signs": Check(metamorphic.signs, _scaling_suits("signs"), by_entry=True),
    "future": Check(metamorphic.future, _one_of_each_variant(_shows_the_future), by_entry=True),
    "first-row": Check(
        metamorphic.first_row, _one_of_each_variant(_shows_the_first), by_entry=True
    ),
    "own-row": Check(metamorphic.own_row, _one_of_each_variant(_has_queries), by_entry=True),
    "batch": Check(metamorphic.batch, _one_of_each_variant(_is_batched), by_entry=True),
    "sensitivity": Check(
        metamorphic.sensitivity, _one_of_each_variant(_feels_all_inputs), by_entry=True
    ),
    "permutation": Check(
        metamorphic.permutation, _one_of_each_variant(_can_be_permuted), by_entry=True
    ),
    "samples": Check(
        metamorphic.samples, _alone(_uncompiled(_one(_is_unmasked_batch))), by_entry=True
    ),
    "mask-forms": Check(
        metamorphic.mask_forms, _masked(_one_of_each_variant(_takes_masks)), by_entry=True
    ),
    "subsets": Check(gradient_checks.subsets, _subsets_suit, by_entry=True),
    "environment": Check(protocol_checks.environment, _environment_suits),
    "budget": Check(protocol_checks.budget, _on_adapter),
    "mode": Check(protocol_checks.mode, _in_proved_mode),
}
