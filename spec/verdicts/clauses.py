"""The clauses, each defined once: its names, what it asks, how it reads.

Verdicts fold over them in this order, and whatever prints, records, lists or excuses failures reads
them from here. What a clause compares is a function of `comparisons`, under its word; a
clause without one compares several answers with each other, which the engine does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Clause:
    """One of the things that an answer has to meet, and a failure names."""

    word: str
    """Its name, which is what people and records say."""
    letter: str
    """Its short name, in code and in older records; "" where it has none."""
    asks: str
    """What it asks of an answer, in words."""
    broken: str
    """What a failure means."""
    head: str
    """What stands beside "failed" in the head of a failure, after the word."""
    failure: str = ""
    """A failure in words, of `count` entries out of `size`, and the operands `reading`."""
    about_values: bool = True
    """Whether it is about the values of a quantity, and not about what a call does."""
    of_form: bool = False
    """Whether it is about the form of a quantity, so that no error has a ratio to a bound."""
    decides: bool = False
    """Whether nothing else is asked where it is asked."""
    whole: bool = False
    """Whether it goes from the inputs on, whatever else was returned."""

    @property
    def symbol(self) -> str:
        """Its shortest unmistakable name."""
        return self.letter or self.word


CONTRACT: Final = Clause(
    "contract",
    "",
    "it is there, with the declared shape, the dtype, and finite wherever the true value is",
    "an output is missing, or has another shape or dtype than declared, or is not finite where the "
    "true value is",
    "",
    of_form=True,
)
EXACT: Final = Clause(
    "exact",
    "E",
    "where a case is built so that no rounding can occur, the bits are those of the true value",
    "the case leaves nothing to round, and the bits are not those of the true value",
    "its bits",
    "{count} of {size} entries differ from the exact bits",
    decides=True,
)
LOCAL: Final = Clause(
    "local",
    "L",
    "each equation, evaluated on the backend's own operands, lies within the rounding error that "
    "its declared arithmetic can make, in whatever order it sums",
    "an equation, evaluated on the backend's own operands, is further off than its rounding",
    "its equation",
    "{count} of {size} entries lie outside the bound of its equation on the port's own {reading}",
)
BOUND: Final = Clause(
    "bound",
    "B",
    "each output lies within the propagated bound around the certified true value",
    "the output is further from the true value than all rounding together allows",
    "around the true value",
    "{count} of {size} entries lie outside the bound around the certified value",
    whole=True,
)
METAMORPHIC: Final = Clause(
    "metamorphic",
    "M",
    "the same call gives the same bits (`repeat`), inputs are left alone (`unchanged`), nothing is "
    "remembered (`state`), scaling by powers of two and flipped signs change nothing else "
    "(`scaling`, `signs`), the floating-point environment stays as it was (`environment`)",
    "the same call again, or one that has to agree, gives something else",
    "the same again",
    about_values=False,
)

CLAUSES: tuple[Clause, ...] = (CONTRACT, EXACT, LOCAL, BOUND, METAMORPHIC)
"""In the order in which they are asked, and the first one that fails is named."""


def find(name: str) -> Clause | None:
    """The clause of a word or a letter; None where there is none."""
    return next(
        (clause for clause in CLAUSES if name and name in (clause.word, clause.letter)), None
    )


def named(name: str) -> Clause:
    """The clause of a word or a letter; raises ValueError where there is none."""
    found = find(name)
    if found is None:
        raise ValueError(f"{name!r} is no clause: {', '.join(words())}")
    return found


def word(name: str) -> str:
    """The word of a clause; any other name as it is."""
    found = find(name)
    return found.word if found is not None else name


def words() -> tuple[str, ...]:
    """What the clauses are called."""
    return tuple(clause.word for clause in CLAUSES)


def letters() -> tuple[str, ...]:
    """The letters of those that have one."""
    return tuple(clause.letter for clause in CLAUSES if clause.letter)
