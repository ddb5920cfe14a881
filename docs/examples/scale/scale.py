"""Why scores are divided by √c: without it, softmax turns into a step function.

Queries and keys have components of variance 1, so a score is a sum of c products and has variance
c. Undivided, the largest score of a row runs away from the others as c grows; its weight goes to
1, and the gradient that reaches the scores goes to 0: nothing is learnt any more. Divided by √c,
scores have variance 1 for every c, and weights and gradients stay as they are.

    python scale.py                     a table
    python scale.py --picture FILE      and a picture; needs matplotlib

All numbers come from the spec's own equations and from their derived gradients, with proven
error bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkvac.spec.enclosures.enclosure import certify
from qkvac.spec.grammar.adjoint import adjoint
from qkvac.spec.grammar.scalar import Scalar
from qkvac.spec.inputs.draws import normal
from qkvac.spec.registry import forward_profiles

WIDTHS = tuple(2**k for k in range(1, 13))
"""c from 2 to 4096."""
TOKENS = 16
HEADS = 8
"""Rows are averaged over this many independent draws."""


@dataclass(frozen=True)
class Row:
    """What becomes of weights and gradients at one width; each number is (lower, upper)."""

    c: int
    scaled: bool
    largest: tuple[float, float]
    """Mean of the largest weight of a row; 1 is a step function, 1/16 is uniform."""
    gradient: tuple[float, float]
    """Median, over queries, of the largest gradient of a score, for a cotangent of variance 1.

    The median, because a few queries whose two best keys happen to tie keep a gradient.
    """


def measured(c: int, scaled: bool) -> Row:
    """Weights and gradients for queries, keys and values of width c."""
    shapes = {"Q": c, "K": c, "V": 4, "dC": 4}
    inputs = {
        name: normal(f"scale/{name}/{c}", (HEADS, TOKENS, width), "float32")
        for name, width in shapes.items()
    }
    profile = forward_profiles()["scaled_dot_product_attention"]
    program = adjoint(profile.program("plain" if scaled else "scale"), profile.last)
    sizes: dict[str, Any] = {"h": HEADS, "g": HEADS, "L": TOKENS, "S": TOKENS, "d": c, "v": 4}
    sizes["scale"] = Scalar.of(1)
    found = certify(program, inputs, sizes, "float64", wanted=("A", "dS"))
    A, dS = found["A"], found["dS"]
    low, high = ((A.hi + sign * A.radius).max(axis=-1).mean() for sign in (-1, 1))
    least, most = (
        np.median(np.maximum(np.abs(dS.hi) + sign * dS.radius, 0).max(axis=-1)) for sign in (-1, 1)
    )
    return Row(c, scaled, (float(low), float(high)), (float(least), float(most)))


def rows(widths: Iterable[int] = WIDTHS) -> list[Row]:
    """With and without the scale, for every width."""
    return [measured(c, scaled) for c in widths for scaled in (True, False)]


def table(found: list[Row]) -> str:
    """The numbers side by side, one line a width."""
    head = (
        "           scores / √c                 scores as they are\n"
        "    c      largest weight  gradient    largest weight  gradient"
    )
    lines = [head]
    for with_scale, without in zip(found[::2], found[1::2], strict=True):
        cells = "".join(
            f"  {row.largest[0]:>14.4f}  {row.gradient[0]:>8.1e}  " for row in (with_scale, without)
        )
        lines.append(f"{with_scale.c:>5}    {cells}".rstrip())
    return "\n".join(lines)


def picture(found: list[Row], path: Path) -> None:
    """Draws the table. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for place, name, label in (
        (1, "largest", "mean of the largest weight in a row"),
        (2, "gradient", "gradient that reaches the scores (median)"),
    ):
        axes = figure.add_subplot(1, 2, place)
        for scaled, text, style in ((True, "scores / √c", "o-"), (False, "scores", "s--")):
            chosen = [row for row in found if row.scaled is scaled]
            values = [getattr(row, name)[0] for row in chosen]
            axes.plot([row.c for row in chosen], values, style, label=text)
        axes.set_xscale("log", base=2)
        axes.set_yscale("linear" if name == "largest" else "log")
        axes.set_xlabel("width c of queries and keys")
        axes.set_title(label)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)


def main(words: list[str]) -> int:
    """Prints the table, and draws it where a file is named."""
    path = None
    if words:
        if len(words) != 2 or words[0] != "--picture":
            print("usage: scale.py [--picture FILE]", file=sys.stderr)
            return 2
        path = Path(words[1])
    found = rows()
    print(table(found))
    if path is not None:
        try:
            picture(found, path)
        except ImportError:
            print("a picture needs matplotlib: pip install matplotlib", file=sys.stderr)
            return 2
        except (OSError, ValueError) as error:
            print(f"{path} cannot be written: {error}", file=sys.stderr)
            return 2
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
