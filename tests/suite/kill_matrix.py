"""The kill matrix as a document, and the command that measures it.

`python -m qkvac.tests.suite.kill_matrix` measures it (minutes) and writes docs/kill-matrix.md;
with `--seeds 50` also how often correct variants are accused, on that many fresh draws.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from qkvac.cells import CHECKS
from qkvac.spec.faults.catalogue import FAULTS, Fault
from qkvac.spec.registry import known_profiles
from qkvac.spec.verdicts.clauses import CLAUSES
from qkvac.tests.suite import variants
from qkvac.tests.suite.killing import (
    AXES,
    BACKWARD,
    FORWARD,
    HOMES,
    Row,
    Table,
    demonstrable,
    equivalent,
    examined,
    has_place,
    home,
    measure,
    visiting,
)

__all__ = ["COLUMNS", "DOCUMENT", "columns", "demonstrable", "documented", "examined", "visiting"]

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "kill-matrix.md"
CHECKED: Final = "checks"
"""The column of checks, and of calls without an answer."""
SYMBOLS: Final = tuple(clause.word for clause in CLAUSES if clause.about_values)
KINDS: Final = {
    "formula": "wrong formulas",
    "arithmetic": "poor arithmetic",
    "behaviour": "misbehaviour",
}
FUNCTIONS: Final = {
    "attention": "attention",
    "scaled_dot_product_attention": "sdpa",
    "multi_head_attention": "multi-head",
    "attention_linear_layers": "linear",
    "embedding": "embedding",
    "causal_attention": "causal",
    "dot_product_attention": "no weights",
}
SHORT: Final = {**FUNCTIONS, **{f"{name}_gradients": short for name, short in FUNCTIONS.items()}}


def columns(profile: str) -> tuple[str, ...]:
    """The columns of a profile's table; of gradients those that are asked for."""
    declared = known_profiles()[profile]
    hidden = declared.intermediates if declared.base else frozenset()
    return (*(name for name in declared.quantities if name not in hidden), CHECKED)


COLUMNS: Final = columns("attention")


def document(table: Table, alarms: Sequence[variants.Tally]) -> str:
    """docs/kill-matrix.md from what was measured."""
    lines = [
        "# Kill matrix",
        "",
        f"{len(FAULTS)} faults are in the catalogue (`qkvac faults`), and every one is caught in",
        "the profile that it is demonstrated in. The tables say what fails there, and on how many",
        f"cases of the default tier (of at most {AXES} tokens): the clause and their number, for",
        "checks their number.",
        "Bold is what must catch the fault (`caught_by`), which the suite's own tests insist on.",
        "Faults marked float64 are smaller than the rounding errors of float32, where no run can",
        "tell them from correct code; those marked float16 need its narrow range; all others are",
        "demonstrated in float32.",
        "",
        "The cases were fixed before the faults under `FURTHER` in",
        "`spec/faults/formulas/attention.py` and `spec/faults/formulas/precision.py` and the last",
        "three habits of `spec/faults/side_effects/calls.py` were written: 25 of the 25 were",
        "caught at the first try.",
        "",
        "Faults of gradients are put to the bench as ports that return gradients and nothing on",
        "the way to them, so that no equation is checked by itself. `tests/suite/test_faint.py`",
        "shows the usual tolerances beside these verdicts.",
        "",
        "Measured and written by `python -m qkvac.tests.suite.kill_matrix --seeds 50`.",
    ]
    for profile in HOMES:
        lines += _tables(profile, table.get(profile, {}))
    lines += ["", "## The same faults in other profiles", ""]
    lines += _elsewhere(table, FORWARD)
    lines += ["", "## The same faults of gradients in other profiles", ""]
    lines += _elsewhere(table, BACKWARD)
    lines += _correct(alarms)
    return "\n".join(lines)


def _tables(profile: str, rows: Mapping[str, Row]) -> list[str]:
    lines = list[str]()
    for kind, title in KINDS.items():
        faults = [fault for fault in demonstrable(profile) if fault.kind == kind]
        if not faults:
            continue
        lines += ["", f"## {profile}: {title}", ""]
        lines += [f"| fault | {' | '.join(columns(profile))} |"]
        lines.append(f"|---|{'---|' * len(columns(profile))}")
        lines += [_row(fault, profile, rows.get(fault.name, {})) for fault in faults]
    return lines


def _row(fault: Fault, profile: str, found: Row) -> str:
    """One line of a table; checks, `error` and `missing` stand in the last column."""
    demanded = {tuple(words.rsplit(" ", 1)) for words in fault.caught_by}
    cells = defaultdict[str, list[str]](list)
    order = {symbol: place for place, symbol in enumerate(SYMBOLS)}
    for (where, what), count in sorted(found.items(), key=lambda i: order.get(i[0][1], 9)):
        own = where in columns(profile) and what in (*SYMBOLS, "missing")
        shown = f"{what} {count}"
        if not own:
            shown = f"{where if where in CHECKS else what} {count}"
        shown = f"**{shown}**" if (where, what) in demanded else shown
        cells[where if own else CHECKED].append(shown)
    name = f"`{fault.name}`" + (f" ({fault.dtype})" if fault.dtype != "float32" else "")
    texts = (", ".join(cells[column]) for column in columns(profile))
    return f"| {name} | {' | '.join(texts)} |"


def _elsewhere(table: Table, homes: Sequence[str]) -> list[str]:
    """What catches faults outside the profile in which they are demonstrated."""
    notes = dict[str, int]()
    others = homes[1:]
    pairs = sum(len(visiting(profile)) for profile in others)
    alike = sum(bool(equivalent(f, profile)) for profile in others for f in visiting(profile))
    lines = [
        f"Rules of rewriting find their places in other profiles, too: {pairs} times in all. What",
        "is shown is what catches the fault on the first case that does, cases being tried in a",
        f"fixed order. In {alike} places it is the right formula after all, or nothing that a case",
        "of the default tier could show; the notes say why.",
        "",
        f"| fault | {' | '.join(SHORT[profile] for profile in others)} |",
        f"|---|{'---|' * len(others)}",
    ]
    for fault in FAULTS.values():
        cells = list[str]()
        for profile in others:
            if home(fault.name) == profile:
                cells.append("above")
            elif not has_place(fault.name, profile):
                cells.append("")
            elif reason := equivalent(fault, profile):
                cells.append(f"note {notes.setdefault(reason, len(notes) + 1)}")
            else:
                found = [" ".join(pair) for pair in sorted(table[profile][fault.name])]
                cells.append(", ".join(found[:2]))
        if any(cell not in ("", "above") for cell in cells):
            lines.append(f"| `{fault.name}` | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}." for reason, number in notes.items())]
    return lines


def _correct(alarms: Sequence[variants.Tally]) -> list[str]:
    return [
        "",
        "## Correct variants",
        "",
        "Nothing may catch these; what is counted are cells with a verdict, over fresh draws of",
        "random cases (`FAMILIES` in `tests/suite/variants.py`) of every profile that they offer.",
        "",
        "| variant | dtype | draws | cells | false alarms |",
        "|---|---|---|---|---|",
        *(f"| {t.name} | {t.dtype} | {t.draws} | {t.cells} | {t.alarms} |" for t in alarms),
        "",
        _rate(alarms),
        "",
    ]


def _rate(alarms: Sequence[variants.Tally]) -> str:
    cells, wrong = sum(t.cells for t in alarms), sum(t.alarms for t in alarms)
    draws = max((t.draws for t in alarms), default=0)
    names = len({t.name for t in alarms})
    limit = 3 / cells if cells and not wrong else wrong / max(cells, 1)
    return f"{names} variants, {draws} draws: {wrong} false alarms in {cells} cells" + (
        f", a rate below {limit:.1g} with 95 % confidence." if not wrong else f" ({limit:.1g})."
    )


def documented(text: str) -> dict[str, dict[str, set[str]]]:
    """Profile → fault → columns with bold entries, from the document's tables."""
    result = dict[str, dict[str, set[str]]]()
    profile = ""
    for line in text.splitlines():
        if line.startswith("## "):
            profile = line.removeprefix("## ").partition(":")[0]
        parts = [part.strip() for part in line.split("|")[1:-1]]
        if profile in known_profiles() and len(parts) > 1 and parts[0].startswith("`"):
            name = parts[0].split("`")[1]
            bold = zip(columns(profile), parts[1:], strict=True)
            result.setdefault(profile, {})[name] = {column for column, cell in bold if "**" in cell}
    return result


def _read(path: Path) -> Table:
    """What an earlier measurement kept."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    return {
        profile: {
            name: {(k.rsplit(" ", 1)[0], k.rsplit(" ", 1)[1]): v for k, v in row.items()}
            for name, row in rows.items()
        }
        for profile, rows in plain.items()
    }


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=0, help="draws for correct variants")
    parser.add_argument("--keep", type=Path, help="file that keeps what was measured")
    parser.add_argument("--kept", type=Path, help="such a file, instead of measuring again")
    parser.add_argument("-n", type=int, default=1, help="processes")
    given = parser.parse_args(list(arguments) if arguments is not None else None)
    started = time.monotonic()
    table = _read(given.kept) if given.kept else measure(given.n)
    alarms = variants.measure(given.seeds)
    DOCUMENT.write_text(document(table, alarms), encoding="utf-8")
    if given.keep:
        plain = {
            profile: {name: {" ".join(k): v for k, v in row.items()} for name, row in rows.items()}
            for profile, rows in table.items()
        }
        given.keep.write_text(json.dumps(plain, ensure_ascii=False))
    count = sum(map(len, table.values()))
    print(f"{DOCUMENT}: {count} faults in profiles, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
