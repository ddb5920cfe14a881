"""What a port takes alone: the cases outside are not put to it, and counted with the reason.

`supports` says what a port takes besides plain inputs; this table says what it declines of them.
Each word is about cases for which there is a choice: a profile that is causal in all of its texts
is nothing that `causal` could narrow, nor is a profile without the axes that have to be equal.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qkvac.spec.cases.case import Case
from qkvac.spec.grammar.syntax import Op, Program, walk
from qkvac.spec.registry import known_profiles, remembered

EQUATION: Final = re.compile(r"\s*\w+(\s*=\s*\w+)+\s*")
"""Axes that have to be equal: `d = c`, or several, `d = c = o`."""


@dataclass(frozen=True)
class Only:
    """A checked table; nothing of it is declared by default."""

    causal: bool | None = None
    """True for attention that is always causal, False for one that never is."""
    shapes: tuple[tuple[str, ...], ...] = ()
    """Axes that have to be of equal size."""
    rank: tuple[int, ...] = ()
    """Numbers of axes of the first input, those of a batch included."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Only:
        """From a table that fits the schema; raises ValueError for a shape that names no axes."""
        shapes = enumerate(table.get("shapes", ()))
        return cls(
            table.get("causal"),
            tuple(_axes(f"only.shapes.{place}", text) for place, text in shapes),
            tuple(dict.fromkeys(table.get("rank", ()))),
        )

    @property
    def words(self) -> tuple[str, ...]:
        """What is declared, in words that are the reasons why cases are left out."""
        return tuple(filter(None, (self._causality, self._square, self._ranks)))

    @property
    def _causality(self) -> str:
        return {None: "", True: "causal only", False: "never causal"}[self.causal]

    @property
    def _square(self) -> str:
        equal = ", ".join(" = ".join(axes) for axes in self.shapes)
        return f"square only ({equal})" if equal else ""

    @property
    def _ranks(self) -> str:
        return f"rank {' and '.join(map(str, self.rank))} only" if self.rank else ""

    def excludes(self, case: Case) -> str:
        """Why a case is not put to the port, in words; "" if it is."""
        chosen = self.causal is not None and is_choice(case.profile)
        if chosen and is_causal(case.program) != self.causal:
            return self._causality
        for axes in self.shapes:
            if len({case.sizes[axis] for axis in axes if axis in case.sizes}) > 1:
                return self._square
        return "" if self.takes(rank(case)) else self._ranks

    def takes(self, axes: int) -> bool:
        """Whether inputs may have so many axes."""
        return not self.rank or axes in self.rank


def rank(case: Case) -> int:
    """The axes of the first input of a case's function, those of a batch included."""
    declared = case.declared
    return len(case.batch) + declared.inputs[declared.takes[0]].rank


@remembered
def is_choice(profile: str) -> bool:
    """Whether a function may be asked for causal attention, and for another."""
    return len(set(map(is_causal, known_profiles()[profile].programs))) > 1


def is_causal(program: Program) -> bool:
    """Whether a text hides later keys."""
    return any(
        isinstance(node, Op) and node.name == "causal"
        for equation in program.equations
        for node in walk(equation.expression)
    )


def _axes(where: str, text: str) -> tuple[str, ...]:
    if not EQUATION.fullmatch(text):
        raise ValueError(f"{where} = {text!r}: write axes that are equal, like 'd = c'")
    axes = tuple(part.strip() for part in text.split("="))
    known = _known_axes()
    for axis in axes:
        if axis not in known:
            near = difflib.get_close_matches(axis, known, n=1) or [
                other for other in known if other.lower() == axis.lower()
            ]
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where} = {text!r}: {axis!r} is no axis of a profile{hint}")
    return axes


@remembered
def _known_axes() -> tuple[str, ...]:
    programs = (program for profile in known_profiles().values() for program in profile.programs)
    return tuple(sorted({axis for program in programs for axis in program.axis_names}))
