"""What a covering array covers: pairs that are met, by which case, and those that cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from qkvac.spec.cases.case import Case
from qkvac.spec.cases.covering import Pair, Row, Space
from qkvac.spec.cases.crossed import Crossing, dimensions_of, given, reasons, triples
from qkvac.spec.cases.dimensions import Dimensions
from qkvac.spec.profile import Profile


@dataclass(frozen=True)
class Coverage:
    """The rows of a profile, and what they meet."""

    profile: Profile

    @cached_property
    def dimensions(self) -> Dimensions:
        return dimensions_of(self.profile)

    @property
    def space(self) -> Space:
        return self.dimensions.space

    @cached_property
    def rows(self) -> Sequence[tuple[Row, Case]]:
        """Rows and their cases."""
        crossing = Crossing(self.dimensions)
        found = (
            (known.row, crossing.case(known.row, known.exact)) for known in given(self.profile)
        )
        return tuple((row, case) for row, case in found if case is not None)

    @cached_property
    def met(self) -> Mapping[Pair, str]:
        """Pairs that a row has, and the id of the first one's case."""
        found = dict[Pair, str]()
        for row, case in self.rows:
            for pair in self.space.of(row):
                found.setdefault(pair, case.id)
        return found

    @cached_property
    def missing(self) -> Mapping[Pair, str]:
        """Pairs that no row has, and why; without a reason they should have been met."""
        known = reasons(self.profile)
        return {
            pair: self.space.excludes(dict(pair)) or known.get(pair, "")
            for pair in self.space.pairs()
            if pair not in self.met
        }

    @cached_property
    def triples(self) -> Mapping[tuple[str, str, str], str | None]:
        """A kind of length, a family of data and a flag: the case that has all three, if any."""
        found = dict[tuple[str, str, str], str | None]()
        for words, parts in triples(self.dimensions):
            ids = (c.id for row, c in self.rows if any(p.items() <= row.items() for p in parts))
            found[words] = next(ids, None)
        return found
