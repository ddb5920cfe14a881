"""What subjects declare: conventions, and the arithmetic that their bounds are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkvac.publication.runs import Row
from qkvac.spec.attention import CONVENTIONS, Arithmetic
from qkvac.targets.declaration import SUPPORTS


@dataclass(frozen=True)
class Choice:
    """What a subject does where reasonable systems differ."""

    value: str
    own: bool
    """Whether it is another than the spec's own choice."""


@dataclass(frozen=True)
class Declared:
    """What a subject declares."""

    choices: tuple[Choice, ...]
    """One for each convention of the spec."""
    arithmetic: tuple[tuple[str, str], ...]
    """Dtypes, and the model that holds for them."""
    supports: str


@dataclass(frozen=True)
class Declaration:
    """Rows that declare the same."""

    rows: tuple[Row, ...]
    declared: Declared


def declarations(rows: Sequence[Row]) -> tuple[Declaration, ...]:
    """The declarations, each once, with the rows that made it."""
    alike = dict[Declared, list[Row]]()
    for row in rows:
        alike.setdefault(_declared(row), []).append(row)
    return tuple(Declaration(tuple(own), declared) for declared, own in alike.items())


def _declared(row: Row) -> Declared:
    declaration = row.entry.declaration
    choices = []
    for name, convention in CONVENTIONS.items():
        value = str(declaration.conventions.get(name, convention.options[0]))
        choices.append(Choice(value, value != convention.options[0]))
    present = {result.cell.dtype for result in row.results}
    models = dict[str, list[str]]()
    for dtype in row.entry.dtypes:
        if dtype in present:
            models.setdefault(words(row.entry.arithmetic(dtype), dtype), []).append(dtype)
    supports = sorted(declaration.supports)
    every = len(supports) == len(SUPPORTS)
    inputs = "all inputs" if every else ", ".join(supports) or "plain inputs"
    return Declared(
        tuple(choices),
        tuple((", ".join(dtypes), model) for model, dtypes in models.items()),
        "; ".join((inputs, *declaration.only.words)),
    )


def words(model: Arithmetic, dtype: str) -> str:
    """What a model has besides everything being in the dtype."""
    parts = [
        f"{part} in {held}"
        for part, held, plain in (
            ("stored", model.storage, dtype),
            ("factors", model.operands, model.storage),
            ("sums", model.accumulation, dtype),
            ("elementwise operations", model.elementwise, model.storage),
            ("scores", model.scores, model.storage),
        )
        if held != plain
    ]
    if model.flushes:
        parts.append("subnormals flushed")
    if model.truncates:
        parts.append("results cut off")
    if model.blocks:
        parts.append(f"blocks of {model.blocks} keys")
    if model.sigmoid:
        parts.append(f"sigmoid by {model.sigmoid}")
    return "; ".join([*parts, f"softmax {model.softmax or 'undeclared'}"])
