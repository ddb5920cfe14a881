"""Cases of any profile in which every two values of its dimensions stand together.

Rows of our own profiles are kept in `crossed.json`, where each was shown to prove something of the
profile's result, or of its gradients. Those of other profiles are made when they are asked for. A
row is for one dtype: the first of its own that a port offers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from qkvac.spec.cases.case import Case
from qkvac.spec.cases.covering import Array, Pair, Row, Wanted, covering
from qkvac.spec.cases.derived_cases import Maker, proved
from qkvac.spec.cases.dimensions import (
    ABSENT,
    CLASSES,
    EXACT,
    OF_SCORES,
    SAME,
    Dimensions,
    fitting,
)
from qkvac.spec.cases.gradient_cases import gradient_case
from qkvac.spec.formats import DTYPES
from qkvac.spec.inputs import derived_families as made
from qkvac.spec.inputs.anatomy import Anatomy
from qkvac.spec.inputs.derived_families import Family
from qkvac.spec.inputs.families import Frame, Inputs
from qkvac.spec.inputs.mask_patterns import patterned
from qkvac.spec.profile import PLAIN, Profile

FAMILIES: Final[Mapping[str, Family]] = {
    "plain": made.plain,
    "cool": made.cool,
    "hot": made.hot,
    "ranged": made.ranged,
    "tiny": made.tiny,
    "equal-rows": made.equal_rows,
    "zero-row": made.zero_row,
    "cancelling": made.cancelling,
    "whole": made.whole,
    "lookup": made.lookup,
    "balanced": made.balanced,
}
"""Families that do not depend on how far scores have to be moved."""


@dataclass(frozen=True)
class Masked:
    """A family whose mask has another shape and keeps other keys."""

    family: Family
    shape: str
    pattern: str

    def __call__(self, f: Frame, a: Anatomy) -> Inputs:
        inputs = self.family(f, a)
        sizes = {**f.sizes, "1": 1}
        for tensor in a.program.inputs:
            if tensor.name in a.profile.masks:
                own = self.shape.split("x")
                lead = f.batch if own[0] == "B" else ()
                if len(own) > tensor.rank:
                    lead = lead or (1,) * len(f.batch)
                    own = own[1:]
                shape = (*lead, *(sizes[axis] for axis in own))
                additive = tensor.kind != "mask"
                inputs[tensor.name] = patterned(f, tensor.name, shape, self.pattern, additive)
        return inputs


@dataclass(frozen=True)
class Crossing:
    """Makes the cases of the rows of a profile, or of its gradients."""

    dimensions: Dimensions
    without: frozenset[str] = frozenset()
    """What a port does not support, of `ADAPTED` and what its profile declares as unequal."""

    @property
    def profile(self) -> Profile:
        return self.dimensions.profile

    def case(self, row: Row, exact: Sequence[str] | None = None) -> Case | None:
        """The case of a row; None where the text has no such sizes, or no such inputs.

        `exact` are the quantities that are known to be exact, which otherwise is found out.
        """
        adapted = self.adapted(row)
        if adapted != row:
            row, exact = adapted, ()
        # What is known to be exact is known to have sizes that fit.
        known = self.dimensions.sizes(row)
        sizes = known if exact is not None else fitting(self.dimensions, row)
        if sizes is None:
            return None
        variant = row.get("text", next(iter(self.profile.texts)))
        maker = Maker(Anatomy(self.profile, variant))
        attributes = dict(maker.attributes(sizes))
        attributes |= {k: row[k] for k in attributes if row.get(k, ABSENT) != ABSENT}
        dtypes = self._dtypes(row)
        found = maker.made(
            f"crossed-{row['data']}",
            sizes,
            self._family(maker, row),
            WHY,
            name="/".join((*self.words(row), *([named(self.without)] if self.without else []))),
            batch=row.get("leading", ()),
            dtypes=dtypes,
            attributes=attributes,
            layouts=self._layouts(maker.anatomy, row["layout"]),
            crossed=True,
        )
        if self.dimensions.gradients:
            found = gradient_case(found, why=f"gradients of {WHY}")
            found = replace(found, layouts=self._layouts(maker.anatomy, row["layout"], found))
        if exact is None:
            if row["data"] in OF_SCORES and not maker.reaches(found):
                return None
            exact = proved(found) if row["data"] in EXACT else ()
        return replace(found, exact=tuple(exact))

    def adapted(self, row: Row) -> Row:
        """The row with plain values for what a port does not support."""
        found = dict(row)
        if BATCHES in self.without and "leading" in found:
            found["leading"] = ()
        for word in self.without - {BATCHES}:
            for axis in self.profile.unequal[word]:
                if axis in self.dimensions.ratios:
                    found[axis] = 1
                elif axis in self.dimensions.seconds:
                    found[axis] = SAME
        return found

    def words(self, row: Row) -> Iterator[str]:
        """What sets a row apart besides its data and sizes."""
        if row.get("text", PLAIN) != PLAIN:
            yield row["text"]
        if row.get("mask", ABSENT) != ABSENT:
            yield f"{row['mask']}-{row['pattern']}"
        for keyword in self.dimensions.parameters:
            if row.get(keyword, ABSENT) != ABSENT:
                yield f"{keyword}={row[keyword]:g}"
        if row["layout"] != "C":
            yield row["layout"]

    def _dtypes(self, row: Row) -> tuple[str, ...]:
        order = dict.fromkeys((row["dtype"], "float32", *DTYPES))
        return tuple(d for d in order if not self.dimensions.excludes({**row, "dtype": d}))

    def _family(self, maker: Maker, row: Row) -> Family:
        data, shift = row["data"], maker.shift
        moves: dict[str, Family] = {
            "low": partial(made.moved, by=-shift),
            "high": partial(made.moved, by=shift),
            "row-shift": partial(made.moved, by=shift, rows=True),
        }
        family = moves[data] if data in moves else FAMILIES[data]
        if row.get("mask", ABSENT) == ABSENT:
            return family
        return Masked(family, row["mask"], row["pattern"])

    def _layouts(self, anatomy: Anatomy, word: str, case: Case | None = None) -> dict[str, str]:
        layout, _, name = word.partition(":")
        if layout == "C":
            return {}
        program = anatomy.program if case is None else case.program
        names = [t.name for t in program.inputs if t.rank >= 2 or t.kind == "index"]
        return dict.fromkeys([name] if name else names, layout)


BATCHES: Final = "batches"
MARK: Final = "without-"


def adaptable(profile: Profile) -> frozenset[str]:
    """What a port may lack so that rows are adapted to it, and not left out."""
    return frozenset(profile.unequal) | (frozenset() if profile.samples else {BATCHES})


def named(without: frozenset[str]) -> str:
    """What rows are adapted to, as it stands in an id."""
    return MARK + "+".join(sorted(without))


def without_of(id: str) -> frozenset[str]:
    """What the rows are adapted to that an id is of."""
    found = [part for part in id.split("/") if part.startswith(MARK)]
    return frozenset(found[0].removeprefix(MARK).split("+")) if found else frozenset()


WHY: Final = "things together that kernels treat apart"


# --- arrays ----------------------------------------------------------------------------------


def triples(dimensions: Dimensions) -> Iterator[tuple[tuple[str, str, str], Wanted]]:
    """A kind of length, a family of data and a flag: each choice that there is, by its words."""
    flags = [text for text in dimensions.profile.texts if text != PLAIN and "-" not in text]
    if not flags or not dimensions.anatomy.lengths:
        return
    name = dimensions.anatomy.lengths[0]
    known = dimensions.space.dimensions
    for kind, lengths in CLASSES.items():
        for data in known["data"]:
            for flag in flags:
                chosen = [n for n in lengths if n in known[name]]
                every = ({name: n, "data": data, "text": flag} for n in chosen)
                parts = tuple(part for part in every if not dimensions.space.excludes(part))
                if parts:
                    yield (kind, data, flag), parts


def array(dimensions: Dimensions) -> Array:
    """The rows of a profile that nothing is stored of."""
    crossing = Crossing(dimensions)

    def holds(row: Row) -> str:
        return "" if crossing.case(row) is not None else "no inputs have both"

    return covering(dimensions.space, holds, dict(triples(dimensions)).values())


STORE: Final = Path(__file__).with_name("crossed.json")


@dataclass(frozen=True)
class Stored:
    """A row, and the quantities that its case makes exact."""

    row: Row
    exact: tuple[str, ...] | None


def crossed(profile: Profile, without: frozenset[str] = frozenset()) -> tuple[Case, ...]:
    """The crossed cases of a profile, in a fixed order, for a port that lacks `without`."""
    crossing = Crossing(dimensions_of(profile), without)
    made_now = ((known.row, crossing.case(known.row, known.exact)) for known in given(profile))
    found = dict[str, Case]()
    seen = set[tuple[str, Any]]()
    for row, case in made_now:
        if case is not None and case.id not in found:
            core = not seen.issuperset(row.items())
            seen.update(row.items())
            found[case.id] = replace(case, core=core)
    return tuple(found.values())


def dimensions_of(profile: Profile) -> Dimensions:
    """The dimensions of a profile; fewer data where nothing is stored of it."""
    of, gradients = profile.of or profile, profile.of is not None
    dimensions = Dimensions(of, gradients)
    if _kept(profile.name, dimensions) is not None:
        return dimensions
    return Dimensions(of, gradients, proved=False)


def given(profile: Profile) -> tuple[Stored, ...]:
    """The rows of a profile: those that are stored, or those that are made now."""
    dimensions = dimensions_of(profile)
    kept = _kept(profile.name, dimensions)
    if kept is None:
        return tuple(Stored(row, None) for row in array(dimensions).rows)
    names = list(dimensions.space.dimensions)
    values = list(dimensions.space.dimensions.values())
    return tuple(
        Stored({n: v[i] for n, v, i in zip(names, values, places, strict=True)}, tuple(exact))
        for places, exact in kept["rows"]
    )


def is_stored(profile: Profile) -> bool:
    """Whether rows of a profile are kept that are rows of its dimensions."""
    return _kept(profile.name, dimensions_of(profile)) is not None


def reasons(profile: Profile) -> Mapping[Pair, str]:
    """Of stored rows, the pairs that none of them has, and why."""
    kept = _kept(profile.name, dimensions_of(profile))
    if kept is None:
        return {}
    return {
        ((one[0], _value(one[1])), (other[0], _value(other[1]))): reason
        for one, other, reason in kept["missing"]
    }


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _kept(name: str, dimensions: Dimensions) -> Mapping[str, Any] | None:
    """What is stored of a profile; None where its dimensions are others than today's."""
    kept: Mapping[str, Any] | None = _store().get(name)
    if kept is None or kept["dimensions"] != to_json(dimensions.space.dimensions):
        return None
    return kept


@cache
def _store() -> Mapping[str, Any]:
    if not STORE.exists():
        return {}
    found: Mapping[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))
    return found


def to_json(dimensions: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Dimensions as they are stored."""
    return {name: json.loads(json.dumps(list(values))) for name, values in dimensions.items()}


def places_of(dimensions: Dimensions, row: Row) -> list[int]:
    """A row as it is stored: the place of each value in its dimension."""
    return [list(v).index(row[name]) for name, v in dimensions.space.dimensions.items()]
