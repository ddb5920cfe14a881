"""The kill matrix: which checks catch which faults, over all cases of the default tier.

`python -m qkvac.tests.suite.kill_matrix` measures it (minutes) and writes docs/kill-matrix.md;
with `--seeds 50` also how often correct variants are accused, on that many fresh draws.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from qkvac.cells import CHECKS
from qkvac.spec.attention import PROFILES
from qkvac.spec.cases import Case, cases
from qkvac.spec.faults import FAULTS, Fault
from qkvac.tests.suite import variants
from qkvac.tests.suite.bench import Finding, fault_bench

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "kill-matrix.md"

PROFILE: Final = "attention"
QUANTITIES: Final = PROFILES[PROFILE].quantities
COLUMNS: Final = (*QUANTITIES, *(c for c in CHECKS if c not in ("budget", "mode")))
SYMBOLS: Final = ("contract", "E", "L", "B")

FIRST: Final = (
    "normal/33x20x7",
    "ternary/16x16x16",
    "lookup/33x20x7",
    "hot/33x20x7",
    "shift+1000/33x20x7",
    "copies/16x16x16",
    "layout-F/33x20x7",
    "layout-strided/33x20x7",
    "normal/1x20x7",
    "empty/0x20x7",
)
"""Cases that catch most faults, in the order in which they are looked at."""

AXES: Final = 140
"""Longer cases are left out here: they are slow, and what they catch shorter ones catch, too."""


def examined(profile: str = PROFILE) -> list[Case]:
    """The cases of the matrix, those first that catch most faults."""
    chosen = [c for c in cases(profile) if c.tier == "default" and max(c.sizes.values()) <= AXES]
    rank = {f"{profile}/{name}": place for place, name in enumerate(FIRST)}
    return sorted(chosen, key=lambda case: rank.get(case.id, len(rank)))


def demonstrable(profile: str = PROFILE) -> list[Fault]:
    """Faults that a profile with cases has a place for."""
    return [fault for fault in FAULTS.values() if fault.fit(profile) != "never"]


def kills(fault: Fault, profile: str = PROFILE) -> Counter[Finding]:
    """Findings, and on how many cases, in the dtype that the fault is demonstrated in."""
    bench, program = fault_bench(fault, profile=profile), PROFILES[profile].program()
    found = Counter[Finding]()
    for case in cases(profile):
        asked = case in examined(profile) and fault.dtype in case.dtypes
        if asked and fault.fits(program, case.sizes):
            found.update(bench.findings(case))
    return found


# --- the document ----------------------------------------------------------------------------


def document(table: Mapping[str, Mapping[Finding, int]], alarms: Sequence[variants.Tally]) -> str:
    """docs/kill-matrix.md from what was measured."""
    other = [fault for fault in FAULTS.values() if fault.name not in table]
    lines = [
        "# Kill matrix",
        "",
        f"{len(FAULTS)} faults are in the catalogue (`qkvac faults`), {len(table)} of them have a",
        "place in a profile that has cases, and every one of these is caught. The table says what",
        f"fails, and on how many cases of the default tier (of at most {AXES} tokens): contract",
        "(c), exact bits (E), the equation on the port's own operands (L), the bound (B); for",
        "checks the number of cases. Bold is what must catch the fault (`caught_by`), which the",
        "suite's own tests insist on. Faults marked float64 are smaller than the rounding errors",
        "of float32, where no run can tell them from correct code; all others are demonstrated in",
        "float32.",
        "",
        "The cases were fixed before the last 25 faults were written (those under `FURTHER` in",
        "`spec/wrong_formulas.py` and `spec/poor_arithmetic.py`, and the last three habits of",
        "`spec/misbehaviour.py`): 25 of the 25 were caught at the first try.",
        "",
        "Measured and written by `python -m qkvac.tests.suite.kill_matrix --seeds 50`.",
    ]
    titles = {
        "formula": "Wrong formulas",
        "arithmetic": "Poor arithmetic",
        "behaviour": "Misbehaviour",
    }
    for kind, title in titles.items():
        rows = [fault for fault in FAULTS.values() if fault.kind == kind and fault.name in table]
        lines += ["", f"## {title}", "", f"| fault | {' | '.join(COLUMNS)} |"]
        lines.append(f"|---|{'---|' * len(COLUMNS)}")
        lines += [_row(fault, table[fault.name]) for fault in rows]
    lines += [
        "",
        "## Not demonstrated",
        "",
        "These apply to profiles that have no cases yet: "
        + ", ".join(f"`{fault.name}`" for fault in other)
        + ".",
        "",
        "## Correct variants",
        "",
        "Nothing may catch these; what is counted are cells with a verdict, over fresh draws of",
        f"the random cases {', '.join(variants.FAMILIES)}.",
        "",
        "| variant | dtype | cells | false alarms |",
        "|---|---|---|---|",
        *(f"| {t.name} | {t.dtype} | {t.cells} | {t.alarms} |" for t in alarms),
        "",
        _rate(alarms),
        "",
    ]
    return "\n".join(lines)


def _rate(alarms: Sequence[variants.Tally]) -> str:
    cells, wrong = sum(t.cells for t in alarms), sum(t.alarms for t in alarms)
    draws = max((t.draws for t in alarms), default=0)
    names = len({t.name for t in alarms})
    limit = 3 / cells if cells and not wrong else wrong / max(cells, 1)
    return f"{names} variants, {draws} draws: {wrong} false alarms in {cells} cells" + (
        f", a rate below {limit:.1g} with 95 % confidence." if not wrong else f" ({limit:.1g})."
    )


def _row(fault: Fault, found: Mapping[Finding, int]) -> str:
    """One line of the table; `error` and `missing` stand in the column of the last quantity."""
    demanded = {tuple(words.rsplit(" ", 1)) for words in fault.caught_by}
    cells = defaultdict[str, list[str]](list)
    order = {symbol: place for place, symbol in enumerate(SYMBOLS)}
    for (where, what), count in sorted(found.items(), key=lambda i: order.get(i[0][1], 9)):
        column = where if where in COLUMNS else QUANTITIES[-1]
        shown = str(count) if what == "M" else f"{what[0] if what == 'contract' else what} {count}"
        cells[column].append(f"**{shown}**" if (where, what) in demanded else shown)
    name = f"`{fault.name}`" + (" (float64)" if fault.dtype == "float64" else "")
    return f"| {name} | {' | '.join(', '.join(cells[column]) for column in COLUMNS)} |"


def documented(text: str) -> dict[str, set[str]]:
    """Fault → bold entries of the document's tables, as "A L"."""
    result = dict[str, set[str]]()
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")[1:-1]]
        if len(parts) == len(COLUMNS) + 1 and parts[0].startswith("`"):
            name = parts[0].split("`")[1]
            result[name] = {
                column for column, cell in zip(COLUMNS, parts[1:], strict=True) if "**" in cell
            }
    return result


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=0, help="draws for correct variants")
    parser.add_argument("--keep", type=Path, help="file that keeps what was measured")
    given = parser.parse_args(list(arguments) if arguments is not None else None)
    started = time.monotonic()
    table = {fault.name: kills(fault) for fault in demonstrable()}
    alarms = variants.measure(given.seeds)
    DOCUMENT.write_text(document(table, alarms), encoding="utf-8")
    if given.keep:
        plain = {name: {" ".join(k): v for k, v in row.items()} for name, row in table.items()}
        given.keep.write_text(json.dumps(plain, ensure_ascii=False))
    print(f"{DOCUMENT}: {len(table)} faults in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
