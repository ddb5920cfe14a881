"""Publicly reported faults of attention code, the cases of their kind, and faults that show them.

An entry stands for a kind of fault. Where it concerns results or gradients, it lists pairs of a
fault of the catalogue and a case that catches it. Reports about test suites and the like name
where the suite deals with them. `python -m qkvac.tests.suite.known_faults` writes
docs/known-faults.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qkvac.tests.suite.known_reports import GRADIENTS, MASKS, OTHER, REST

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "known-faults.md"


def document() -> str:
    """docs/known-faults.md."""
    lines = [
        "# Known faults",
        "",
        "Faults that users of real attention code reported, as kinds. For each: a fault of the",
        "catalogue (`qkvac faults NAME`) that does the same, and a case that catches it",
        "(`qkvac show CASE`). The suite's own tests assert every pair.",
        "",
        "| kind | reports | fault | caught by |",
        "|---|---|---|---|",
    ]
    for entry in (*MASKS, *REST, *GRADIENTS):
        for place, (fault, case) in enumerate(entry.pairs):
            first = (entry.kind, ", ".join(entry.reports)) if place == 0 else ("", "")
            lines.append(f"| {' | '.join(first)} | `{fault}` | `{case}` |")
    lines += [
        "",
        "Reports that concern no value, with the place where the suite deals with them:",
        "",
        "| kind | reports | where |",
        "|---|---|---|",
        *(f"| {e.kind} | {', '.join(e.reports)} | {e.place} |" for e in OTHER),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    DOCUMENT.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
