"""Covering arrays: few rows in which every pair of values of two dimensions stands together.

A fault that needs two things at once, a length and a mask, shows in a row that has both. Rows are
made greedily: each begins with a pair that is missing yet and takes, dimension by dimension, the
value that brings most of the missing ones. Which values go together is up to a function, whose
reason is kept for every pair that it excludes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""A value for each dimension, or for some."""

Pair: TypeAlias = tuple[tuple[str, Any], tuple[str, Any]]
"""Two dimensions in their order, with a value for each."""

Wanted: TypeAlias = tuple[Row, ...]
"""Parts of rows of which one is to stand in some row."""

Excludes: TypeAlias = Callable[[Row], str]
"""Why these values do not go together, of some dimensions or of all; "" if they do."""


@dataclass(frozen=True)
class Space:
    """Dimensions in order, the values of each, and what excludes a choice of them."""

    dimensions: Mapping[str, Sequence[Any]]
    excludes: Excludes = field(default=lambda row: "")

    def pairs(self) -> Iterator[Pair]:
        """Every pair of values of two dimensions."""
        for one, other in combinations(self.dimensions, 2):
            for a in self.dimensions[one]:
                for b in self.dimensions[other]:
                    yield (one, a), (other, b)

    def of(self, row: Row) -> Iterator[Pair]:
        """The pairs that a row has."""
        given = [(name, row[name]) for name in self.dimensions if name in row]
        yield from combinations(given, 2)


@dataclass(frozen=True)
class Array:
    """Rows, and why the pairs that none of them has are missing."""

    rows: tuple[Row, ...]
    missing: Mapping[Pair, str]
    unmet: tuple[tuple[Wanted, str], ...] = ()
    """What was wanted besides and no row has, and why."""


def covering(
    space: Space,
    holds: Callable[[Row], str] = lambda row: "",
    wanted: Iterable[Wanted] = (),
    tries: int = 16,
    seed: int = 0,
) -> Array:
    """Rows that have every pair which the space does not exclude, and what is `wanted` besides.

    `holds` looks at a whole row and says why it proves nothing, "" if it does; such a row counts
    for nothing. A pair is given up after `tries` whole rows with it that prove nothing.
    """
    chance = random.Random(seed)
    missing = dict[Pair, str]()
    pairs = dict[Pair, None]()
    for pair in space.pairs():
        if reason := space.excludes(dict(pair)):
            missing[pair] = reason
        else:
            pairs[pair] = None
    open_ = _Open(space, pairs)
    rows = list[Row]()
    while open_.pairs:
        pair = open_.any(chance)
        row, reason = _row(space, open_, [dict(pair)], holds, chance, tries)
        if row is None:
            missing[pair] = reason
            open_.close([pair])
        else:
            rows.append(row)
            open_.close(space.of(row))
    unmet = list[tuple[Wanted, str]]()
    for parts in wanted:
        if any(part.items() <= row.items() for part in parts for row in rows):
            continue
        row, reason = _row(space, open_, parts, holds, chance, tries)
        if row is None:
            unmet.append((parts, reason))
        else:
            rows.append(row)
    return Array(tuple(rows), missing, tuple(unmet))


def _row(
    space: Space,
    open_: _Open,
    parts: Sequence[Row],
    holds: Callable[[Row], str],
    chance: random.Random,
    tries: int,
) -> tuple[Row | None, str]:
    """A row that proves something and has one of the parts, or why there is none."""
    able = [part for part in parts if not space.excludes(part)]
    if not able:
        return None, next((space.excludes(part) for part in parts), "no such values")
    reason = "no row can have both"
    for attempt in range(tries):
        # What the greedy choice comes to again and again may be what proves nothing.
        candidates = 3 if attempt < tries // 4 else 0
        row = _best(space, open_, able[chance.randrange(len(able))], chance, candidates)
        if row is not None:
            reason = holds(row)
            if not reason:
                return row, ""
    return None, reason


def drawn(space: Space, part: Row, chance: random.Random) -> Row | None:
    """Any row with a part, or None where none could be made."""
    return _best(space, _Open(space, ()), part, chance, 0)


class _Open:
    """The pairs that no row has yet."""

    def __init__(self, space: Space, pairs: Iterable[Pair]) -> None:
        self.pairs = dict.fromkeys(pairs)
        self._order = {name: place for place, name in enumerate(space.dimensions)}

    def any(self, chance: random.Random) -> Pair:
        """One of those that come first: values are given in the order of their weight."""
        front = min(len(self.pairs), 16)
        return list(_first(self.pairs, front))[chance.randrange(front)]

    def gain(self, row: Row, name: str, value: Any) -> int:
        """How many open pairs a further value has with those of a row."""
        place, count = self._order[name], 0
        for other, given in row.items():
            pair = (
                ((other, given), (name, value))
                if self._order[other] < place
                else ((name, value), (other, given))
            )
            count += pair in self.pairs
        return count

    def close(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self.pairs.pop(pair, None)


def _first(pairs: Iterable[Pair], count: int) -> Iterator[Pair]:
    for _, pair in zip(range(count), pairs, strict=False):
        yield pair


def _best(
    space: Space, open_: _Open, part: Row, chance: random.Random, candidates: int
) -> Row | None:
    """The best of a few rows with a part, or any row; None where none could be made."""
    best, most = None, -1
    for _ in range(candidates or 1):
        row: dict[str, Any] = dict(part)
        order = [name for name in space.dimensions if name not in row]
        chance.shuffle(order)
        total = 1
        for name in order:
            values = space.dimensions[name]
            # Where nothing is gained, the plainest value, which comes first, is the best.
            ranked = [
                (open_.gain(row, name, v), v == values[0], chance.random(), v)
                if candidates
                else (0, False, chance.random(), v)
                for v in values
            ]
            ranked.sort(key=lambda item: item[:3], reverse=True)
            for gain, _, _, value in ranked:
                if not space.excludes({**row, name: value}):
                    row[name] = value
                    total += gain
                    break
            else:
                break
        else:
            if total > most:
                best, most = {name: row[name] for name in space.dimensions}, total
    return best
