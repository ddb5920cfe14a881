"""Trains the modules of all installed frameworks from one start, and judges every step.

python training.py                     a table
python training.py --dtype bfloat16    in another dtype
python training.py --picture FILE      and a picture; needs matplotlib
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from qkvac.targets.packages import adapter
from qkvac.training import STEPS, Taken, Training, trained, trainers

DTYPES = ("float64", "float32", "bfloat16", "float16")
SHOWN = range(0, STEPS + 1, 5)
"""After how many steps the table shows the loss."""


def trainings(dtype: str) -> Iterator[tuple[str, Training]]:
    """What can be trained here, each framework in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    for backend, pairs in groupby(trainers(), key=itemgetter(0)):
        if find_spec(backend.removesuffix("-modules")) is None:
            continue
        with ProcessPoolExecutor(1, spawn) as pool:
            for _, mode in pairs:
                if not adapter(backend).unavailable(mode):
                    found = pool.submit(trained, backend, mode, dtype).result()
                    yield f"{backend}/{mode}", found


def line(name: str, training: Training) -> str:
    """A backend's losses, its largest error over its bound, and what became of its steps."""
    losses = "".join(f"{training.losses[k][1]:>7.3f}" for k in SHOWN if k <= len(training.steps))
    ratio = max(step.ratio for step in training.steps)
    right = sum(not step.failures for step in training.steps)
    return f"{name:<30}{losses}  {ratio:.2f}  {right} of {len(training.steps)}"


def apart(one: Taken, other: Taken) -> float:
    """The largest difference of a weight."""
    pairs = [(one.after[name], other.after[name]) for name in one.after.keys() & other.after.keys()]
    return max(float(np.max(np.abs(a.astype(float) - b.astype(float)))) for a, b in pairs)


def picture(found: dict[str, Training], path: Path) -> None:
    """Draws losses, and how far the weights drift apart. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    (reference, first), *_ = found.items()
    for number, (name, training) in enumerate(found.items()):
        style = {"color": f"C{number}", "linestyle": ("-", "--", ":")[number % 3], "label": name}
        left.plot([high for _, high in training.losses], **style)
        steps = [apart(*pair) for pair in zip(training.steps, first.steps, strict=False)]
        # Where weights are equal there is nothing to draw on a logarithmic axis.
        right.plot(range(1, len(steps) + 1), [step or None for step in steps], **style)
    left.set_title("certified loss")
    right.set_title(f"largest difference of a weight\nfrom {reference}")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    left.legend(fontsize=7)
    figure.savefig(path, dpi=150)


def main() -> int:
    """0 if every step was right and every loss fell, 1 otherwise, 2 for bad usage."""
    parser = argparse.ArgumentParser(description="Trains all modules, and judges every step.")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.picture is not None and find_spec("matplotlib") is None:
        print("a picture needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    print(f"{'loss after steps':<30}" + "".join(f"{k:>7}" for k in SHOWN) + "  error  right")
    found = {}
    for name, training in trainings(options.dtype):
        found[name] = training
        print(line(name, training), flush=True)
    failures = {name: training.failures for name, training in found.items() if training.failures}
    for name, texts in failures.items():
        print(f"{name}: {texts[0]}")
    if not failures:
        print("Every step is what the equations make of the weights before it.")
    if options.picture is not None:
        try:
            picture(found, options.picture)
        except (OSError, ValueError) as error:
            print(f"{options.picture} cannot be written: {error}", file=sys.stderr)
            return 2
        print(f"written to {options.picture}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
