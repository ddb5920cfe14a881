"""Bad usage: one exception, whose message is the one line that the user needs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from qkvac.texts import short


class UsageError(Exception):
    """The request cannot be carried out; the message says what to do (exit status 2).

    Further lines of the message show a place: a line of a file, and a mark below it.
    """


def unknown(
    kind: str, word: str, known: Iterable[str], listed_by: str = "", near: Iterable[str] = ()
) -> UsageError:
    """What to raise for a name that does not exist, with the nearest one that does.

    `listed_by` is the command that lists the names where there are many, `near` what is meant
    where that is no matter of spelling.
    """
    names = list(known)
    word = short(word)
    near = list(near) or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    listed = f"known: {', '.join(names) or 'none'}"
    if listed_by:
        listed = f"`{listed_by}` lists all {len(names)}"
    return UsageError(f"unknown {kind} {word!r}{hint} ({listed})")
