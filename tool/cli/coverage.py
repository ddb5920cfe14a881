"""The command that shows what the crossed cases cover: `qkvac cases --coverage`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from qkvac.spec.cases.catalogue import profiles_with_cases
from qkvac.spec.cases.coverage import Coverage
from qkvac.spec.cases.covering import Pair
from qkvac.spec.registry import known_profiles
from qkvac.subjects.selection import Selection


def show_coverage(profiles: tuple[str, ...], form: str) -> None:
    """Which values stand together in some case, and why others cannot; by profile."""
    Selection(profiles=profiles, tier="quick").check()
    names = [name for name in profiles_with_cases() if not profiles or name in profiles]
    found = {name: Coverage(known_profiles()[name]) for name in names}
    if form == "json":
        shown = {name: _json(coverage) for name, coverage in found.items()}
        click.echo(json.dumps(shown, ensure_ascii=False, indent=1))
        return
    for name, coverage in found.items():
        _print(name, coverage)
    click.echo(
        "\n--format json names the case for every pair, and the reason of every missing one."
    )


def _print(name: str, coverage: Coverage) -> None:
    met, missing = coverage.met, coverage.missing
    count = len(coverage.rows)
    click.echo(f"\n{name}: {count} cases hold {len(met)} of {len(met) + len(missing)} pairs")
    for dimension, values in coverage.space.dimensions.items():
        click.echo(f"  {dimension:<8} {_cut(map(_word, values), 69)}")
    for reason, pairs in Counter(missing.values()).most_common():
        click.echo(f"  {pairs:>5} left out: {reason or 'NO REASON'}")
    triples = coverage.triples
    if triples:
        kept = sum(case is not None for case in triples.values())
        click.echo(f"  {kept} of {len(triples)} triples of a kind of length, data and a flag")


def _json(coverage: Coverage) -> dict[str, Any]:
    return {
        "dimensions": {name: list(v) for name, v in coverage.space.dimensions.items()},
        "met": [[*_pair(pair), case] for pair, case in coverage.met.items()],
        "missing": [[*_pair(pair), reason] for pair, reason in coverage.missing.items()],
        "triples": [[*words, case] for words, case in coverage.triples.items()],
    }


def _pair(pair: Pair) -> tuple[str, str]:
    (one, a), (other, b) = pair
    return f"{one} = {_word(a)}", f"{other} = {_word(b)}"


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cut(words: Iterable[str], width: int) -> str:
    """As many words as fit, and how many are left."""
    every = list(words)
    for count in range(len(every), 0, -1):
        rest = f" … {len(every) - count} more" if count < len(every) else ""
        text = " ".join(every[:count]) + rest
        if len(text) <= width:
            return text
    return f"{len(every)} values"
