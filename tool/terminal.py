"""The terminal as tables and summaries are printed on it."""

from __future__ import annotations

from typing import Any, NoReturn

from rich.console import Console


class Terminal(Console):
    """Prints names as they are: nothing in a text of a stranger is markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> NoReturn:
        """Leaves the status to the command, of which a run has one of its own."""
        raise BrokenPipeError
